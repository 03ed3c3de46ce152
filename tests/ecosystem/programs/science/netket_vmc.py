"""NetKet: the ground state of a transverse-field Ising chain by variational Monte Carlo with a restricted Boltzmann
machine and stochastic reconfiguration, with chains over devices; exact diagonalization and summation.
"""

import sys
from contextlib import redirect_stdout

import jax
import netket as nk
import numpy as np

from tests.ecosystem.report import report

graph = nk.graph.Chain(8, pbc=True)
hilbert = nk.hilbert.Spin(0.5, N=8)
ising = nk.operator.IsingJax(hilbert, graph, h=1.0)
report("exact energies", nk.exact.lanczos_ed(ising, k=2))
states = hilbert.all_states()
connected, elements = ising.get_conn_padded(states[:16])
report("connected states", connected[..., ::2])
report("matrix elements", elements)

model = nk.models.RBM(alpha=1, param_dtype=float)
sampler = nk.sampler.MetropolisLocal(hilbert, n_chains=16)
state = nk.vqs.MCState(sampler, model, n_samples=128, n_discard_per_chain=2, seed=0, sampler_seed=1)
report("samples", np.asarray(state.samples).reshape(128, 8))
report("log amplitudes", state.log_value(states[:16]))
energy, gradient = state.expect_and_grad(ising)
report("energy", [float(np.real(energy.mean)), float(energy.error_of_mean), float(energy.variance)])
report("gradient", np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient)]))
log = nk.logging.RuntimeLog()
reconfiguration = nk.optimizer.SR(nk.optimizer.qgt.QGTJacobianDense, diag_shift=0.01, holomorphic=False)
driver = nk.driver.VMC(ising, nk.optimizer.Sgd(0.05), variational_state=state, preconditioner=reconfiguration)
with redirect_stdout(sys.stderr):  # NetKet prints how it computes statistics
    driver.run(3, out=log, show_progress=False)
report("energies", np.real(log.data["Energy"].Mean))

full = nk.vqs.FullSumState(hilbert, model, seed=3)
log = nk.logging.RuntimeLog()
nk.driver.VMC(ising, nk.optimizer.Adam(0.02), variational_state=full).run(4, out=log, show_progress=False)
report("full summation", np.real(log.data["Energy"].Mean))

square = nk.graph.Hypercube(2, n_dim=2, pbc=False)
heisenberg = nk.operator.Heisenberg(nk.hilbert.Spin(0.5, N=4, total_sz=0), square)
report("heisenberg", np.linalg.eigvalsh(heisenberg.to_dense()))
