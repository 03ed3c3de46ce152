"""A training step of JAX on the mesh data=4, model=2, for the tests of inside_jax."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

SPECS = (P(None, "model"), P("model"), P("data"), P("data"))
SHAPES = ((12, 24), (24, 6), (16, 12), (16, 6))
BYTES = 4 * (2 * 3 / 4 * (12 * 24 + 24 * 6) / 2 + 2 * 3 / 4 + 2 * 1 / 2 * 16 * 6 / 4)  # of the all-reduces of `step`


def auto_mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def arguments():
    mesh, rng = auto_mesh(), np.random.default_rng(0)
    values = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    return [jax.device_put(value, NamedSharding(mesh, spec)) for value, spec in zip(values, SPECS, strict=True)]


def loss(w1, w2, x, y):
    hidden = jnp.maximum(x @ w1, 0.0)
    return jnp.sum((hidden @ w2 - y) ** 2)


def step(w1, w2, x, y):
    value, (g1, g2) = jax.value_and_grad(loss, argnums=(0, 1))(w1, w2, x, y)
    return w1 - 1e-3 * g1, w2 - 1e-3 * g2, value


def assert_equal(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert isinstance(a, jax.Array)
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        # Sums of large terms of both signs have the rounding error of the terms.
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=max(2e-5, 1e-6 * float(jnp.abs(b).max(initial=0))))
