"""Compare functions of named axes with JAX: values, dtypes and gradients."""

from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

HERE = SimpleNamespace(jax=sw, np=sw.numpy, lax=sw.lax)
THERE = SimpleNamespace(jax=jax, np=jax.numpy, lax=jax.lax)
RNG = np.random.default_rng(1)

# Each accepts the library and a member's array of shape (4, 2); the axis `i` has 4 members, `j` 3.
ONE = {
    "psum": lambda m, x: m.lax.psum(x * x, "i") * x,
    "psum of trees": lambda m, x: m.lax.psum((x, x.sum()), "i")[1] * x,
    "psum of numbers": lambda m, x: x * m.lax.psum(1, "i") + m.lax.psum(2.0, "i"),
    "psum of what is not mapped": lambda m, x: m.lax.psum(m.np.ones(2), "i") * x,
    "pmean": lambda m, x: m.np.exp(x - m.lax.pmean(x, "i")),
    "gather": lambda m, x: m.lax.all_gather(x, "i").sum(axis=0) * x,
    "gather last": lambda m, x: m.lax.all_gather(x, "i", axis=-1) * x[:, :, None],
    "gather tiled": lambda m, x: m.lax.all_gather(x * x, "i", axis=1, tiled=True),
    "scatter": lambda m, x: m.lax.psum_scatter(x * x, "i"),
    "scatter tiled": lambda m, x: m.lax.psum_scatter(x * x, "i", tiled=True) * x,
    "exchange": lambda m, x: m.lax.all_to_all(x * x, "i", 0, 1),
    "exchange tiled": lambda m, x: m.lax.all_to_all(x * x, "i", 0, 1, tiled=True),
    "swap": lambda m, x: m.lax.pswapaxes(x, "i", 0) * x,
    "permute": lambda m, x: m.lax.ppermute(x, "i", [(0, 2), (2, 1), (1, 3), (3, 0)]) * x,
    "shuffle": lambda m, x: m.lax.pshuffle(x, "i", [3, 1, 0, 2]) * x,
    "index": lambda m, x: x * m.lax.axis_index("i") * m.lax.axis_size("i"),
    "jit": lambda m, x: m.jax.jit(lambda y: m.lax.psum(y * y, "i"))(x) * x,
    "checkpoint": lambda m, x: m.jax.checkpoint(lambda y: m.np.exp(m.lax.pmean(y * y, "i")))(x) * x,
    "grad": lambda m, x: m.jax.grad(lambda y: (m.lax.psum(y * y, "i") * y).sum())(x),
}
TWO = {
    "psum i": lambda m, x: m.lax.psum(x * x, "i") * x,
    "psum j": lambda m, x: m.lax.psum(x * x, "j") * x,
    "psum both": lambda m, x: m.lax.psum(x * x, ("i", "j")) * x,
    "pmean of psum": lambda m, x: m.lax.pmean(m.lax.psum(x * x, "j") * x, "i") * x,
    "gather one of the other": lambda m, x: m.lax.psum(m.lax.all_gather(x, "i", axis=1), "j") * x[:, None],
    "index": lambda m, x: x * (m.lax.axis_index("i") * 10 + m.lax.axis_index("j")),
    "index both": lambda m, x: x * m.lax.axis_index(("i", "j")),
    "grad": lambda m, x: m.jax.grad(lambda y: (m.lax.psum(y * m.lax.pmean(y, "j"), "i") * y).sum())(x),
}


def close(ours, theirs):
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-5)


def compare(mapped, x):
    close(mapped(HERE)(x), mapped(THERE)(x))
    loss = {m.jax: (lambda y, m=m: (mapped(m)(y) * mapped(m)(y)).sum()) for m in (HERE, THERE)}
    close(sw.jit(sw.grad(loss[sw]))(x), jax.jit(jax.grad(loss[jax]))(x))


@pytest.mark.table(default=8)
@pytest.mark.parametrize("name", ONE)
def test_one_axis(name):
    x = RNG.normal(size=(4, 4, 2)).astype(np.float32)
    compare(lambda m: m.jax.vmap(lambda y: ONE[name](m, y), in_axes=2, out_axes=1, axis_name="i"), np.moveaxis(x, 0, 2))


@pytest.mark.table(default=3)
@pytest.mark.parametrize("name", TWO)
def test_two_axes(name):
    x = RNG.normal(size=(4, 3, 2)).astype(np.float32)

    def mapped(m):
        inner = m.jax.vmap(lambda y: TWO[name](m, y), axis_name="j")
        return m.jax.vmap(inner, axis_name="i")

    compare(mapped, x)


@pytest.mark.parametrize("dtype", ["int32", "int8", "bool", "float16", "complex64"])
@pytest.mark.parametrize("function", ["psum", "pmean", "pmax", "pmin"])
def test_dtypes(function, dtype):
    x = np.array([0, 1, 1, 0]).astype(dtype)
    ours, theirs = (
        m.jax.vmap(lambda y, m=m: getattr(m.lax, function)(y, "i"), axis_name="i")(x) for m in (HERE, THERE)
    )
    close(ours, theirs)
