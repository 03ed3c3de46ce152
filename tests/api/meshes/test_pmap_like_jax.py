"""Compare pmap with JAX's: values, dtypes, shapes, and which device holds which shard."""

from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw
from tests.device_shards import shard_bounds

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

HERE = SimpleNamespace(jax=sw, np=sw.numpy, lax=sw.lax)
THERE = SimpleNamespace(jax=jax, np=jax.numpy, lax=jax.lax)
RNG = np.random.default_rng(2)
X = RNG.normal(size=(4, 4, 3)).astype(np.float32)
W = RNG.normal(size=(3,)).astype(np.float32)


def same(program, placed=True):
    """Check that the program returns the same arrays on the same devices with either library."""
    ours, theirs = sw.tree.leaves(program(HERE)), jax.tree.leaves(program(THERE))
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-4, atol=1e-5)
        if placed:
            assert shard_bounds(mine) == shard_bounds(other)


def test_all_collectives():
    def on_one(m, x):
        lax, index = m.lax, m.lax.axis_index("i")
        return {
            "psum": lax.psum(x, "i"),
            "psum of a number": lax.psum(1, "i"),
            "psum in groups": lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]]),
            "pmean": lax.pmean(x * x, "i"),
            "pmax": lax.pmax(x, "i"),
            "pmin": lax.pmin(x, "i"),
            "gather": lax.all_gather(x, "i"),
            "gather tiled": lax.all_gather(x, "i", axis=1, tiled=True),
            "scatter": lax.psum_scatter(x, "i"),
            "exchange": lax.all_to_all(x, "i", 0, 0),
            "permute": lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)]),
            "shuffle": lax.pshuffle(x, "i", [2, 0, 3, 1]),
            "swap": lax.pswapaxes(x, "i", 0),
            "index": index,
            "branch": lax.cond(index > 1, lambda y: y * 2, lambda y: y + 1, x),
            "loop": lax.scan(lambda c, _: (m.np.sin(c + lax.pmean(c, "i")), c.sum()), x, None, length=3),
            "until": lax.while_loop(lambda c: c.sum() < 9.0 * (1 + index), lambda c: c + 0.5, x),
            "per row": m.jax.vmap(lambda row: row * lax.psum(row, ("i", "r")), axis_name="r")(x),
            "narrow": x.astype("bfloat16"),
            "integer": (x * 10).astype("int8"),
            "a constant": 3.0,
        }

    same(lambda m: m.jax.pmap(lambda x: on_one(m, x), axis_name="i")(X))


AXES = {
    "first": (0, {"x": X}, np.stack([W] * 4)),
    "one whole": ((1, None), {"x": X}, W),
    "in a tree": (({"x": 2}, 0), {"x": np.moveaxis(X, 0, 2)}, np.stack([W] * 4)),
}


@pytest.mark.parametrize("name", AXES)
def test_axes(name):
    in_axes, p, w = AXES[name]

    def mapped(m):
        def f(p, w):
            return {"a": p["x"] * w.sum(), "b": m.lax.psum(w, "i")}

        return m.jax.pmap(f, "i", in_axes=in_axes, out_axes={"a": 1, "b": None})(p, w)

    same(mapped)


def test_derivatives_inside():
    def on_one(m, w, x):
        loss = lambda w: m.np.sin(x @ w).sum()  # noqa: E731

        @m.jax.custom_vjp
        def total(x):
            return m.lax.psum(x, "i")

        total.defvjp(lambda x: (total(x), x), lambda x, g: (g * 2 + m.lax.pmean(x, "i"),))
        return (
            m.jax.value_and_grad(loss)(w),
            m.jax.grad(lambda w: m.lax.psum(loss(w), "i"))(w),
            m.jax.grad(lambda w: m.lax.pmean(loss(w), "i"))(w),
            m.jax.grad(lambda w: (m.lax.all_gather(w * x, "i") ** 2).sum())(w),
            m.jax.grad(lambda w: m.lax.ppermute(loss(w), "i", [(0, 1), (3, 2)]))(w),
            m.jax.grad(lambda w: total(loss(w)) ** 2)(w),
            m.jax.grad(m.jax.checkpoint(lambda w: m.lax.psum(m.np.exp(m.np.sin(x @ w)).sum(), "i")))(w),
            m.jax.jvp(lambda w: m.lax.psum(m.np.sin(x @ w), "i"), (w,), (w * 2,)),
            m.jax.hessian(lambda w: m.lax.pmean(loss(w), "i"))(w),
        )

    same(lambda m: m.jax.pmap(lambda w, x: on_one(m, w, x), "i", in_axes=(None, 0))(W, X))


def test_derivatives_outside():
    def loss(m, w, x, out_axes):
        def f(w, x):
            return (
                m.lax.psum(m.np.sin(x @ w).sum(), "i") if out_axes is None else m.np.cos(x @ w) * m.lax.psum(w, "i")[0]
            )

        return m.jax.pmap(f, "i", in_axes=(None, 0), out_axes=out_axes)(w, x).sum()

    same(lambda m: m.jax.jit(m.jax.value_and_grad(lambda w: loss(m, w, X, 0)))(W))
    same(lambda m: m.jax.jit(m.jax.grad(lambda w, x: loss(m, w, x, None), argnums=(0, 1)))(W, X))


def test_in_jit_vmap_and_scan():
    def mapped(m):
        return m.jax.pmap(lambda x: m.np.sin(x) + m.lax.pmean(x, "i"), "i")

    same(lambda m: m.jax.jit(lambda x: mapped(m)(x * 2) + 1)(X))
    same(lambda m: m.jax.vmap(mapped(m), in_axes=1)(X))
    same(lambda m: m.jax.jit(lambda x: m.lax.scan(lambda c, _: (mapped(m)(c), c[0, 0]), x, None, length=3))(X), False)


def test_devices():
    same(lambda m: m.jax.pmap(lambda x: x + m.lax.axis_index("i"), "i", devices=m.jax.devices()[7:3:-1])(X))
    same(lambda m: m.jax.pmap(lambda x: x, devices=m.jax.devices()[2:])(X))
    same(lambda m: m.jax.pmap(lambda x: x * 2)(np.arange(8)))
