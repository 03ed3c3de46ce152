"""quantize: float8 numbers against casts of ml_dtypes and of XLA, and its Triton IR against its meaning."""

import re

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
from shardwise import NamedSharding, P
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels import quantize
from shardwise.compiler.kernels.kernel import triton_ir
from shardwise.compiler.kernels.quantize import Quantize
from tests.compiler.kernels.run_kernel import run_kernel

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


def wild(shape, dtype):
    """Numbers of all magnitudes around the range of float8, some of them not finite."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-14, 14, shape))
    return np.where(rng.random(shape) < 0.02, rng.choice([np.inf, -np.inf, np.nan], shape), x).astype(dtype)


def expected(op, x, scale):
    """The results, by casts of ml_dtypes."""
    wide = x.astype(F32)
    finite = np.isfinite(wide)
    limit = F32.type(ml_dtypes.finfo(op.dtype).max)
    numbers = np.where(finite, np.clip(np.where(finite, wide, 0) / scale, -limit, limit), np.nan).astype(op.dtype)
    start = op.batch + op.rows
    order = (*range(op.batch), *range(start, x.ndim), *range(op.batch, start))
    transposed = [np.transpose(numbers, order)] if op.transposes else []
    return [numbers, *transposed, np.abs(wide[finite]).max(initial=0)]


# These have large blocks, if they have enough programs, and words of four rows in the second.
LARGE = [
    (Quantize(E5M2, True, 1, 1), (2, 70, 130), BF16),
    (Quantize(E4M3, True, 1, 1), (2, 72, 130), F32),
]
CASES = [
    (Quantize(E4M3, True, 0, 1), (100, 70), BF16),
    (Quantize(E5M2, True, 1, 2), (2, 3, 5, 64), F32),
    (Quantize(E4M3, False, 0, 2), (3, 65, 1), F16),
    (Quantize(E5M2, True, 0, 0), (33,), F32),
    (Quantize(E4M3, True, 0, 1), (64, 128), F32),
    (Quantize(E5M2, True, 0, 2), (2, 34, 67), BF16),
    *LARGE,
]


def check(results, op, x, scale):
    for result, number in zip(results, expected(op, x, scale), strict=True):
        np.testing.assert_array_equal(np.asarray(result, F32), np.asarray(number, F32))


@pytest.mark.parametrize(("op", "shape", "dtype"), CASES, ids=str)
def test_meaning(op, shape, dtype):
    x, scale = wild(shape, dtype), F32.type(0.25)
    check(op.reference(x, scale), op, x, scale)
    check(jax.jit(op)(x, scale), op, x, scale)  # XLA must not drop the cast to float8


def check_ir(op, shape, dtype):
    x, scale = wild(shape, dtype), F32.type(0.25)
    *numbers, maxima = run_kernel(op, x, np.array(scale))
    check([*numbers, maxima.max()], op, x, scale)


@pytest.mark.parametrize(("op", "shape", "dtype"), CASES[: -len(LARGE)], ids=str)
def test_the_ir_computes_the_meaning(op, shape, dtype):
    check_ir(op, shape, dtype)


@pytest.mark.parametrize(("op", "shape", "dtype"), LARGE, ids=str)
def test_the_ir_of_large_blocks_computes_the_meaning(monkeypatch, op, shape, dtype):
    monkeypatch.setattr(quantize, "_LEAST_PROGRAMS", 1)  # no other test runs the IR of these cases: it is cached
    check_ir(op, shape, dtype)


def test_blocks_are_large_if_256_of_them_exist():
    grids = {}
    for count in (127, 128):
        types = ArrayType((count, 3, 130), BF16), ArrayType((), F32)
        grids[count] = Quantize(E5M2, True, 1, 1).kernel_launch(*types).grid
    assert grids == {127: (127 * 3, 1, 1), 128: (128 * 2, 1, 1)}


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-45, np.inf, np.nan])
def test_the_ir_computes_the_meaning_of_extreme_scales(scale):
    op, x, scale = Quantize(E4M3), np.array([[0, -0.0, 1, -2, np.inf, np.nan]], F32), np.array(scale, F32)
    for ours, theirs in zip(run_kernel(op, x, scale), op.reference(x, scale), strict=True):
        np.testing.assert_array_equal(np.asarray(ours, F32).ravel(), np.asarray(theirs, F32).ravel())


@pytest.mark.parametrize(("shape", "width"), [((128, 2**24), 32), ((2**25, 128), 64), ((64, 2**26), 64)], ids=str)
def test_offsets_between_distant_rows_have_64_bits(shape, width):
    """The last row of a block, of the result or of its transpose, is 2**31 or more elements after the first."""
    ir = triton_ir(Quantize(E4M3, True), (ArrayType(shape, BF16), ArrayType((), F32)))
    offsets = re.findall(r"tt.addptr .*, tensor<\d+x\d+xi(\d+)>", ir)
    assert offsets == [str(width)] * 9  # four loads and stores of every fourth row, and a store of words


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_rounds_as_jax_does(dtype):
    jnp = pytest.importorskip("jax.numpy")
    x = np.random.default_rng(0).standard_normal(4096).astype(F32) * 100
    theirs = np.asarray(jnp.asarray(x).astype(dtype))
    np.testing.assert_array_equal(Quantize(dtype).reference(x, F32.type(1))[0].astype(F32), theirs.astype(F32))


@pytest.mark.parametrize("spec", [P("data"), P(None, "data"), P("model", "data"), P(("data", "model"))], ids=str)
def test_maxima_are_reduced_over_uneven_shards(spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    op, x, scale = Quantize(E4M3, True), wild((30, 50), F32), F32.type(0.25)

    def sharded(x, scale):
        return op(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)), scale)

    check(jax.jit(sharded)(x, scale), op, x, scale)
    assert jax.jit(sharded).lower(x, scale).plan.counts()["all_reduce"] == 1
