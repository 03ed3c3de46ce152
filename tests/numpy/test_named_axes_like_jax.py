"""Reductions along named axes: values, dtypes and shapes like JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

REDUCTIONS = {
    "sum": lambda np, x: np.sum(x, "i"),
    "sum over dims too": lambda np, x: np.sum(x, (0, "i")),
    "sum, keepdims": lambda np, x: np.sum(x, axis=["i", -1], keepdims=True),
    "sum where": lambda np, x: np.sum(x, "i", where=x > 0, initial=2),
    "mean": lambda np, x: np.mean(x, "i"),
    "mean over dims too": lambda np, x: np.mean(x, ("i", 1), keepdims=True),
    "max": lambda np, x: np.max(x, "i"),
    "min over dims too": lambda np, x: np.min(x, (1, "i")),
    "var": lambda np, x: np.var(x, "i"),
    "var with ddof": lambda np, x: np.var(x, (0, "i"), ddof=1),
    "std": lambda np, x: np.std(x, "i"),
    "mean where": lambda np, x: np.mean(x, ("i", 1), where=x > 0),
    "var where": lambda np, x: np.var(x, "i", where=x > -5, keepdims=True),
    "std where, with ddof": lambda np, x: np.std(x, ("i", 0), where=np.arange(2) < 1, ddof=1),
    "var with a given mean": lambda np, x: np.var(x, "i", mean=np.mean(x, "i")),
    "count": lambda np, x: np.count_nonzero(x > 0, (0, "i"), keepdims=True),
}
NORMALIZERS = {
    "logsumexp": lambda nn, x: nn.logsumexp(x, "i"),
    "logsumexp over dims too": lambda nn, x: nn.logsumexp(x, ("i", 0), keepdims=True),
    "logsumexp with weights": lambda nn, x: nn.logsumexp(x, "i", b=abs(x) + 1),
    "logsumexp with signs": lambda nn, x: nn.logsumexp(x, (1, "i"), b=x, return_sign=True),
    "logsumexp where": lambda nn, x: nn.logsumexp(x, "i", where=x > -5),
    "softmax": lambda nn, x: nn.softmax(x, "i"),
    "softmax over dims too": lambda nn, x: nn.softmax(x, ("i", -1)),
    "log_softmax": lambda nn, x: nn.log_softmax(x, "i"),
    "standardize": lambda nn, x: nn.standardize(x, "i"),
}


@pytest.mark.table(default=1)
@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "float16"])
def test_reductions_like_jax(dtype):
    x = (10 * np.random.default_rng(0).normal(size=(4, 3, 2))).astype(dtype)

    def reduce_all(np, x):
        return {name: reduce(np, x) for name, reduce in REDUCTIONS.items()}

    ours = sw.jit(sw.vmap(lambda x: reduce_all(jnp, x), axis_name="i"))(x)
    theirs = jax.jit(jax.vmap(lambda x: reduce_all(jax.numpy, x), axis_name="i"))(x)
    for name in REDUCTIONS:
        assert_matches(ours[name], theirs[name], name)


def assert_matches(ours, theirs, name):
    actual, expected = np.asarray(ours), np.asarray(theirs)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
    rtol = 2e-3 if actual.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.slow
def test_softmax_and_logsumexp_like_jax():
    """The inputs are so large that a naive softmax overflows."""
    x = (30 * np.random.default_rng(0).normal(size=(4, 3, 2))).astype(np.float32)

    def normalize_all(library):
        mapped = library.vmap(
            lambda x: {name: function(library.nn, x) for name, function in NORMALIZERS.items()}, axis_name="i"
        )
        return library.jit(mapped)(x)

    ours, theirs = normalize_all(sw), normalize_all(jax)
    for name in NORMALIZERS:
        for actual, expected in zip(sw.tree.leaves(ours[name]), jax.tree.leaves(theirs[name]), strict=True):
            assert_matches(actual, expected, name)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("function", [sw.nn.softmax, sw.nn.log_softmax])
def test_gradients_along_a_name_match_those_along_a_dim(function):
    """JAX does not differentiate these along axis names."""
    x, w = np.random.default_rng(0).normal(size=(2, 4, 3, 2)).astype(np.float32)
    along_name = sw.grad(lambda x: (sw.vmap(lambda x: function(x, ("i", 0)), axis_name="i")(x) * w).sum())
    along_dim = sw.grad(lambda x: (function(x, (0, 1)) * w).sum())
    np.testing.assert_allclose(along_name(x), along_dim(x), rtol=1e-5, atol=1e-6)


def test_logsumexp_of_minus_infinities():
    x = np.full((4, 2), -np.inf, np.float32)
    assert (np.asarray(sw.vmap(lambda x: sw.nn.logsumexp(x, "i"), axis_name="i")(x)) == -np.inf).all()


def test_prod_rejects_axis_names():
    with pytest.raises(TypeError, match="prod: an axis must be an int or None, not 'i'"):
        sw.vmap(lambda x: jnp.prod(x, "i"), axis_name="i")(np.ones((4, 3)))
