"""Cumulative sums and products, sorting and quantiles against numpy, on one device and sharded."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.random.default_rng(0).normal(size=(9, 14)).astype(np.float32)


def placements(mesh):
    """`X` on one device, and with several shardings."""
    specs = (P("data"), P(None, "data"), P("model", "data"), P(("data", "model")))
    return [X, *(sw.device_put(X, NamedSharding(mesh, spec)) for spec in specs)]


CALLS = {
    "cumsum": lambda numpy, x: numpy.cumsum(x),
    "cumsum 0": lambda numpy, x: numpy.cumsum(x, 0),
    "cumsum -1": lambda numpy, x: numpy.cumsum(x, axis=-1),
    "cumprod 1": lambda numpy, x: numpy.cumprod(x, 1),
    "nancumsum": lambda numpy, x: numpy.nancumsum(numpy.where(x > 1, numpy.nan, x), 1),
    "nancumprod": lambda numpy, x: numpy.nancumprod(numpy.where(x > 1, numpy.nan, x), 0),
    "sort": lambda numpy, x: numpy.sort(x),
    "sort 0": lambda numpy, x: numpy.sort(x, 0),
    "sort None": lambda numpy, x: numpy.sort(x, None),
    "argsort": lambda numpy, x: numpy.argsort(x),
    "argsort 0": lambda numpy, x: numpy.argsort(x, 0),
    "lexsort": lambda numpy, x: numpy.lexsort((x, x > 0)),
    "lexsort 0": lambda numpy, x: numpy.lexsort((x, x > 0), 0),
    "median": lambda numpy, x: numpy.median(x),
    "median 0": lambda numpy, x: numpy.median(x, 0),
    "median kept": lambda numpy, x: numpy.median(x, (1,), keepdims=True),
    "quantile": lambda numpy, x: numpy.quantile(x, 0.3, 1),
    "quantiles": lambda numpy, x: numpy.quantile(x, numpy.array([0.0, 0.25, 1.0]), 0),
    "percentile": lambda numpy, x: numpy.percentile(x, 30.0, (0, 1)),
    "searchsorted": lambda numpy, x: numpy.searchsorted(numpy.sort(x, None), x),
    "searchsorted right": lambda numpy, x: numpy.searchsorted(numpy.sort(x, None), x[::2], side="right"),
}


@pytest.mark.table(default=4)
@pytest.mark.parametrize("name", CALLS)
def test_like_numpy(mesh, name):
    expected = CALLS[name](np, X)
    for x in placements(mesh):
        actual = sw.jit(lambda x: CALLS[name](jnp, x))(x)
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantile_methods_like_numpy(method):
    x = np.array([4.0, 1.0, 3.0, 2.0], np.float32)
    q = np.array([0, 0.1, 0.3, 0.6, 1], np.float32)
    np.testing.assert_allclose(jnp.quantile(x, q, method=method), np.quantile(x, q, method=method), rtol=1e-6)


def test_median_of_nan_and_infinities():
    x = np.array([[1, np.nan, 2], [np.inf, 1, np.inf], [-np.inf, 0, 5]], np.float32)
    np.testing.assert_array_equal(jnp.median(x, 1), [np.nan, np.inf, 0])
    assert jnp.median(jnp.array([1, 2, 3, 4])).dtype == np.float32
    assert jnp.median(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.table(default=2)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("count", [40, 3000], ids=["compare all", "binary search"])
def test_searchsorted_with_ties_and_nan(side, count):
    """Small arrays compare all pairs, large ones use a binary search."""
    rng = np.random.default_rng(0)
    row = np.sort(np.concatenate([rng.integers(0, 20, count), [np.nan, np.inf]])).astype(np.float32)
    queries = np.concatenate([rng.integers(-2, 22, count), [np.nan, -np.inf, np.inf]]).astype(np.float32)
    np.testing.assert_array_equal(jnp.searchsorted(row, queries, side=side), np.searchsorted(row, queries, side=side))
    integers = row[:-2].astype(np.int32)
    np.testing.assert_array_equal(jnp.searchsorted(integers, 7, side=side), np.searchsorted(integers, 7, side=side))


def test_descending_argsort_is_stable():
    x = np.array([2, 3, 2, np.nan, 3], np.float32)
    assert jnp.argsort(x, descending=True).tolist() == [3, 1, 4, 0, 2]
    np.testing.assert_array_equal(jnp.sort(x, descending=True), [np.nan, 3, 3, 2, 2])


def test_partition_and_argpartition():
    partitioned = np.asarray(jnp.partition(X, 4))
    assert (partitioned[:, :4] <= partitioned[:, 4:5]).all()
    assert (partitioned[:, 5:] >= partitioned[:, 4:5]).all()
    indices = np.asarray(jnp.argpartition(X, 4, 0))
    np.testing.assert_array_equal(np.take_along_axis(X, indices, 0), np.sort(X, 0))


def test_cumulative_functions_include_the_initial_element():
    assert jnp.cumulative_sum(jnp.arange(4), include_initial=True).tolist() == [0, 0, 1, 3, 6]
    assert jnp.cumulative_prod(jnp.arange(1, 4)).tolist() == [1, 2, 6]
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(
        jnp.cumulative_prod(x, axis=0, include_initial=True), np.cumulative_prod(x, axis=0, include_initial=True)
    )


def test_cumsum_of_booleans_counts():
    counts = jnp.cumsum(np.array([True, False, True]))
    assert (counts.tolist(), counts.dtype) == ([1, 1, 2], np.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jnp.cumulative_sum(X), r"cumulative_sum: f32\[9,14\] has rank 2, so `axis` is required"),
        (lambda: jnp.partition(X, 14), r"partition: kth=14 is out of bounds for axis -1 of f32\[9,14\]"),
        (lambda: jnp.searchsorted(X, 1.0), r"searchsorted: a must have rank 1, not f32\[9,14\]"),
        (
            lambda: jnp.searchsorted(X[0], 1.0, side="middle"),
            "searchsorted: side must be 'left' or 'right', not 'middle'",
        ),
        (
            lambda: jnp.quantile(X, 0.5, method="best"),
            "quantile: method must be one of linear, lower, higher, .*, not 'best'",
        ),
        (lambda: jnp.sort(1.0), "sort: axis -1 does not exist in an array of rank 0"),
        (lambda: jnp.median(np.ones((0, 3), np.float32)), r"median: dims \(0, 1\) of f32\[0,3\] have no elements"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
