"""Compare averages, variances, covariances and NaN-skipping reductions with numpy and JAX; check their collectives."""

import warnings

import ml_dtypes
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
    vmap_like_loop,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)
WITH_NAN = np.where(RNG.random((3, 4)) < 0.3, np.nan, X).astype(np.float32)
NAN_ROW = np.array([[1.0, 2.0], [np.nan, np.nan]], np.float32)
Z = (X + 1j * X[::-1]).astype(np.complex64)
INTEGERS = RNG.integers(-9, 9, (3, 4)).astype(np.int32)
WEIGHTS = np.array([1.0, 2.0, 0.5, 3.0], np.float32)
MASK = X > -0.3
REDUCTIONS = ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "nanmedian"]
AXES = [{}, {"axis": 0}, {"axis": -1, "keepdims": True}]
CASES = [
    *(Case("count_nonzero", (INTEGERS,), options) for options in AXES),
    Case("count_nonzero", (X,), {"axis": (0, 1)}),
    *(Case("ptp", (X,), options) for options in AXES),
    *(Case("average", (X,), options) for options in AXES),
    Case("average", (X,), {"axis": 1, "weights": WEIGHTS, "returned": True}),
    Case("average", (X,), {"weights": np.abs(X), "keepdims": True}),
    Case("average", (X,), {"axis": (1, 0), "weights": np.abs(X.T).copy()}),
    Case("cov", (X,)),
    Case("cov", (X, X[::-1].copy()), {"rowvar": False, "bias": True}),
    Case("cov", (X[0], X[1]), {"ddof": 0}),
    Case("cov", (X,), {"fweights": np.array([1, 2, 3, 1], np.int32), "aweights": WEIGHTS}),
    Case("cov", (X,), {"aweights": WEIGHTS, "ddof": 0}),
    Case("cov", (X,), {"fweights": np.array([1, 2, 3, 1], np.int32)}),
    Case("cov", (Z,)),
    Case("corrcoef", (X,)),
    Case("corrcoef", (X[0], X[1])),
    Case("corrcoef", (Z,)),
    *(Case(name, (WITH_NAN,), options) for name in REDUCTIONS for options in AXES),
    *(Case(name, (INTEGERS,), {"axis": 0}) for name in REDUCTIONS),
    Case("nanmax", (WITH_NAN,), {"initial": 0.5, "where": MASK}, smooth=False),
    Case("nanmin", (WITH_NAN,), {"initial": 0.5, "axis": 1}, smooth=False),
    Case("nansum", (WITH_NAN,), {"initial": 2.0, "where": MASK}),
    Case("nanmean", (WITH_NAN,), {"where": MASK}),
    Case("nanvar", (WITH_NAN,), {"ddof": 1, "where": MASK}),
    *(Case(name, (WITH_NAN,), options) for name in ("nanargmax", "nanargmin") for options in AXES),
    *(
        Case("nanquantile", (WITH_NAN, q), options)
        for q in (0.3, np.array([0.0, 0.6, 1.0], np.float32))
        for options in AXES
    ),
    Case("nanpercentile", (WITH_NAN, 30.0), {"axis": 1, "method": "higher"}),
    Case("quantile", (X, 0.4), {"method": "inverted_cdf", "axis": 1}),
    Case("quantile", (X, 0.4), {"method": "inverted_cdf", "axis": 1, "weights": WEIGHTS}),
    Case("percentile", (X, np.array([10.0, 90.0], np.float32)), {"axis": (0, 1), "keepdims": True}),
    *(Case(name, (X,), {"axis": 0, "where": MASK | (X < 9)}) for name in ("var", "std")),
    Case("var", (X,), {"axis": 1, "mean": np.zeros((3, 1), np.float32)}),
    Case("std", (X,), {"correction": 1}),
]
ONLY_LIKE_JAX = [
    *(Case(name, (NAN_ROW,), {"axis": 1}, smooth=False) for name in [*REDUCTIONS, "nanargmax", "nanargmin"]),
    *(Case(name, (WITH_NAN.astype(ml_dtypes.bfloat16),), {"axis": 1}) for name in REDUCTIONS),
    *(
        Case(name, (x,))
        for name in ("average", "ptp")
        for x in (np.array([1, -128, 127], np.int8), X[0].astype(np.float16))
    ),
    Case("average", (INTEGERS,), {"axis": 0, "weights": np.array([1, 2, 3], np.int32), "returned": True}),
    Case("cov", (INTEGERS,)),
    Case("cov", (X[0, :1],)),
    Case("cov", (np.zeros(0, np.float32),)),
    Case("corrcoef", (X[0],)),
    Case("sum", (np.array([1, 2], np.int8),), {"promote_integers": False}),
    Case("prod", (np.array([1, 2], np.uint8),), {"promote_integers": False}),
    Case("nanmean", (INTEGERS,), {"dtype": np.float16}),
    Case("nansum", (WITH_NAN,), {"dtype": np.float16}),
]


