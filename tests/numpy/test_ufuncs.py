"""Compare ufuncs and their methods (reduce, accumulate, at, reduceat, outer) with numpy and JAX, and across meshes."""

import inspect
import pickle

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.agreement import PARTS, Case, mesh_like_one_device, values_like, values_like_both

try:
    import jax
except ImportError:
    jax = None

INTEGERS = np.array([[5, 2, 7, 1], [3, 6, 6, 0], [4, 9, 2, 8]], np.int32)
FLOATS = np.array([[0.5, -2, 1.5, 0], [3, 0.25, -1, 2], [1, 1, -0.5, 4]], np.float32)
BOOLEANS = INTEGERS > 3
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
NUMBERS = ("add", "multiply", "maximum", "minimum")
LOGS = ("logaddexp", "logaddexp2")
NAMES = (*BITS, *LOGICAL, *NUMBERS, *LOGS, "negative", "subtract")


def _operand(name):
    return INTEGERS if name in BITS else BOOLEANS if name in LOGICAL else FLOATS


CASES = [
    case
    for name in (*BITS, *LOGICAL, *NUMBERS, *LOGS)
    for case in (
        Case(f"{name}.reduce", (_operand(name),)),
        Case(f"{name}.reduce", (_operand(name),), {"axis": 1, "keepdims": True}),
        Case(f"{name}.reduce", (_operand(name), None)),
        Case(f"{name}.reduce", (_operand(name), (0, 1))),
        Case(f"{name}.accumulate", (_operand(name),), {"axis": 1}),
        Case(f"{name}.accumulate", (_operand(name), -2)),
        Case(f"{name}.outer", (_operand(name)[0], _operand(name)[:2])),
    )
]
OPTIONS = [
    Case("add.reduce", (INTEGERS.astype(np.int8),)),
    Case("multiply.reduce", (INTEGERS,), {"initial": 2, "where": INTEGERS > 2}),
    Case("bitwise_and.reduce", (INTEGERS,), {"where": INTEGERS > 2}),
    Case("maximum.reduce", (FLOATS,), {"initial": 2.0, "where": FLOATS > 2}),
    Case("logical_xor.reduce", (BOOLEANS,), {"initial": True, "where": FLOATS > 0}),
    Case("subtract.reduce", (INTEGERS,), {"axis": 1}),
    Case("subtract.accumulate", (FLOATS,)),
    Case("add.reduceat", (INTEGERS, np.array([0, 2, 1], np.int32)), {"axis": 1}),
    Case("maximum.reduceat", (INTEGERS, np.array([0, 2], np.int32))),
]
AT = [  # numpy writes to its argument instead
    Case(f"{name}.at", (_operand(name), np.array([0, 2, 0], np.int32), _operand(name)), {"inplace": False})
    for name in (*NUMBERS, *BITS, *LOGS, "subtract")
]


@pytest.mark.table(default=1)
@PARTS
def test_methods_match_numpy_and_jax(part):
    values_like_both(jnp, [*CASES, *OPTIONS][part])


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
@PARTS
def test_at_matches_jax(part):
    values_like(jnp, jax.numpy, AT[part], jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_mesh_matches_one_device(which, part):
    mesh_like_one_device(sw.make_mesh((2, 2), ("x", "y")), jnp, [*CASES[::3], *OPTIONS[:6], *AT[::3]][part], which)


@pytest.mark.parametrize("name", NAMES)
def test_ufunc_is_callable_picklable_and_rejects_out(name):
    function = getattr(jnp, name)
    assert isinstance(function, jnp.ufunc) and function.__name__ == name
    assert pickle.loads(pickle.dumps(function)) is function
    operands = (_operand(name),) * (1 if name == "negative" else 2)
    np.testing.assert_allclose(sw.jit(function)(*operands), getattr(np, name)(*operands), rtol=1e-6)
    assert list(inspect.signature(function).parameters) == ["args", "out", "where"]
    with pytest.raises(NotImplementedError, match="`out` is not supported"):
        function(*operands, out=operands[0])


@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
def test_ufuncs_and_signatures_match_jax():
    theirs = {name for name in dir(jax.numpy) if isinstance(getattr(jax.numpy, name), jax.numpy.ufunc)}
    assert theirs == {name for name in jnp.__all__ if isinstance(getattr(jnp, name), jnp.ufunc)}
    for name in theirs:
        ours, other = getattr(jnp, name), getattr(jax.numpy, name)
        assert (ours.nin, ours.nout, ours.identity) == (other.nin, other.nout, other.identity)
    for method in ("reduce", "accumulate", "at", "outer", "reduceat"):
        ours, other = (inspect.signature(getattr(space.ufunc, method)).parameters for space in (jnp, jax.numpy))
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in other.values()
        ]


def test_ufuncs_are_accepted_by_transformations():
    x = jnp.asarray(INTEGERS)
    assert lax.reduce(x, 0, jnp.add, (0, 1)).tolist() == INTEGERS.sum()
    assert lax.associative_scan(jnp.maximum, x)[-1].tolist() == INTEGERS.max(0).tolist()
    assert sw.vmap(jnp.multiply, (0, None))(x, 2).tolist() == (2 * INTEGERS).tolist()
    assert sw.jit(lambda f, x: f.reduce(x), static_argnums=0)(jnp.add, x).tolist() == INTEGERS.sum(0).tolist()


def test_add_reduce_along_a_sharded_dim_uses_an_all_reduce():
    mesh = sw.make_mesh((4,), ("x",))
    x = sw.device_put(np.ones((16, 4), np.float32), NamedSharding(mesh, P("x")))
    text = sw.jit(jnp.add.reduce).lower(x).as_text()
    assert "all_reduce" in text and "all_gather" not in text
