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
}


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "float16"])
def test_reductions_like_jax(dtype):
    x = (10 * np.random.default_rng(0).normal(size=(4, 3, 2))).astype(dtype)

    def all_of_them(np, x):
        return {name: reduce(np, x) for name, reduce in REDUCTIONS.items()}

    ours = sw.jit(sw.vmap(lambda x: all_of_them(jnp, x), axis_name="i"))(x)
    theirs = jax.jit(jax.vmap(lambda x: all_of_them(jax.numpy, x), axis_name="i"))(x)
    for name in REDUCTIONS:
        found, expected = np.asarray(ours[name]), np.asarray(theirs[name])
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        rtol = 2e-3 if found.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol, err_msg=name)
