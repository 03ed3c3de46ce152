"""Random kernels of Pallas, with odd sizes and blocks: their Triton IR against their interpreted form."""

import random

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental import pallas as pl
from tests.compiler.kernels.run_kernel import run_on_triton

DTYPES = [
    np.dtype(dtype)
    for dtype in (np.float32, ml_dtypes.bfloat16, np.float16, np.int32, np.int8, np.uint8, np.uint32, np.int16)
]


def of_type(x, like):
    return x.astype(like.dtype)


# Functions of a tile, of the Refs and of the indices of the step. Results are converted to the dtype of the tile.
STEPS = [
    lambda v, x_ref, y_ref, i, j: v + of_type(v.sum(0, keepdims=True), v),
    lambda v, x_ref, y_ref, i, j: v - jnp.max(v, 1, keepdims=True),
    lambda v, x_ref, y_ref, i, j: jnp.where(v > 0, v, v * 3 + 1),
    lambda v, x_ref, y_ref, i, j: v + of_type(y_ref[...][:, None], v),
    lambda v, x_ref, y_ref, i, j: v + of_type(jnp.argmax(v, 1)[:, None], v),
    lambda v, x_ref, y_ref, i, j: v + of_type(jnp.argmin(v, 0)[None, :], v),
    lambda v, x_ref, y_ref, i, j: v + of_type(lax.fori_loop(0, 3, lambda k, a: a + k * y_ref[0], 0), v),
    lambda v, x_ref, y_ref, i, j: v.reshape(1, *v.shape).sum(0),
    lambda v, x_ref, y_ref, i, j: lax.cond(i == 0, lambda v: of_type(v + 1, v), lambda v: of_type(v * 2, v), v),
    lambda v, x_ref, y_ref, i, j: jnp.clip(v, of_type(jnp.int32(2), v), of_type(jnp.int32(5), v)),
    lambda v, x_ref, y_ref, i, j: v.astype(jnp.float32) / 3,
    lambda v, x_ref, y_ref, i, j: v + of_type(jnp.any(v > 3, 1, keepdims=True), v),
    lambda v, x_ref, y_ref, i, j: v // of_type(jnp.int32(3), v) + v % of_type(jnp.int32(7), v),
    lambda v, x_ref, y_ref, i, j: v + of_type(j * 2 + i, v),
    lambda v, x_ref, y_ref, i, j: v.astype(jnp.float32) @ jnp.ones((v.shape[1], v.shape[1]), jnp.float32),
    lambda v, x_ref, y_ref, i, j: lax.while_loop(
        lambda carry: carry[0] < 2 + i, lambda carry: (carry[0] + 1, of_type(carry[1] + 1, v)), (0, v)
    )[1],
    lambda v, x_ref, y_ref, i, j: v + jnp.where(jnp.arange(v.shape[1])[None, :] > 2, v, jnp.zeros_like(v)),
    lambda v, x_ref, y_ref, i, j: v.T.astype(jnp.float32).T,
    # with elements of the block at indices that may be negative
    lambda v, x_ref, y_ref, i, j: v + jnp.where(v == v, x_ref[y_ref[0] % v.shape[0], :][None, :], v),
    lambda v, x_ref, y_ref, i, j: v + x_ref[jnp.arange(v.shape[0])[:, None], (jnp.arange(v.shape[1]) - 1)[None, :]],
]
READING = 18  # the first step that reads the array again, which is undefined outside of it


@pytest.mark.table(default=6)
@pytest.mark.parametrize("seed", range(120))
def test_random_kernels(seed):
    choices, rng = random.Random(seed), np.random.default_rng(seed)
    rows, columns = choices.choice([1, 2, 3, 5, 8, 17, 20]), choices.choice([1, 2, 4, 7, 16, 33])
    block = choices.choice([rows, -(-rows // 2), 4]), choices.choice([columns, -(-columns // 2), 8])
    dtype = choices.choice(DTYPES)
    exceeds = rows % block[0] or columns % block[1]
    steps = [choices.choice(STEPS[: READING if exceeds else None]) for _ in range(choices.randrange(1, 6))]
    if dtype.kind in "iu":
        x = rng.integers(0 if dtype.kind == "u" else -100, 100, (rows, columns)).astype(dtype)
    else:
        x = (3 * rng.standard_normal((rows, columns))).astype(dtype)
    y = rng.integers(-9, 9, block[:1]).astype(np.int32)

    def kernel(x_ref, y_ref, out_ref):
        i, j = pl.program_id(0), pl.program_id(1)
        row, column = i * block[0] + jnp.arange(block[0]), j * block[1] + jnp.arange(block[1])
        v = jnp.where((row[:, None] < rows) & (column[None, :] < columns), x_ref[...], jnp.zeros((), dtype))
        for step in steps:
            v = step(v, x_ref, y_ref, i, j).astype(dtype)
        out_ref[...] = v

    def call(**options):
        spec = pl.BlockSpec(block, lambda i, j: (i, j))
        return pl.pallas_call(
            kernel,
            jax.ShapeDtypeStruct(x.shape, dtype),
            grid=(pl.cdiv(rows, block[0]), pl.cdiv(columns, block[1])),
            in_specs=[spec, pl.BlockSpec(block[:1], lambda i, j: (0,))],
            out_specs=spec,
            **options,
        )

    expected = np.asarray(jax.jit(call(interpret=True))(x, y)).astype(np.float64)
    (actual,) = run_on_triton(call(), x, y)
    narrow = dtype.kind not in "iu" and dtype.itemsize == 2
    tolerance = 3e-2 if narrow else 1e-4 if dtype == np.float32 else 0
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=tolerance, atol=tolerance * largest)
