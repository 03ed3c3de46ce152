"""Exact and approximate equality of arrays: against numpy and JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.agreement import PARTS, Case, mesh_like_one_device, values_like_both, vmap_like_loop

X = np.array([1.0, np.inf, -np.inf, np.nan, 0.0, 1e-9, 1000.0], np.float32)
Y = np.array([1.000001, np.inf, np.inf, np.nan, -0.0, 0.0, 1001.0], np.float32)
CASES = [
    *(Case(name, (X, Y), {"equal_nan": nan}) for name in ("isclose", "allclose") for nan in (False, True)),
    Case("isclose", (X, Y, 1e-2, 1e-3)),
    Case("isclose", (X, Y), {"rtol": np.array(0.1, np.float32), "atol": 0}),
    Case("isclose", (np.array([[1], [2]], np.int32), np.array([1, 2, 3], np.int32))),
    Case("allclose", (X[:1], Y[:1])),
    Case("allclose", (np.zeros((0, 3), np.float32), np.ones((1, 3), np.float32))),
    Case("isclose", (np.array([1 + 1j, 2j], np.complex64), np.array([1 + 1.000001j, 2], np.complex64))),
    Case("isclose", (np.array([True, False]), np.array([True, True]))),
    *(Case("array_equal", (X, other), {"equal_nan": nan}) for other in (X, Y, X[:3]) for nan in (False, True)),
    Case("array_equal", (np.array([1, 2]), np.array([1.0, 2.0], np.float32))),
    Case("array_equiv", (np.ones((2, 3), np.float32), np.ones(3, np.float32))),
    Case("array_equiv", (np.ones((2, 3), np.float32), np.ones(2, np.float32))),
    Case("array_equiv", (np.ones((2, 3), np.float32), 1)),
]


@pytest.mark.table(default=1)
@PARTS
def test_like_numpy_and_jax(part):
    values_like_both(jnp, CASES[part])


@pytest.mark.table(default=1)
@PARTS
def test_vmap(part):
    vmap_like_loop(jnp, CASES[part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_on_a_mesh(mesh, which, part):
    arrays = [
        np.arange(rows * columns).astype(np.float32).reshape(rows, columns) for rows, columns in ((16, 8), (13, 7))
    ]
    cases = [
        Case(name, (x, x + 1e-6)) for name in ("isclose", "allclose", "array_equal", "array_equiv") for x in arrays
    ]
    mesh_like_one_device(mesh, jnp, cases[part], which)


def test_allclose_all_reduces_one_boolean(mesh):
    x = sw.device_put(np.ones((4096, 8), np.float32), NamedSharding(mesh, P("data")))
    plan = sw.explain(lambda x: jnp.allclose(x, x + 1))(x)
    assert list(plan.counts()) == ["all_reduce"]
    assert plan.wire_bytes <= 16


def test_objects_that_are_not_arrays_equal_nothing():
    assert not jnp.array_equal([1, None], [1, 2])
    assert jnp.array_equal([1, 2], [1, 2])
    assert not jnp.array_equiv([1, None], 1)
