"""debug_nans and debug_infs: the error names the op, its line and its operands."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.fixture
def checking():
    for name in ("jax_debug_nans", "jax_debug_infs"):
        sw.config.update(name, True)
    yield
    for name in ("jax_debug_nans", "jax_debug_infs"):
        sw.config.update(name, False)


def normalized(x):
    total = x.sum()
    return sw.jit(lambda y, t: y / t)(x, total) * 2.0


def test_nan_inside_jit_names_op_and_line(checking):
    line = normalized.__code__.co_firstlineno + 2
    with pytest.raises(FloatingPointError) as caught:
        sw.jit(normalized)(np.array([0.0, 0.0], np.float32))
    assert str(caught.value) == (
        f"nan in the result of `div` at test_nan_check.py:{line}, in `normalized`.\n"
        "  operand 0: float32[2] [0.0, 0.0]\n  operand 1: float32[2] [0.0, 0.0]"
    )


def test_infinity_and_eager_ops(checking):
    with pytest.raises(FloatingPointError, match=r"inf in the result of `exp` at test_nan_check\.py:\d+"):
        jnp.exp(np.array([1.0, 200.0], np.float32))
    with pytest.raises(FloatingPointError, match=r"inf in the result of `div`"):
        sw.grad(lambda x: (1.0 / (x * x)).sum())(jnp.array([1.0, 0.0]))


def test_on_eight_devices(checking, mesh):
    x = sw.device_put(np.arange(-5.0, 5.0, dtype=np.float32), NamedSharding(mesh, P("data")))
    with pytest.raises(FloatingPointError, match=r"nan in the result of `sub`|nan in the result of `div`"):
        sw.jit(lambda x: (x - x) / (x * 0.0))(x)
    np.testing.assert_allclose(sw.jit(lambda x: x * 2)(x), 2 * np.arange(-5.0, 5.0))


def test_nan_in_an_argument_is_not_blamed_on_an_op(checking):
    x = np.array([np.nan, 1.0], np.float32)
    assert np.isnan(np.asarray(sw.jit(lambda x: x * 2.0)(x))[0])


def test_with_a_donated_argument(checking):
    f = sw.jit(lambda x: x / (x * 0.0), donate_argnums=0)
    # The op cannot be found if the argument's buffer was donated; the NaN is still reported.
    with pytest.raises(FloatingPointError, match=r"^nan in (a result of `<lambda>`\n|the result of `div` at)"):
        f(jnp.zeros(3) + 0.0)


def test_off_by_default():
    assert np.isnan(np.asarray(jnp.zeros(2) / jnp.zeros(2))).all()


def test_a_nan_inside_a_loop_names_the_op_in_its_body(checking):
    def function(x):
        return sw.lax.scan(lambda carry, a: (jnp.log(carry - a), None), x, jnp.arange(3.0))[0]

    with pytest.raises(FloatingPointError, match=r"nan in the result of `log` at test_nan_check.py:\d+"):
        sw.jit(function)(1.5)
