"""add.reduce, maximum.accumulate and their kin: like numpy and JAX, on many devices as on one."""

import inspect
import pickle

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.agreement import Case, mesh_like_one_device, values_like, values_like_both

try:
    import jax
except ImportError:
    jax = None

WHOLE = np.array([[5, 2, 7, 1], [3, 6, 6, 0], [4, 9, 2, 8]], np.int32)
REAL = np.array([[0.5, -2, 1.5, 0], [3, 0.25, -1, 2], [1, 1, -0.5, 4]], np.float32)
TRUE = WHOLE > 3
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
NUMBERS = ("add", "multiply", "maximum", "minimum")
LOGS = ("logaddexp", "logaddexp2")
NAMES = (*BITS, *LOGICAL, *NUMBERS, *LOGS, "negative", "subtract")


def _given(name):
    return WHOLE if name in BITS else TRUE if name in LOGICAL else REAL


CASES = [
    case
    for name in (*BITS, *LOGICAL, *NUMBERS, *LOGS)
    for case in (
        Case(f"{name}.reduce", (_given(name),)),
        Case(f"{name}.reduce", (_given(name),), {"axis": 1, "keepdims": True}),
        Case(f"{name}.reduce", (_given(name), None)),
        Case(f"{name}.reduce", (_given(name), (0, 1))),
        Case(f"{name}.accumulate", (_given(name),), {"axis": 1}),
        Case(f"{name}.accumulate", (_given(name), -2)),
        Case(f"{name}.outer", (_given(name)[0], _given(name)[:2])),
    )
]
MORE = [
    Case("add.reduce", (WHOLE.astype(np.int8),)),
    Case("multiply.reduce", (WHOLE,), {"initial": 2, "where": WHOLE > 2}),
    Case("bitwise_and.reduce", (WHOLE,), {"where": WHOLE > 2}),
    Case("maximum.reduce", (REAL,), {"initial": 2.0, "where": REAL > 2}),
    Case("logical_xor.reduce", (TRUE,), {"initial": True, "where": REAL > 0}),
    Case("subtract.reduce", (WHOLE,), {"axis": 1}),
    Case("subtract.accumulate", (REAL,)),
    Case("add.reduceat", (WHOLE, np.array([0, 2, 1], np.int32)), {"axis": 1}),
    Case("maximum.reduceat", (WHOLE, np.array([0, 2], np.int32))),
]
PLACES = [  # where numpy writes
    Case(f"{name}.at", (_given(name), np.array([0, 2, 0], np.int32), _given(name)), {"inplace": False})
    for name in (*NUMBERS, *BITS, *LOGS, "subtract")
]


def test_like_numpy_and_jax():
    values_like_both(jnp, [*CASES, *MORE])


@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
def test_places_like_jax():
    values_like(jnp, jax.numpy, PLACES, jax)


@pytest.mark.parametrize("which", ["first", "last"])
def test_on_a_mesh(which):
    mesh_like_one_device(sw.make_mesh((2, 2), ("x", "y")), jnp, [*CASES[::3], *MORE[:6], *PLACES[::3]], which)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_has_methods(name):
    function = getattr(jnp, name)
    assert isinstance(function, jnp.ufunc) and function.__name__ == name
    assert pickle.loads(pickle.dumps(function)) is function
    given = (_given(name),) * (1 if name == "negative" else 2)
    found, wanted = sw.jit(function)(*given), getattr(np, name)(*given)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert list(inspect.signature(function).parameters) == ["args", "out", "where"]
    with pytest.raises(NotImplementedError, match="there is no `out`"):
        function(*given, out=given[0])


@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
def test_those_that_jax_has():
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


def test_as_a_function_of_others():
    x = jnp.asarray(WHOLE)
    assert lax.reduce(x, 0, jnp.add, (0, 1)).tolist() == WHOLE.sum()
    assert lax.associative_scan(jnp.maximum, x)[-1].tolist() == WHOLE.max(0).tolist()
    assert sw.vmap(jnp.multiply, (0, None))(x, 2).tolist() == (2 * WHOLE).tolist()
    assert sw.jit(lambda f, x: f.reduce(x), static_argnums=0)(jnp.add, x).tolist() == WHOLE.sum(0).tolist()


def test_a_sum_along_a_cut_dim_moves_no_array():
    mesh = sw.make_mesh((4,), ("x",))
    x = sw.device_put(np.ones((16, 4), np.float32), NamedSharding(mesh, P("x")))
    text = sw.jit(jnp.add.reduce).lower(x).as_text()
    assert "all_reduce" in text and "all_gather" not in text
