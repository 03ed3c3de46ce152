"""Checks of kernels in Pallas: compiled by Triton on the GPU, against the interpreter of kernels on the CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import benchmarks.pallas_kernels as kernels
import shardwise as sw
from benchmarks.gpu.check import Check, relative_error
from shardwise import numpy as jnp

_NARROW = 2**-6  # two units in the last place of bfloat16, for numbers of magnitude 1


def checks() -> Iterator[tuple[str, Check]]:
    """Ten kernels, each with several shapes and dtypes."""
    lib, rng = kernels.library("shardwise"), np.random.default_rng(0)

    def random(*shape: int, dtype: Any = np.float32) -> Any:
        return sw.device_put(rng.standard_normal(shape, np.float32).astype(dtype))

    def integers(high: int, *shape: int, dtype: Any = np.int32) -> Any:
        return sw.device_put(rng.integers(0, high, shape).astype(dtype))

    def named(name: str, dtype: Any, shape: Any) -> str:
        return f"pallas {name} {np.dtype(dtype).name} {shape}"

    floats: tuple[Any, ...] = (np.float32, jnp.bfloat16, jnp.float16)
    functions: dict[str, Callable[..., Any]] = {
        "exp, tanh": lambda x: jnp.exp(-x * x) * jnp.tanh(x),
        "gelu": lambda x: sw.nn.gelu(x, approximate=False),
        "powers, logs": lambda x: jnp.log1p(x * x) + jnp.abs(x) ** 1.5 + jnp.sqrt(jnp.abs(x)),
        "rounding": lambda x: jnp.floor(x) + 2 * jnp.round(3 * x) + jnp.sign(x) + x % 0.75,
        "trigonometry": lambda x: jnp.sin(x) + jnp.cos(x) * jnp.arctan2(x, 1 + x * x),
    }
    for name, function in functions.items():
        for dtype in floats:
            yield (
                named(name, dtype, 5000),
                _check(lib, dtype, kernels.elementwise, (function,), random(5000, dtype=dtype)),
            )
    for dtype in (np.int8, np.int16, np.uint8, np.uint32, np.int32):

        def bits(x: Any) -> Any:
            return ((x >> jnp.ones((), x.dtype)) ^ (x * 3)) // 5 + (x % 7 > 2).astype(x.dtype)

        x = integers(100, 3001, dtype=dtype)
        yield named("bits", dtype, 3001), _check(lib, dtype, kernels.elementwise, (bits,), x)
    for dtype in floats:
        for shape in ((3, 5), (37, 1000), (8, 4096), (5, 12345)):
            yield named("softmax", dtype, shape), _check(lib, dtype, kernels.softmax, (), random(*shape, dtype=dtype))
        for shape in ((7, 24), (33, 1000), (4, 8192)):
            arrays = random(*shape, dtype=dtype), random(shape[1]), random(shape[1])
            yield named("layer_norm", dtype, shape), _check(lib, dtype, kernels.layer_norm, (), *arrays)
        for blocks, (m, k, n) in (
            ((16, 16, 16), (32, 48, 16)),
            ((64, 32, 32), (128, 96, 64)),
            ((128, 128, 32), (256, 512, 384)),
        ):
            x, y = random(m, k, dtype=dtype), random(k, n, dtype=dtype) / np.sqrt(k).astype(dtype)
            yield named("matmul", dtype, (m, k, n)), _check(lib, dtype, kernels.matmul, (blocks,), x, y, tf32=True)
        for causal, blocks, shape in (
            (True, (32, 32), (1, 2, 128, 16)),
            (False, (64, 32), (2, 1, 128, 64)),
            (True, (64, 64), (1, 2, 256, 128)),
        ):
            qkv = [random(*shape, dtype=dtype) for _ in range(3)]
            check = _check(lib, dtype, kernels.attention, (causal, blocks, 4), *qkv, tf32=True)
            yield named("attention", dtype, shape), check
        for shape in ((5, 7), (33, 100)):
            x = random(*shape, dtype=dtype)
            yield named("row_extrema", dtype, shape), _check(lib, dtype, kernels.row_extrema, (), x)
        x = random(45, 130, dtype=dtype)
        yield named("transpose", dtype, x.shape), _check(lib, dtype, kernels.transpose, (), x)
        table, index = random(10, 96, dtype=dtype), integers(10, 20)
        arrays = index, table, random(20, 96, dtype=dtype)
        yield named("take_rows", dtype, (20, 96)), _check(lib, dtype, kernels.take_rows, (), *arrays)
    for size in (5, 1000, 4096):
        yield named("histogram", np.int32, size), _check(lib, np.int32, kernels.histogram, (13,), integers(13, size))
    yield named("digits", np.int32, 1024), _check(lib, np.int32, kernels.digits, (), integers(100, 1024) // 10)
    batched = sw.vmap(sw.vmap(kernels.matmul(lib, (16, 16, 16)), (0, None)), (None, 0))
    plain = sw.vmap(sw.vmap(kernels.matmul(lib, (16, 16, 16), interpret=True), (0, None)), (None, 0))
    x, y = random(3, 32, 16), random(2, 16, 48)
    yield "pallas vmap of vmap", _compare(batched, plain, (x, y), 2.0)


def _check(
    lib: Any, dtype: Any, make: Callable[..., Any], options: tuple[Any, ...], *arrays: Any, tf32: bool = False
) -> Check:
    """Compare a kernel with its interpreted form on the CPU, with tolerances for tf32 and narrow floats."""
    is_narrow = np.dtype(dtype).itemsize == 2 and np.dtype(dtype).kind not in "iu"
    scale = _NARROW / 2e-3 if is_narrow else 2.0 if tf32 else 1.0
    return _compare(make(lib, *options), make(lib, *options, interpret=True), arrays, scale)


def _compare(compiled: Callable[..., Any], interpreted: Callable[..., Any], arrays: Any, scale: float) -> Check:
    def check() -> float:
        assert "interpreted_kernel" not in str(sw.make_jaxpr(compiled)(*arrays)), "the kernel is not compiled"
        cpu = sw.devices("cpu")[0]
        actual = sw.tree.leaves(sw.jit(compiled)(*arrays))
        expected = sw.tree.leaves(sw.jit(interpreted)(*(sw.device_put(x, cpu) for x in arrays)))
        return max(relative_error(x, y) for x, y in zip(actual, expected, strict=True)) / scale

    return check
