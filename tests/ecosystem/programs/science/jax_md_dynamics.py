"""JAX MD (jax-md): the README's periodic box with a Lennard-Jones potential, forces, Nosé-Hoover dynamics and neighbor
lists; constant energy dynamics of sharded particles, FIRE minimization, cell lists.
"""

import jax
import numpy as np
from jax_md import energy, minimize, partition, quantity, simulate, space

from tests.ecosystem.report import explain, report, shard

box = 6.0
displacement, shift = space.periodic(box)
grid = np.stack(np.meshgrid(*[np.arange(4)] * 2), -1).reshape(-1, 2) * 1.5
positions = (grid + np.random.default_rng(0).uniform(0, 0.3, size=grid.shape)).astype(np.float32)
positions = shard(positions, "data")
key = jax.random.PRNGKey(0)

energy_fn = energy.lennard_jones_pair(displacement)
report("energy", jax.jit(energy_fn)(positions))
force_fn = quantity.force(energy_fn)
report("forces", jax.jit(force_fn)(positions))
explain(jax.jit(force_fn), positions)
distances = space.map_product(space.metric(displacement))
report("distances", jax.jit(distances)(positions, positions))


def run(simulation, steps, **keywords):
    """Return the state of a simulation after some steps."""
    init, update = simulation
    state = init(key, positions, **keywords)
    return jax.jit(lambda state: jax.lax.fori_loop(0, steps, lambda _, state: update(state), state))(state)


state = run(simulate.nvt_nose_hoover(energy_fn, shift, 1e-3, 1.0), 10)
report("nose-hoover", state.position)
report("momenta", state.momentum)
report("invariant", simulate.nvt_nose_hoover_invariant(energy_fn, state, 1.0))
report("constant energy", run(simulate.nve(energy_fn, shift, 1e-3), 10, kT=0.5).position)

init, update = minimize.fire_descent(energy_fn, shift)
state = init(positions)
relax = jax.jit(lambda state: jax.lax.scan(lambda state, _: (update(state), energy_fn(state.position)), state, None, 8))
report("relaxation", relax(state)[1])

neighbor_fn, neighbor_energy = energy.lennard_jones_neighbor_list(displacement, box, r_cutoff=1.6, r_onset=1.2)
neighbors = neighbor_fn.allocate(positions, extra_capacity=2)
report("neighbors", np.sort(neighbors.idx, axis=1))


@jax.jit
def step(positions, neighbors):
    positions = shift(positions, -1e-4 * jax.grad(neighbor_energy)(positions, neighbor=neighbors))
    neighbors = neighbors.update(positions)
    return positions, neighbors, neighbor_energy(positions, neighbor=neighbors)


energies = []
moved = positions
for _ in range(3):
    moved, neighbors, value = step(moved, neighbors)
    energies.append(float(value))
report("energies with neighbors", energies)
report("overflow", neighbors.did_buffer_overflow)
cells = partition.cell_list(box, 2.0, 8).allocate(positions)
report("cells", np.sort(np.asarray(cells.id_buffer).reshape(9, -1), axis=1))
