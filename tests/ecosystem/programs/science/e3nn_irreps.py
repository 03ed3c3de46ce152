"""e3nn-jax: the README's norms and tensor square, spherical harmonics, equivariance under rotations, signals on the
sphere, an equivariant network on a graph, trained with sharded edges.
"""

import e3nn_jax as e3nn
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.ecosystem.report import explain, report, shard

key = jax.random.PRNGKey(0)
features = e3nn.normal("0e + 1o", key)
report("normal", features.array)
report("norms", e3nn.norm(features).array)
report("norm", e3nn.norm(features, per_irrep=False).array)
square = e3nn.tensor_square(features)
report("tensor square", square.array)
report("irreps", [str(square.irreps), str(e3nn.tensor_product("0e + 1o", "1o + 2e"))])
report("Clebsch-Gordan", e3nn.clebsch_gordan(1, 2, 1))

batch = e3nn.normal("4x0e + 2x1o + 2e", key, (16,))
batch = e3nn.IrrepsArray(batch.irreps, shard(batch.array, "data"))
rotation = e3nn.rand_matrix(key, ())
report("rotated", jax.jit(lambda x: e3nn.tensor_square(x).transform_by_matrix(rotation).array)(batch))
report("square of rotated", jax.jit(lambda x: e3nn.tensor_square(x.transform_by_matrix(rotation)).array)(batch))
vectors = shard(np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32), "data")
harmonics = jax.jit(lambda x: e3nn.spherical_harmonics("0e + 1o + 2e", x, normalize=True).array)
report("spherical harmonics", harmonics(vectors))
report("divergence", jax.jit(jax.vmap(lambda x: jnp.trace(jax.jacobian(harmonics)(x)[1:4])))(vectors))
report("gated", jax.jit(lambda x: e3nn.gate(x).array)(e3nn.normal("3x0e + 2x0e + 2x1o", key, (8,))))
signal = jax.jit(lambda x: e3nn.to_s2grid(x, 8, 9, quadrature="gausslegendre").grid_values)
report("signal", signal(e3nn.normal("0e + 1o + 2e", key)))


class Convolution(flax.linen.Module):
    """One convolution over the edges of a graph, with weights that depend on the lengths of edges."""

    irreps: str

    @flax.linen.compact
    def __call__(self, nodes, edges, senders, receivers):
        directions = e3nn.spherical_harmonics("0e + 1o + 2e", edges, normalize=True)
        messages = e3nn.tensor_product(nodes[senders], directions).filter(keep=self.irreps)
        lengths = jnp.linalg.norm(edges, axis=1)
        radial = e3nn.bessel(lengths, 4, 3.0) * e3nn.poly_envelope(1, 2)(lengths / 3.0)[:, None]
        messages *= e3nn.flax.MultiLayerPerceptron([16, messages.irreps.num_irreps], jax.nn.silu)(radial)
        summed = e3nn.scatter_sum(messages, dst=receivers, output_size=nodes.shape[0]) / 3.0
        return e3nn.flax.Linear(self.irreps)(summed) + e3nn.flax.Linear(self.irreps, name="skip")(nodes)


class Network(flax.linen.Module):
    """Two convolutions with a gate between them, and one scalar per node."""

    @flax.linen.compact
    def __call__(self, positions, senders, receivers):
        edges = positions[receivers] - positions[senders]
        nodes = e3nn.IrrepsArray("0e", jnp.ones((len(positions), 1)))
        nodes = e3nn.gate(Convolution("8x0e + 4x0e + 4x1o")(nodes, edges, senders, receivers))
        return Convolution("0e")(nodes, edges, senders, receivers).array


points = np.random.default_rng(1).uniform(0, 3, size=(12, 3)).astype(np.float32)
senders, receivers = e3nn.radius_graph(points, 2.0, size=80, fill_src=0, fill_dst=1)
senders, receivers = shard(senders, "data"), shard(receivers, "data")
targets = jnp.sin(points.sum(1, keepdims=True))
network = Network()
params = jax.jit(network.init)(key, points, senders, receivers)
optimizer = optax.adam(1e-2)
state = optimizer.init(params)


@jax.jit
def step(params, state, senders, receivers):
    def loss(params):
        return jnp.mean((network.apply(params, points, senders, receivers) - targets) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, value


explain(step, params, state, senders, receivers)
losses = []
for _ in range(4):
    params, state, value = step(params, state, senders, receivers)
    losses.append(float(value))
report("losses", losses)
turned = points @ e3nn.rand_matrix(jax.random.PRNGKey(3), ()).T
report("invariant", jax.jit(network.apply)(params, turned, senders, receivers))
