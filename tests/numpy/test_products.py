"""vdot keeps the sharding of its operands."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.numpy.test_numpy_functions import arrays


@pytest.mark.parametrize("shape", [(8, 6), (7, 5, 3)], ids=["even", "uneven"])
@pytest.mark.parametrize("spec", [P("data", "model"), P(None, "data"), P(("data", "model"))], ids=str)
def test_vdot_of_sharded_operands_is_one_reduction(mesh, spec, shape):
    rng = np.random.default_rng(5)
    x, y = (rng.integers(-9, 9, shape) + 1j * rng.integers(-9, 9, shape) for _ in range(2))
    placed = [sw.device_put(z.astype(np.complex64), NamedSharding(mesh, spec)) for z in (x, y)]
    assert sw.jit(jnp.vdot)(*placed) == np.vdot(x, y)
    assert set(sw.explain(sw.jit(jnp.vdot))(*placed).counts()) == {"all_reduce"}


def test_vdot_flattens_operands_of_different_shapes():
    x, y = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2)
    assert jnp.vdot(x, y) == np.vdot(x, y)
    assert jnp.vdot(2.0, 3.0) == 6
    with pytest.raises(TypeError, match="vdot: "):
        jnp.vdot(jnp.ones((2, 3)), jnp.ones((2, 2)))


@pytest.mark.table(default=4)
@pytest.mark.parametrize(
    "shapes",
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (1, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((2, 3), (5, 3, 4)),
        ((2, 1, 2, 3), (4, 3, 2)),
    ],
    ids=str,
)
def test_matmul(shapes):
    a, b = arrays(*shapes)
    np.testing.assert_allclose(jnp.matmul(a, b), np.matmul(a, b), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jnp.asarray(a) @ b, np.matmul(a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.table(default=2)
@pytest.mark.parametrize("shapes", [((), (3,)), ((3,), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (4, 3, 2))], ids=str)
def test_dot(shapes):
    a, b = arrays(*shapes)
    np.testing.assert_allclose(jnp.dot(a, b), np.dot(a, b), rtol=1e-5, atol=1e-5)
