"""Reductions along axes that are names give what JAX's give: values, dtypes and shapes."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

REDUCTIONS = {
    "sum": lambda np, x: np.sum(x, "i"),
    "sum of dims too": lambda np, x: np.sum(x, (0, "i")),
    "sum kept": lambda np, x: np.sum(x, axis=["i", -1], keepdims=True),
    "sum where": lambda np, x: np.sum(x, "i", where=x > 0, initial=2),
    "mean": lambda np, x: np.mean(x, "i"),
    "mean of dims too": lambda np, x: np.mean(x, ("i", 1), keepdims=True),
    "max": lambda np, x: np.max(x, "i"),
    "min of dims too": lambda np, x: np.min(x, (1, "i")),
    "var": lambda np, x: np.var(x, "i"),
    "var of fewer": lambda np, x: np.var(x, (0, "i"), ddof=1),
    "std": lambda np, x: np.std(x, "i"),
    "mean where": lambda np, x: np.mean(x, ("i", 1), where=x > 0),
    "var where": lambda np, x: np.var(x, "i", where=x > -5, keepdims=True),
    "std where, of fewer": lambda np, x: np.std(x, ("i", 0), where=np.arange(2) < 1, ddof=1),
    "var from a mean": lambda np, x: np.var(x, "i", mean=np.mean(x, "i")),
    "count": lambda np, x: np.count_nonzero(x > 0, (0, "i"), keepdims=True),
}
SHARES = {
    "logsumexp": lambda nn, x: nn.logsumexp(x, "i"),
    "logsumexp of dims too": lambda nn, x: nn.logsumexp(x, ("i", 0), keepdims=True),
    "logsumexp of weights": lambda nn, x: nn.logsumexp(x, "i", b=abs(x) + 1),
    "logsumexp with signs": lambda nn, x: nn.logsumexp(x, (1, "i"), b=x, return_sign=True),
    "logsumexp where": lambda nn, x: nn.logsumexp(x, "i", where=x > -5),
    "softmax": lambda nn, x: nn.softmax(x, "i"),
    "softmax of dims too": lambda nn, x: nn.softmax(x, ("i", -1)),
    "log_softmax": lambda nn, x: nn.log_softmax(x, "i"),
    "standardize": lambda nn, x: nn.standardize(x, "i"),
}


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "float16"])
def test_reductions_like_jax(dtype):
    x = (10 * np.random.default_rng(0).normal(size=(4, 3, 2))).astype(dtype)

    def all_of_them(np, x):
        return {name: reduce(np, x) for name, reduce in REDUCTIONS.items()}

    ours = sw.jit(sw.vmap(lambda x: all_of_them(jnp, x), axis_name="i"))(x)
    theirs = jax.jit(jax.vmap(lambda x: all_of_them(jax.numpy, x), axis_name="i"))(x)
    for name in REDUCTIONS:
        agree(ours[name], theirs[name], name)


def agree(ours, theirs, name):
    found, expected = np.asarray(ours), np.asarray(theirs)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
    rtol = 2e-3 if found.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol, err_msg=name)


def test_shares_like_jax():
    """Softmax and its kin: large numbers too."""
    x = (30 * np.random.default_rng(0).normal(size=(4, 3, 2))).astype(np.float32)

    def all_of_them(library):
        shares = library.vmap(lambda x: {name: share(library.nn, x) for name, share in SHARES.items()}, axis_name="i")
        return library.jit(shares)(x)

    ours, theirs = all_of_them(sw), all_of_them(jax)
    for name in SHARES:
        for found, expected in zip(sw.tree.leaves(ours[name]), jax.tree.leaves(theirs[name]), strict=True):
            agree(found, expected, name)


@pytest.mark.parametrize("share", [sw.nn.softmax, sw.nn.log_softmax])
def test_derivatives_of_shares(share):
    """As those along a dim in place of the name: JAX has none."""
    x, w = np.random.default_rng(0).normal(size=(2, 4, 3, 2)).astype(np.float32)
    along_name = sw.grad(lambda x: (sw.vmap(lambda x: share(x, ("i", 0)), axis_name="i")(x) * w).sum())
    along_dim = sw.grad(lambda x: (share(x, (0, 1)) * w).sum())
    np.testing.assert_allclose(along_name(x), along_dim(x), rtol=1e-5, atol=1e-6)


def test_nothing_to_sum():
    gone = np.full((4, 2), -np.inf, np.float32)
    assert (np.asarray(sw.vmap(lambda x: sw.nn.logsumexp(x, "i"), axis_name="i")(gone)) == -np.inf).all()


def test_an_axis_that_no_function_knows():
    with pytest.raises(TypeError, match="prod: an axis is an int, or None for all; here it is 'i'"):
        sw.vmap(lambda x: jnp.prod(x, "i"), axis_name="i")(np.ones((4, 3)))
