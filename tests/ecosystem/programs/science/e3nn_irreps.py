"""e3nn-jax: the README's norms and tensor square, equivariance under rotations, spherical harmonics, a convolution on a
graph that is trained with sharded edges.
"""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.ecosystem.report import explain, report, shard

key = jax.random.PRNGKey(0)
features = e3nn.normal("0e + 1o", key)
report("normal", features.array)
report("norms", e3nn.norm(features).array)
report("norm", e3nn.norm(features, per_irrep=False).array)
square = e3nn.tensor_square(features)
report("tensor square", square.array)
report("irreps", [str(square.irreps), str(e3nn.tensor_product("0e + 1o", "1o + 2e"))])

batch = e3nn.normal("2x0e + 1o", key, (16,))
batch = e3nn.IrrepsArray(batch.irreps, shard(batch.array, "data"))
rotation = e3nn.angles_to_matrix(0.3, 0.5, 0.7)
report("rotated", jax.jit(lambda x: e3nn.tensor_square(x).transform_by_matrix(rotation).array)(batch))
report("square of rotated", jax.jit(lambda x: e3nn.tensor_square(x.transform_by_matrix(rotation)).array)(batch))

points = jnp.array(np.random.default_rng(1).uniform(0, 3, size=(12, 3)), jnp.float32)
senders, receivers = (shard(x, "data") for x in e3nn.radius_graph(points, 2.0, size=64, fill_src=0, fill_dst=1))
targets = jnp.sin(points.sum(1))
linear = e3nn.FunctionalLinear("2x0e + 1o", "0e")
weights = [
    jax.random.normal(key, (4, 3)),
    [jax.random.normal(key, instruction.path_shape) for instruction in linear.instructions],
]


def convolve(weights, points, senders, receivers):
    edges = points[receivers] - points[senders]
    lengths = jnp.linalg.norm(edges, axis=1)
    radial = e3nn.bessel(lengths, 4, 3.0) * e3nn.poly_envelope(1, 2)(lengths / 3.0)[:, None]
    messages = e3nn.tensor_square(e3nn.spherical_harmonics("0e + 1o", edges, normalize=True)).filter(keep="2x0e + 1o")
    messages *= radial @ weights[0]
    nodes = e3nn.scatter_sum(messages, dst=receivers, output_size=len(points))
    return jnp.tanh(jax.vmap(linear, (None, 0))(weights[1], nodes).array[:, 0])


@jax.jit
def step(weights, senders, receivers):
    def loss(weights):
        return jnp.mean((convolve(weights, points, senders, receivers) - targets) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


explain(step, weights, senders, receivers)
losses = []
for _ in range(4):
    weights, value = step(weights, senders, receivers)
    losses.append(float(value))
report("losses", losses)
report("invariant", jax.jit(convolve)(weights, points @ rotation.T, senders, receivers))
