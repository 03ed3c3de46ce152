"""Differences, gradients, integrals and interpolation: against numpy and JAX, and their communication when sharded."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.agreement import (
    PARTS,
    Case,
    gradients_like,
    mesh_like_one_device,
    values_like_both,
    values_like_numpy,
    vmap_like_loop,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 5)).astype(np.float32)
N = RNG.integers(-9, 9, (4, 5)).astype(np.int32)
XP = np.array([0.0, 0.5, 2.0, 2.5, 4.0], np.float32)
AT = np.array([[-1.0, 0.0, 0.3], [2.0, 3.9, 9.0]], np.float32)
CASES = [
    *(Case("diff", (x,), {"n": n, "axis": axis}) for x in (X, N, X > 0) for n in (0, 1, 3) for axis in (0, -1)),
    Case("diff", (X[0], 9)),
    Case("diff", (X,), {"axis": 0, "prepend": 1.0, "append": X[:2].copy()}),
    Case("ediff1d", (X,)),
    Case("ediff1d", (N,), {"to_begin": np.array([1, 2], np.int32), "to_end": 7}),
    Case("gradient", (X,)),
    Case("gradient", (X, 2.0)),
    Case("gradient", (X, 2.0, XP)),
    Case("gradient", (X, XP), {"axis": 1}),
    Case("gradient", (X,), {"axis": -2}),
    Case("gradient", (X[:2], np.array(0.5, np.float32)), {"axis": (1, 0)}),
    Case("trapezoid", (X,)),
    Case("trapezoid", (X, XP)),
    Case("trapezoid", (X, X.copy()), {"axis": 0}),
    Case("trapezoid", (X,), {"dx": 0.5, "axis": 0}),
    Case("unwrap", (4 * X,), {"axis": 0}, atol=1e-5, smooth=False),
    Case("unwrap", (3 * N,), {"period": 4}),
    Case("unwrap", (4 * X,), {"discont": 4.0}, atol=1e-5, smooth=False),
    Case("interp", (AT, XP, X[0])),
    Case("interp", (AT, XP, X[0]), {"left": -5.0, "right": np.array(7.0, np.float32)}),
    Case("interp", (AT, XP, X[0]), {"period": 3.0}, atol=1e-5),
    Case("interp", (np.array(1.5, np.float32), XP, X[0])),
    Case("interp", (AT, XP, (X[0] + 1j * X[1]).astype(np.complex64))),
    Case("interp", (AT, XP[:1], X[0, :1])),
]
ODD_PERIOD = Case("unwrap", (3 * N,), {"period": 5})  # where JAX differs from numpy
LIKE_JAX = [
    Case("interp", (AT, XP, X[0]), {"left": "extrapolate", "right": "extrapolate"}),
    Case("interp", (np.array([0, 3], np.int32), XP, N[0])),
    Case("interp", (2, XP, X[0])),
    Case("gradient", (N,)),
    Case("trapezoid", (N,)),
    Case("ediff1d", (N,), {"to_end": np.array([1.5], np.float32)}),
    Case("diff", (X.astype(np.float16),)),
    Case("unwrap", (X.astype(np.float16),), smooth=False),
]


@pytest.mark.table(default=1)
@PARTS
def test_like_numpy_and_jax(part):
    values_like_both(jnp, CASES[part], LIKE_JAX[part])
    values_like_numpy(jnp, [ODD_PERIOD])


@pytest.mark.table(default=1)
@pytest.mark.jax
@PARTS
def test_gradients_like_jax(part):
    jax = pytest.importorskip("jax")
    gradients_like(jnp, jax.numpy, [case for case in CASES if case.args[0].dtype == np.float32][::2][part], jax)


@pytest.mark.table(default=1)
@PARTS
def test_vmap(part):
    vmap_like_loop(jnp, CASES[1::4][part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_on_a_mesh(mesh, which, part):
    cases = []
    for rows, columns in ((16, 8), (13, 7)):
        x = RNG.normal(size=(rows, columns)).astype(np.float32)
        cases += [Case("diff", (x,), {"n": n, "axis": axis}) for n in (1, 2) for axis in (0, 1)]
        cases += [Case("gradient", (x,)), Case("unwrap", (9 * x,), atol=1e-4), Case("ediff1d", (x,))]
        cases += [Case("trapezoid", (x,), {"axis": axis}) for axis in (0, 1)]
        cases += [Case("interp", (x, np.arange(5).astype(np.float32), np.arange(5.0).astype(np.float32) ** 2))]
    mesh_like_one_device(mesh, jnp, cases[part], which)


@pytest.mark.parametrize("rows", [4096, 4093], ids=["even", "uneven"])
def test_differences_along_a_sharded_dim_exchange_rows_with_neighbours(mesh, rows):
    x = sw.device_put(np.ones((rows, 64), np.float32), NamedSharding(mesh, P("data")))
    row = 64 * 4  # bytes
    plan = sw.explain(lambda x: jnp.diff(x, axis=0))(x)
    assert set(plan.counts()) == {"take_window"}
    assert plan.wire_bytes <= 6 * row
    plan = sw.explain(lambda x: jnp.gradient(x, axis=0))(x)
    assert plan.counts() == {"take_window": 2}
    assert plan.wire_bytes <= 4 * row


def test_lookups_in_a_replicated_table_need_no_communication(mesh):
    x = sw.device_put(np.ones((4096, 64), np.float32), NamedSharding(mesh, P("data", "model")))
    table = np.arange(1000).astype(np.float32)
    for call in (lambda x: jnp.interp(x, table, table), lambda x: jnp.searchsorted(table, x)):
        assert sw.explain(call)(x).counts() == {}


@pytest.mark.table(default=3)
@pytest.mark.parametrize("method", ["scan", "scan_unrolled", "sort", "compare_all", "default"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_methods_agree(method, side):
    rng = np.random.default_rng(0)
    row = np.sort(np.concatenate([rng.integers(0, 20, 3000), [np.nan, np.inf]])).astype(np.float32)
    queries = np.concatenate([rng.integers(-2, 22, 300), [np.nan, -np.inf, np.inf]]).astype(np.float32)
    result = jnp.searchsorted(row, queries, side=side, method=method)
    np.testing.assert_array_equal(result, np.searchsorted(row, queries, side=side))


def test_searchsorted_with_sorter():
    row, order = np.array([3, 1, 2], np.int32), np.array([1, 2, 0], np.int32)
    queries = np.array([0, 2, 5], np.int32)
    np.testing.assert_array_equal(
        jnp.searchsorted(row, queries, sorter=order), np.searchsorted(row, queries, sorter=order)
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jnp.diff(1.0), ValueError, r"diff: needs an array of rank 1 or more, not f32\[\]~"),
        (lambda: jnp.diff(X, n=-1), ValueError, "diff: n, the number of differences, must not be negative: -1"),
        (lambda: jnp.ediff1d(X > 0), ValueError, "ediff1d: booleans cannot be subtracted"),
        (lambda: jnp.gradient(X[:1]), ValueError, r"gradient: dim 0 of f32\[1,5\] has fewer than 2 elements"),
        (lambda: jnp.gradient(X, 1, 2, 3), TypeError, "gradient: 3 spacings for 2 axes"),
        (
            lambda: jnp.gradient(X, XP, axis=0),
            ValueError,
            r"gradient: the spacing along dim 0 of f32\[4,5\] must be a scalar or a 1-D array of size 4, not f32\[5\]",
        ),
        (lambda: jnp.gradient(X, edge_order=2), NotImplementedError, "edge_order is not supported .*leave it out"),
        (
            lambda: jnp.trapezoid(X, np.ones((1, 2, 3))),
            ValueError,
            "trapezoid: x must be 1-D or of the rank of y, .*, not ",
        ),
        (lambda: jnp.unwrap(X > 0), ValueError, "unwrap: needs real numbers, not bool"),
        (lambda: jnp.interp(X, XP, X), ValueError, "interp: xp and fp must be 1-D arrays of the same size"),
        (lambda: jnp.interp(X, XP, XP, left="far"), ValueError, "interp: left must be a value or 'extrapolate'"),
        (lambda: jnp.interp(X, XP, XP, period=0), ValueError, "interp: period must not be 0"),
        (
            lambda: jnp.searchsorted(XP, X, method="guess"),
            ValueError,
            "searchsorted: method must be one of scan, .*, not 'guess'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
