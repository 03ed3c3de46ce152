"""Cumulative reductions, sort and top_k against JAX: values, dtypes, weak types and gradients."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

NAMES = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int8, np.uint8, np.complex64)


def same(ours, theirs, rtol=1e-5):
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (got.shape, got.dtype, got.weak_type) == (want.shape, want.dtype, want.weak_type)
        wide = [np.asarray(x).astype(np.complex128) for x in (got, want)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=rtol)


@pytest.mark.table(default=5)
@pytest.mark.parametrize(
    ("name", "dtype"),
    # Our cumlogsumexp accepts only floats. JAX rejects integers as well.
    [(name, dtype) for name in NAMES for dtype in (DTYPES[:3] if name == "cumlogsumexp" else DTYPES)],
    ids=str,
)
def test_cumulative_reductions(name, dtype):
    x = np.random.default_rng(0).integers(1, 4, (3, 11)).astype(dtype)
    # JAX rounds narrow floats at every step.
    rtol = 1e-5 if np.dtype(dtype).itemsize >= 4 else 5e-2

    def calls(lax, numpy):
        function = getattr(lax, name)
        return lambda x: [function(x), function(x, 1), function(x, 1, True), function(numpy.full((3,), 2.0))]

    same(sw.jit(calls(lax, jnp))(x), jax.jit(calls(jax.lax, jax.numpy))(x), rtol)


@pytest.mark.table(default=2)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_cumulative_reductions(name, reverse):
    x = np.random.default_rng(0).uniform(-1.5, 1.5, (13, 3)).astype(np.float32)

    def loss(lax):
        return lambda x: (getattr(lax, name)(x, 0, reverse) ** 2).sum()

    same(sw.grad(loss(lax))(x), jax.grad(loss(jax.lax))(x), 1e-4)
    same(sw.jvp(loss(lax), (x,), (x,)), jax.jvp(loss(jax.lax), (x,), (x,)), 1e-4)


SPECIAL = np.array([[0.0, np.nan, -0.0, np.inf, 1.0, -np.inf], [-0.0, 0.0, 2.0, np.nan, 2.0, np.nan]], np.float32)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.complex64])
def test_order_of_special_values(dtype):
    x = SPECIAL.astype(dtype)
    if dtype == np.complex64:
        x.imag = np.roll(SPECIAL, 1)
    index = np.broadcast_to(np.arange(6, dtype=np.int32), x.shape)

    def calls(lax):
        return lambda x, i: [lax.sort(x), lax.sort((x, i)), lax.sort((i // 2, x, i), num_keys=2), lax.sort((x, i), 0)]

    same(sw.jit(calls(lax))(x, index), jax.jit(calls(jax.lax))(x, index))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.int32, np.uint8, np.bool_])
def test_top_k(dtype):
    x = (np.where(np.isnan(SPECIAL), 3, np.clip(SPECIAL, -2, 2)) if dtype in (np.int32, np.uint8) else SPECIAL).astype(
        dtype
    )

    def calls(lax):
        return lambda x: [lax.top_k(x, 0), lax.top_k(x, 2), lax.top_k(x, 6), lax.top_k(x, 1, axis=0)]

    same(sw.jit(calls(lax))(x), jax.jit(calls(jax.lax))(x))


def test_gradients_of_sort_and_top_k():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (5, 7)).astype(np.float32), rng.normal(size=(5, 7)).astype(np.float32)
    weight = rng.normal(size=(5, 7)).astype(np.float32)

    def losses(lax, numpy):
        return [
            lambda x, y: (lax.sort(x) * weight).sum(),
            lambda x, y: (lax.sort((x, y), 0)[1] * weight).sum(),
            lambda x, y: sum((z * weight).sum() for z in lax.sort((x, y), num_keys=2)),
            lambda x, y: (lax.top_k(x * y, 3)[0] * weight[:, :3]).sum(),
        ]

    for ours, theirs in zip(losses(lax, jnp), losses(jax.lax, jax.numpy), strict=True):
        same(sw.jit(sw.grad(ours, (0, 1)))(x, y), jax.jit(jax.grad(theirs, (0, 1)))(x, y))


def test_vmap():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3, 7)).astype(np.float32), rng.normal(size=(3, 7)).astype(np.float32)

    def calls(vmap, lax):
        return lambda x, y: [
            vmap(lambda x: lax.cumprod(x, 1), 1)(x),
            vmap(lambda x: lax.top_k(x, 2), 2)(x),
            vmap(lambda x, y: lax.sort((y, x)), (0, None))(x, y),
            vmap(lambda x, y: lax.sort((x, y), 0), (1, 1), 1)(x[0], y),
        ]

    ours, theirs = sw.jit(calls(sw.vmap, lax))(x, y), jax.jit(calls(jax.vmap, jax.lax))(x, y)
    same(jax.tree.leaves(ours), jax.tree.leaves(theirs))
