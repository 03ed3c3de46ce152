"""Checks of the kernels of our own: results and gradients on the GPU, against plain ops on the CPU."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import shardwise as sw
from benchmarks.gpu.check import TOLERANCE, Check, like_cpu
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.prologue import prologue
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.inline import inline

BF16_TOLERANCE = 2**-7  # one unit in the last place of bfloat16, for numbers of magnitude 1
# The units for float8 of Hopper keep 13 bits after the point of a sum, and drop the others, each time that they add 32
# products. cuBLASLt does not add the parts of a sum in float32 at the default precision ("fast accumulation").
FLOAT8_UNIT, FLOAT8_STEP = 2**-13, 32


def checks() -> Iterator[tuple[str, Check]]:
    """Ten shapes and three dtypes per kernel."""
    yield from row_kernels()
    yield from grouped_products()
    yield from decoding()
    yield from fp8_products()
    yield from fp8_grouped_products()


def decoding() -> Iterator[tuple[str, Check]]:
    """One query per sequence: pages of one key, heads of odd sizes, short and long sequences, one and many groups."""
    rng = np.random.default_rng(0)
    shapes = [  # sequences, heads, key heads, width, pages, size of a page, pages per sequence
        (1, 1, 1, 1, 1, 1, 1),
        (3, 6, 2, 20, 11, 8, 5),
        (5, 3, 3, 16, 40, 1, 40),
        (2, 8, 1, 64, 50, 32, 20),
        (8, 34, 2, 3, 60, 16, 7),
        (1, 32, 8, 128, 600, 16, 512),
        (16, 16, 16, 64, 300, 16, 16),
        (4, 64, 1, 256, 64, 16, 16),
        (7, 12, 4, 80, 33, 24, 9),
        (64, 8, 2, 32, 256, 4, 4),
    ]
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        for sequences, heads, key_heads, width, pages, size, listed in shapes:
            q, k, v = (
                sw.device_put((rng.integers(-8, 9, shape) / 8).astype(dtype))
                for shape in ((sequences, heads, width), *[(key_heads, pages, size, width)] * 2)
            )
            tables = rng.integers(0, pages, (sequences, listed)).astype(np.int32)
            lengths = rng.integers(0, size * listed + 1, sequences).astype(np.int32)
            name = f"{np.dtype(dtype).name} {sequences}x{heads}/{key_heads}x{width}, {listed} of {size}"
            check = like_cpu(sw.kernels.paged_attention, q, k, v, tables, lengths)
            yield f"paged_attention {name}", _narrow(check, dtype)


def grouped_products() -> Iterator[tuple[str, Check]]:
    """Groups of rows: empty ones, one row, sizes that are no multiples of a tile, rows in no group."""
    rng = np.random.default_rng(0)
    shapes = [
        (1, 1, 1, [1]),
        (5, 3, 2, [0, 0]),
        (37, 20, 24, [5, 0, 25, 7]),
        (300, 33, 130, [0, 150, 140]),
        (64, 64, 64, [16] * 4),
        (1000, 100, 200, [999, 0, 1]),
        (512, 256, 128, [1] * 64),
        (2048, 512, 1024, [200, 300, 100, 400, 0, 500, 148, 400]),
        (4097, 257, 129, [1024, 1000, 73, 2000]),
        (256, 1024, 2048, [31, 33, 64, 64, 60]),
    ]
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        for rows, inner, columns, sizes in shapes:
            x, ct = (sw.device_put((rng.integers(-8, 9, (rows, size)) / 8).astype(dtype)) for size in (inner, columns))
            weights = sw.device_put((rng.integers(-8, 9, (len(sizes), inner, columns)) / 8).astype(dtype))
            name = f"{np.dtype(dtype).name} {rows}x{inner}x{columns} in {len(sizes)}"
            product = partial(sw.kernels.grouped_dot, group_sizes=np.array(sizes, np.int32))
            yield f"grouped_dot {name}", _narrow(like_cpu(_gradients(product), x, weights, ct), dtype)


def row_kernels() -> Iterator[tuple[str, Check]]:
    """Ten shapes per kernel: odd sizes, one row, many short rows, long rows; float32 and 16-bit floats."""
    rng = np.random.default_rng(0)
    shapes = [
        (1, 1),
        (3, 7),
        (5, 64),
        (2, 3, 100),
        (1037, 3),
        (64, 1024),
        (130, 768),
        (4, 4097),
        (33, 8192),
        (2, 32768),
    ]
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        for shape in shapes:
            # Sums of eighths are exact in 16 bits: XLA may keep a sum in float32, which short rows would magnify.
            x, delta, ct = (sw.device_put((rng.integers(-16, 17, shape) / 8).astype(dtype)) for _ in range(3))
            scale, bias = (sw.device_put(rng.standard_normal(shape[-1]).astype(np.float32)) for _ in range(2))
            name = f"{np.dtype(dtype).name} {'x'.join(map(str, shape))}"
            yield f"rms_norm {name}", _narrow(like_cpu(_gradients(_rms_norm), x, scale, ct), dtype)
            yield f"layer_norm {name}", _narrow(like_cpu(_gradients(_layer_norm), x, delta, scale, bias, ct), dtype)
            targets = sw.device_put(rng.integers(0, shape[-1], shape[:-1]).astype(np.int32))
            losses = rng.standard_normal(shape[:-1]).astype(np.float32)
            yield f"cross_entropy {name}", _narrow(like_cpu(_cross_entropy, x, targets, losses), dtype)
            moments = [sw.device_put(f(rng.standard_normal(shape).astype(np.float32))) for f in (np.sin, np.abs)]
            yield f"adam {name}", _narrow(like_cpu(_adam, scale[0] + delta.astype(np.float32), ct, *moments), dtype)
            yield f"triton_kernel {name}", _narrow(like_cpu(_gradients(DOUBLE_SILU), x, ct), dtype)
            yield f"quantize {name}", like_cpu(_quantize, sw.device_put(_wild_numbers(rng, shape, dtype)))
            yield f"quantize after ops {name}", like_cpu(_exact_prologue, x, ct, scale)
            check = like_cpu(_rounded_norm, x, delta, scale, bias)
            yield f"quantize after layer_norm {name}", _nearest_float8(check)
            gates = (sw.device_put((rng.standard_normal(shape) * 2).astype(dtype)) for _ in range(2))
            yield f"quantize after gelu and silu {name}", _nearest_float8(like_cpu(_prologues, *gates))


def fp8_products() -> Iterator[tuple[str, Check]]:
    """Yield the checks of products with weights in float8, and of their gradients."""
    rng = np.random.default_rng(0)
    for rows, inner, columns in ((1, 16, 16), (64, 256, 128), (33, 250, 510), (1024, 512, 4096)):
        x, w, ct = (
            sw.device_put(rng.standard_normal(shape).astype(np.float32))
            for shape in ((rows, inner), (inner, columns), (rows, columns))
        )
        for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
            narrow = x.astype(dtype), ct.astype(dtype)
            scales = _POLICY.create(_weighted_sum, w, *narrow)
            name = f"fp8 product {np.dtype(dtype).name} {rows}x{inner}x{columns}"
            check = like_cpu(_fp8_gradients(_weighted_sum), w, scales, *narrow)
            yield name, _truncated(check, dtype, max(rows, inner, columns))
            check = like_cpu(_fp8_function(_gelu_of_product), w, scales, *narrow)
            yield f"{name}, bias and gelu", _truncated(check, dtype, inner)
            scales = _POLICY.create(_sum_of_products, w, *narrow)
            check = like_cpu(_fp8_gradients(_sum_of_products), w, scales, *narrow)
            yield f"{name}, sum of two", _truncated(check, dtype, max(rows, inner, columns))


def fp8_grouped_products() -> Iterator[tuple[str, Check]]:
    """Yield the checks of grouped products in float8: groups that begin and end anywhere, and odd sizes."""
    rng = np.random.default_rng(0)
    shapes = [
        (5, 3, 2, [0, 0]),
        (64, 64, 64, [16] * 4),
        (300, 33, 130, [0, 150, 140]),
        (512, 256, 128, [1] * 64),
        (2048, 512, 1024, [200, 300, 100, 400, 0, 500, 148, 400]),
        (4096, 256, 640, [1024, 1000, 72, 1000]),
        (4097, 257, 129, [1024, 1000, 73, 1000]),
    ]
    for rows, inner, columns, sizes in shapes:
        shape = rows, inner, columns
        x, w, ct = (
            sw.device_put(rng.standard_normal(size).astype(np.float32))
            for size in ((rows, inner), (len(sizes), inner, columns), (rows, columns))
        )
        function = partial(_grouped_sum, np.array(sizes, np.int32))
        for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
            narrow = x.astype(dtype), ct.astype(dtype)
            scales = _POLICY.create(function, w, *narrow)
            name = f"fp8 grouped {np.dtype(dtype).name} {'x'.join(map(str, shape))} in {len(sizes)}"
            check = like_cpu(_fp8_gradients(function), w, scales, *narrow)
            yield name, _truncated(check, dtype, max(*sizes, inner, columns))


def _adam(parameters: Any, gradient: Any, mean: Any, square: Any) -> Any:
    optimizer = sw.kernels.adam(0.1, weight_decay=0.01, compute_dtype=jnp.bfloat16)
    state = sw.kernels.AdamState(jnp.int32(3), mean, square, None)
    return optimizer.apply(gradient, state, parameters)


def _double_silu(x: Any) -> Any:
    wide = x.astype(np.float32)
    return (2 * wide * lax.logistic(wide)).astype(x.dtype)


def _double_silu_ir(x: Any, result: Any) -> str:
    kernel = sw.kernels.TritonBuilder("double_silu", [x, result])
    offsets = kernel.program_id() * 256 + kernel.range(256)
    mask = offsets < math.prod(x.shape)
    value = kernel.load(kernel.pointers[0], offsets, mask).to(np.dtype(np.float32))
    kernel.store(kernel.pointers[1], offsets, value * 2.0 / (kernel.exp(0.0 - value) + 1.0), mask)
    return kernel.text()


DOUBLE_SILU = sw.kernels.triton_kernel(
    _double_silu, ir=_double_silu_ir, grid=lambda x, result: -(-math.prod(x.shape) // 256), sharding_rule="... -> ..."
)


def _narrow(check: Check, dtype: Any) -> Check:
    """Scale the error of 16-bit results, which are rounded, so that the common tolerance applies."""
    return check if np.dtype(dtype).itemsize == 4 else lambda: check() * 2e-3 / BF16_TOLERANCE / 2


def _truncated(check: Check, dtype: Any, terms: int) -> Check:
    """Scale the error of sums of at most `terms` products of float8 numbers, so that the common tolerance applies.

    A sum of n products is truncated n / 32 times, each time by half a unit of the partial sum on average. Units are at
    most 2**-13 of it, and partial sums of numbers of random signs are at most about as large as the result. The
    tolerance of 16-bit results includes this.
    """
    if np.dtype(dtype).itemsize == 2:
        return _narrow(check, dtype)
    bound = -(-terms // FLOAT8_STEP) * FLOAT8_UNIT / 2
    return lambda: check() * min(1.0, TOLERANCE / bound)


_POLICY = sw.strategies.FP8Policy(precision=None)


def _wild_numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return numbers of all magnitudes that round to float8, some of them too large, infinite or NaN."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))
    return np.where(rng.random(shape) < 0.01, rng.choice([np.inf, -np.inf, np.nan], shape), x).astype(dtype)


def _quantize(x: Any) -> Any:
    results = []
    for dtype, transposes, rows in ((jnp.float8_e4m3fn, True, 1), (jnp.float8_e5m2, False, x.ndim - 1)):
        results += Quantize(np.dtype(dtype), transposes, 0, rows)(x, jnp.float32(0.25))
    return [y.astype(jnp.float32) for y in results]


def _exact_prologue(x: Any, ct: Any, scale: Any) -> Any:
    """Quantize a function of eighths, and of a row of sixteenths, that is exact in float32."""
    row = jnp.round(scale * 2) / 16

    def function(x: Any, ct: Any, row: Any) -> Any:
        return jnp.where(x > 0, ct * row, 0) + 1

    types = [(y.dtype, tuple(range(y.ndim))) for y in (x, ct)] + [(row.dtype, (x.ndim - 1,))]
    results = Quantize(np.dtype(jnp.float8_e4m3fn), True, 0, x.ndim - 1, *_prologue(function, types), True)
    return [y.astype(jnp.float32) for y in results(x, ct, row, jnp.float32(0.25))]


def _prologues(x: Any, y: Any) -> Any:
    dims = tuple(range(x.ndim))
    functions = sw.nn.gelu, _gelu_gradient, _swiglu
    results = []
    for function, operands in zip(functions, ([x], [x, y], [x, y]), strict=True):
        made = _prologue(function, [(each.dtype, dims) for each in operands])
        op = Quantize(np.dtype(jnp.float8_e5m2), True, 0, x.ndim - 1, *made)
        results += op(*operands, jnp.float32(2**-8))[:2]
    return [z.astype(jnp.float32) for z in results]


def _rounded_norm(x: Any, delta: Any, scale: Any, bias: Any) -> Any:
    """Quantize normalized rows: `split_norms` lets the kernel that rounds compute them."""
    rows, normalized = sw.kernels.layer_norm(x, scale, bias, residual=delta)
    numbers = Quantize(np.dtype(jnp.float8_e5m2), True, 0, x.ndim - 1)(normalized, jnp.float32(2**-8))[:2]
    return [rows, *(y.astype(jnp.float32) for y in numbers)]


def _gelu_gradient(x: Any, ct: Any) -> Any:
    return sw.vjp(sw.nn.gelu, x)[1](ct)[0]


def _swiglu(gate: Any, up: Any) -> Any:
    return sw.nn.silu(gate) * up


def _prologue(function: Any, operands: Any) -> Any:
    """Return the function of elements of arrays, given as pairs (dtype, dims), and their dims."""
    types = [ArrayType((), dtype) for dtype, _ in operands]
    program = inline(build(lambda *xs: [function(*xs)], types, "prologue")[0])
    return prologue(program.equations, program.inputs, program.outputs[0]), tuple(dims for _, dims in operands)


def _nearest_float8(check: Check) -> Check:
    """Scale the error of numbers that were rounded to two bits after they differed in the last bits of float32."""
    return lambda: check() * TOLERANCE / 2**-2


def _grouped_sum(sizes: Any, w: Any, x: Any, ct: Any) -> Any:
    return (sw.kernels.grouped_dot(x, w.astype(x.dtype), sizes) * ct).astype(jnp.float32).sum()


def _weighted_sum(w: Any, x: Any, ct: Any) -> Any:
    return ((x @ w.astype(x.dtype)) * ct).astype(jnp.float32).sum()


def _gelu_of_product(w: Any, x: Any, ct: Any) -> Any:
    return sw.nn.gelu(x @ w.astype(x.dtype) + ct[0])


def _sum_of_products(w: Any, x: Any, ct: Any) -> Any:
    half = w.shape[1] // 2
    left, right = (x @ w.astype(x.dtype)[:, part] for part in (slice(half), slice(half, None)))
    return ((left + ct[0, :half]) * ct[:, :half] + right * ct[:, half:]).astype(jnp.float32).sum()


def _fp8_function(function: Any) -> Any:
    return sw.strategies.mixed_precision(function, _POLICY)


def _fp8_gradients(function: Any) -> Any:
    loss = _fp8_function(function)

    def gradients(w: Any, scales: Any, x: Any, ct: Any) -> Any:
        _, (weight, maxima, array) = sw.value_and_grad(loss, (0, 1, 2))(w, scales, x, ct)
        return [weight, array.astype(jnp.float32), maxima.scales["params"]]

    return gradients


def _rms_norm(x: Any, scale: Any) -> Any:
    return sw.kernels.rms_norm(x, scale)


def _layer_norm(x: Any, delta: Any, scale: Any, bias: Any) -> Any:
    rows, normalized = sw.kernels.layer_norm(x, scale, bias, residual=delta)
    return rows * 0.5 + normalized


def _cross_entropy(logits: Any, targets: Any, cotangent: Any) -> Any:
    losses, vjp = sw.vjp(lambda logits: sw.kernels.cross_entropy(logits, targets), logits)
    return losses, vjp(cotangent.astype(losses.dtype))


def _gradients(function: Any) -> Any:
    def both(*args: Any) -> Any:
        result, vjp = sw.vjp(function, *args[:-1])
        return result, vjp(args[-1])

    return both
