"""Kernels of Pallas in Triton IR, run by the interpreter in numpy, against the interpreter of kernels."""

import ml_dtypes
import numpy as np
import pytest

import benchmarks.pallas_kernels as kernels
import shardwise as jax
import shardwise.numpy as jnp
from tests.compiler.kernels.run_kernel import run_on_triton

F32, BF16, F16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
LIB = kernels.library("shardwise")


def random(*shape, dtype=F32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def integers(high, *shape, dtype=np.int32, low=0):
    return np.random.default_rng(high).integers(low, high, shape).astype(dtype)


def check(make, options, *arrays, tolerance=None):
    """Compare the Triton IR of a kernel with its interpreted form."""
    actual = run_on_triton(make(LIB, *options), *arrays)
    interpreted = make(LIB, *options, interpret=True)
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(interpreted)(*map(jnp.asarray, arrays)))]
    for x, y in zip(actual, expected, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        if tolerance is None:
            tolerance = 0 if x.dtype.kind in "iub" else 2e-2 if x.dtype.itemsize == 2 else 2e-5
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=tolerance, atol=tolerance)


FUNCTIONS = {
    "exp": lambda x: jnp.exp(-x * x) * jnp.tanh(x),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "powers": lambda x: jnp.log1p(x * x) + jnp.abs(x) ** 1.5 + jnp.sqrt(jnp.abs(x)),
    "rounding": lambda x: jnp.floor(x) + 2 * jnp.round(3 * x) + jnp.sign(x) + x % 0.75,
    "trigonometry": lambda x: jnp.sin(x) + jnp.cos(x) * jnp.arctan2(x, 1 + x * x),
    "comparisons": lambda x: jnp.where((x > 0) & ~(x > 1) | (x < -1), jnp.clip(x, -0.5, 0.5), x**-3),
    "converted": lambda x: x.astype(jnp.int32).astype(x.dtype) + (x * 3).astype(jnp.int8).astype(x.dtype),
}


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_functions(name, dtype):
    check(kernels.elementwise, (FUNCTIONS[name], 64), random(150, dtype=dtype))


def bits(x):
    return ((x >> jnp.ones((), x.dtype)) ^ (x * 3)) // 5 + (x % 7 > 2).astype(x.dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32])
def test_integers(dtype):
    info = np.iinfo(dtype)
    x = integers(min(info.max, 2**31), 99, dtype=dtype, low=max(info.min, -(2**31)))
    check(kernels.elementwise, (bits, 32), x)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_rows(dtype):
    check(kernels.softmax, (), random(3, 37, dtype=dtype))
    check(kernels.layer_norm, (), random(3, 24, dtype=dtype), random(24), random(24) + 1)
    check(kernels.row_extrema, (), random(33, 21, dtype=dtype))
    check(kernels.transpose, (), random(45, 70, dtype=dtype))
    check(kernels.take_rows, (), integers(10, 6), random(10, 24, dtype=dtype), random(6, 24, dtype=dtype))


def test_products():
    check(kernels.matmul, ((16, 16, 16),), random(32, 48), random(48, 16), tolerance=1e-4)
    for causal in (True, False):
        qkv = [random(1, 2, 64, 16, dtype=BF16) for _ in range(3)]
        check(kernels.attention, (causal, (32, 16), 4), *qkv)


def test_atomic_updates_and_loops():
    check(kernels.histogram, (13,), integers(13, 300))
    check(kernels.digits, (), integers(100, 256) // 10)


def test_vmap_adds_programs():
    kernel = kernels.matmul(LIB, (16, 16, 16))
    batched = jax.vmap(jax.vmap(kernel, (0, None)), (None, 0))
    x, y = random(3, 32, 16), random(2, 16, 48)
    (actual,) = run_on_triton(batched, x, y)
    np.testing.assert_allclose(actual, np.einsum("amk,bkn->bamn", x, y), rtol=1e-4, atol=1e-4)