@pytest.mark.table(default=1)
@PARTS
def test_values_match_numpy_and_jax(part):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values_like_both(jnp, CASES[part], ONLY_LIKE_JAX[part])


@pytest.mark.table(default=1)
@pytest.mark.jax
@PARTS
def test_gradients_match_jax(part):
    jax = pytest.importorskip("jax")
    smooth = [case for case in CASES if case.args[0].dtype == np.float32 and case.name != "nanprod"]
    gradients_like(jnp, jax.numpy, smooth[::4][part], jax)


@pytest.mark.table(default=1)
@PARTS
def test_vmap_matches_a_loop(part):
    vmap_like_loop(jnp, CASES[::6][part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_mesh_matches_one_device(mesh, which, part):
    cases = []
    for rows, columns in ((16, 8), (13, 7)):
        x = RNG.normal(size=(rows, columns)).astype(np.float32)
        with_nan = np.where(x > 1, np.nan, x).astype(np.float32)
        cases += [Case(name, (with_nan,), {"axis": axis}) for name in REDUCTIONS for axis in (None, 0)]
        cases += [Case(name, (with_nan,), {"axis": 1}) for name in ("nanargmax", "count_nonzero", "nanmedian")]
        cases += [Case("cov", (x,)), Case("cov", (x,), {"rowvar": False}), Case("corrcoef", (x,)), Case("ptp", (x,))]
        cases += [Case("average", (x,), {"axis": 0, "weights": np.abs(x)})]
    mesh_like_one_device(mesh, jnp, cases[part], which)


def ones_with_spec(mesh, shape, *spec):
    return sw.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P(*spec)))


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    "call",
    [
        jnp.count_nonzero,
        jnp.nansum,
        jnp.nanmean,
        jnp.nanvar,
        lambda x: jnp.average(x, weights=x),
        lambda x: jnp.cov(x, rowvar=False),
        lambda x: jnp.corrcoef(x, rowvar=False),
    ],
    ids=["count_nonzero", "nansum", "nanmean", "nanvar", "average", "cov", "corrcoef"],
)
def test_statistics_only_all_reduce_small_sums(mesh, call):
    """With rows sharded over 4 devices, the bytes sent do not depend on the number of rows."""
    costs = [sw.explain(call)(ones_with_spec(mesh, (rows, 8), "data")) for rows in (64, 4096)]
    assert set(costs[1].counts()) <= {"all_reduce"}
    assert costs[0].wire_bytes == costs[1].wire_bytes
    assert costs[1].wire_bytes <= 2 * 4 * (64 + 8 + 2)  # at most a matrix, a row and a scalar


def test_medians_along_an_unsharded_dim_need_no_collectives(mesh):
    x = ones_with_spec(mesh, (64, 8), ("data", "model"))
    assert sw.explain(lambda x: (jnp.median(x, 1), jnp.nanquantile(x, 0.3, 1)))(x).counts() == {}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: jnp.average(X, weights=WEIGHTS),
            ValueError,
            r"average: weights f32\[4\] do not have the shape of f32\[3,4\]",
        ),
        (
            lambda: jnp.average(X, 0, WEIGHTS),
            ValueError,
            r"average: weights f32\[4\] do not have the sizes of f32\[3,4\] along axis 0",
        ),
        (lambda: jnp.cov(np.ones((1, 1, 1))), ValueError, "cov: observations must have 1 or 2 dims"),
        (lambda: jnp.cov(X, ddof=0.5), ValueError, "cov: ddof must be an integer, not 0.5"),
        (lambda: jnp.cov(X, fweights=WEIGHTS), TypeError, "cov: fweights must be integers"),
        (lambda: jnp.cov(X, aweights=WEIGHTS[:2]), ValueError, "cov: aweights must have one weight for each of 4"),
        (lambda: jnp.corrcoef(np.ones((1, 1, 1))), ValueError, "corrcoef: observations must have 1 or 2 dims"),
        (
            lambda: jnp.var(X, ddof=1, correction=1),
            ValueError,
            "var: ddof and correction are the same parameter; pass only one of them",
        ),
        (
            lambda: jnp.nanquantile(X, 0.5, method="best"),
            ValueError,
            "nanquantile: method must be one of linear, .*, not 'best'",
        ),
        (lambda: jnp.quantile(X, 0.5, weights=X), NotImplementedError, "quantile: weights need method 'inverted_cdf'"),
        (lambda: jnp.quantile(Z, 0.5), ValueError, "quantile: complex numbers have no order"),
        (
            lambda: jnp.nanmax(X, where=MASK),
            ValueError,
            "max: `where` needs `initial`, because it may mask out all elements",
        ),
        (lambda: jnp.nansum(X, out=1), NotImplementedError, "sum: arrays are immutable"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
