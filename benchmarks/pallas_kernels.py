"""Kernels in Pallas for GPUs, for Shardwise and JAX alike.

`benchmarks.gpu` checks them and `benchmarks.pallas_times` times them.

A `Library` has the modules of one of them. Each function takes a library and options, and returns a function of arrays.
"""

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

Function = Callable[..., Any]


@final
class Library(NamedTuple):
    """The modules that a kernel uses."""

    jax: Any
    jnp: Any
    lax: Any
    pl: Any
    triton: Any


def library(name: str) -> Library:
    """Return the modules of "jax" or "shardwise"."""
    modules = (
        name,
        f"{name}.numpy",
        f"{name}.lax",
        f"{name}.experimental.pallas",
        f"{name}.experimental.pallas.triton",
    )
    return Library(*map(importlib.import_module, modules))


def call(lib: Library, kernel: Function, out: Any, warps: int = 4, stages: int = 3, **options: Any) -> Function:
    """Return `pallas_call` of a kernel, for Triton."""
    return lib.pl.pallas_call(  # type: ignore[no-any-return]
        kernel, out, compiler_params=lib.triton.CompilerParams(num_warps=warps, num_stages=stages), **options
    )


def elementwise(lib: Library, function: Function, block: int = 1024, interpret: bool = False) -> Function:
    """Return a function of arrays of rank 1 that is applied to their blocks. The last one may exceed the arrays."""

    def kernel(*refs: Any) -> None:
        *inputs, out_ref = refs
        out_ref[...] = function(*(ref[...] for ref in inputs)).astype(out_ref.dtype)

    def run(*arrays: Any) -> Any:
        spec = lib.pl.BlockSpec((block,), lambda i: (i,))
        grid = (lib.pl.cdiv(arrays[0].size, block),)
        out = lib.jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
        specs = {"in_specs": [spec] * len(arrays), "out_specs": spec}
        return call(lib, kernel, out, grid=grid, interpret=interpret, **specs)(*arrays)

    return run


def softmax(lib: Library, warps: int = 4, interpret: bool = False) -> Function:
    """Return the softmax of the rows of a matrix: one row per step, masked to a power of two."""

    def kernel(x_ref: Any, out_ref: Any, width: int) -> None:
        place = lib.pl.ds(0, lib.pl.next_power_of_2(width))
        mask = lib.jnp.arange(lib.pl.next_power_of_2(width)) < width
        row = lib.triton.load(x_ref.at[place], mask=mask, other=-math.inf).astype(lib.jnp.float32)
        weights = lib.jnp.exp(row - lib.jnp.max(row, axis=0))
        result = weights / lib.jnp.sum(weights, axis=0)
        lib.triton.store(out_ref.at[place], result.astype(out_ref.dtype), mask=mask)

    def run(x: Any) -> Any:
        rows, width = x.shape
        spec = lib.pl.BlockSpec((None, width), lambda i: (i, 0))
        out = lib.jax.ShapeDtypeStruct(x.shape, x.dtype)
        options = {"grid": (rows,), "in_specs": [spec], "out_specs": spec, "interpret": interpret}
        return call(lib, partial(kernel, width=width), out, warps, 1, **options)(x)

    return run


def layer_norm(lib: Library, warps: int = 4, interpret: bool = False) -> Function:
    """Return the layer norm of the rows of a matrix, with a scale and a bias: one row per step."""

    def kernel(x_ref: Any, scale_ref: Any, bias_ref: Any, out_ref: Any, width: int) -> None:
        index = lib.jnp.arange(lib.pl.next_power_of_2(width))
        mask = index < width
        load = partial(lib.triton.load, mask=mask, other=0.0)
        x = load(x_ref.at[index]).astype(lib.jnp.float32)
        centred = lib.jnp.where(mask, x - lib.jnp.sum(x, axis=0) / width, 0.0)
        scaled = centred * lib.lax.rsqrt(lib.jnp.sum(centred * centred, axis=0) / width + 1e-5)
        result = scaled * load(scale_ref.at[index]) + load(bias_ref.at[index])
        lib.triton.store(out_ref.at[index], result.astype(out_ref.dtype), mask=mask)

    def run(x: Any, scale: Any, bias: Any) -> Any:
        rows, width = x.shape
        spec, vector = lib.pl.BlockSpec((None, width), lambda i: (i, 0)), lib.pl.BlockSpec((width,), lambda i: (0,))
        options = {"grid": (rows,), "in_specs": [spec, vector, vector], "out_specs": spec, "interpret": interpret}
        out = lib.jax.ShapeDtypeStruct(x.shape, x.dtype)
        return call(lib, partial(kernel, width=width), out, warps, 1, **options)(x, scale, bias)

    return run


def matmul(
    lib: Library,
    blocks: tuple[int, int, int] = (128, 128, 64),
    warps: int = 4,
    stages: int = 3,
    interpret: bool = False,
) -> Function:
    """Return the product of two matrices, whose sizes are multiples of the blocks."""
    rows, columns, inner = blocks

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        def add(k: Any, total: Any) -> Any:
            place = lib.pl.ds(k * inner, inner)
            return total + lib.triton.dot(x_ref[:, place], y_ref[place, :])

        zeros = lib.jnp.zeros((rows, columns), lib.jnp.float32)
        out_ref[...] = lib.lax.fori_loop(0, x_ref.shape[1] // inner, add, zeros).astype(out_ref.dtype)

    def run(x: Any, y: Any) -> Any:
        (m, k), (_, n) = x.shape, y.shape
        return call(
            lib,
            kernel,
            lib.jax.ShapeDtypeStruct((m, n), x.dtype),
            warps,
            stages,
            grid=(m // rows, n // columns),
            in_specs=[
                lib.pl.BlockSpec((rows, k), lambda i, j: (i, 0)),
                lib.pl.BlockSpec((k, columns), lambda i, j: (0, j)),
            ],
            out_specs=lib.pl.BlockSpec((rows, columns), lambda i, j: (i, j)),
            interpret=interpret,
        )(x, y)

    return run


def attention(
    lib: Library,
    causal: bool = True,
    blocks: tuple[int, int] = (128, 64),
    warps: int = 8,
    stages: int = 3,
    interpret: bool = False,
) -> Function:
    """Return the attention of arrays [batch, heads, length, size], block by block of keys."""
    rows, keys = blocks
    jnp = lib.jnp

    def kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any) -> None:
        length, size = k_ref.shape
        block = lib.pl.program_id(0)
        q = q_ref[...]

        def visit(number: Any, carry: Any) -> Any:
            result, largest, total = carry
            place = lib.pl.ds(number * keys, keys)
            scores = lib.triton.dot(q, k_ref[place, :].T) * (math.log2(math.e) / math.sqrt(size))
            if causal:
                row, key = block * rows + jnp.arange(rows), number * keys + jnp.arange(keys)
                scores = jnp.where(row[:, None] >= key[None, :], scores, -1e30)
            new = jnp.maximum(largest, scores.max(axis=1))
            weights, decay = jnp.exp2(scores - new[:, None]), jnp.exp2(largest - new)
            v = v_ref[place, :]
            result = result * decay[:, None] + lib.triton.dot(weights.astype(v.dtype), v)
            return result, new, total * decay + weights.sum(axis=1)

        start = (
            jnp.zeros((rows, size), jnp.float32),
            jnp.full((rows,), -1e30, jnp.float32),
            jnp.zeros(rows, jnp.float32),
        )
        count = lib.lax.div((block + 1) * rows + (keys - 1), keys) if causal else length // keys
        result, _, total = lib.lax.fori_loop(0, count, visit, start)
        out_ref[...] = (result / total[:, None]).astype(out_ref.dtype)

    def run(q: Any, k: Any, v: Any) -> Any:
        batch, heads, length, size = q.shape
        of_rows = lib.pl.BlockSpec((None, None, rows, size), lambda i, b, h: (b, h, i, 0))
        of_keys = lib.pl.BlockSpec((None, None, length, size), lambda i, b, h: (b, h, 0, 0))
        grid = (length // rows, batch, heads)
        specs = {"in_specs": [of_rows, of_keys, of_keys], "out_specs": of_rows}
        out = lib.jax.ShapeDtypeStruct(q.shape, q.dtype)
        return call(lib, kernel, out, warps, stages, grid=grid, interpret=interpret, **specs)(q, k, v)

    return run


def histogram(lib: Library, bins: int, block: int = 256, interpret: bool = False) -> Function:
    """Return how often each of `bins` numbers is in an array: atomic updates of zeros that are passed in."""

    def kernel(x_ref: Any, zeros_ref: Any, out_ref: Any, size: int) -> None:
        index = lib.pl.program_id(0) * block + lib.jnp.arange(block)
        mask = index < size
        values = lib.triton.load(x_ref.at[index], mask=mask, other=0)
        lib.triton.atomic_add(out_ref, (values,), lib.jnp.ones(block, lib.jnp.int32), mask=mask)

    def run(x: Any) -> Any:
        zeros = lib.jnp.zeros(bins, lib.jnp.int32)
        out = lib.jax.ShapeDtypeStruct(zeros.shape, zeros.dtype)
        grid, aliases = (lib.pl.cdiv(x.size, block),), {"input_output_aliases": {1: 0}}
        return call(lib, partial(kernel, size=x.size), out, grid=grid, interpret=interpret, **aliases)(x, zeros)

    return run


def row_extrema(lib: Library, block: int = 16, interpret: bool = False) -> Function:
    """Return the maximum, the index of the minimum and the sum of the rows of a matrix, in blocks of rows."""

    def kernel(x_ref: Any, largest_ref: Any, least_ref: Any, sum_ref: Any) -> None:
        x = x_ref[...]
        largest_ref[...] = x.max(axis=1)
        least_ref[...] = lib.jnp.argmin(x, axis=1).astype(lib.jnp.int32)
        sum_ref[...] = x.sum(axis=1)

    def run(x: Any) -> Any:
        rows, width = x.shape
        vector = lib.pl.BlockSpec((block,), lambda i: (i,))
        outs = [lib.jax.ShapeDtypeStruct((rows,), dtype) for dtype in (x.dtype, lib.jnp.int32, x.dtype)]
        specs = {"in_specs": [lib.pl.BlockSpec((block, width), lambda i: (i, 0))], "out_specs": [vector] * 3}
        return call(lib, kernel, outs, grid=(lib.pl.cdiv(rows, block),), interpret=interpret, **specs)(x)

    return run


def transpose(lib: Library, block: tuple[int, int] = (32, 64), interpret: bool = False) -> Function:
    """Return the transpose of a matrix, in blocks that may exceed it."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...].T

    def run(x: Any) -> Any:
        rows, columns = x.shape
        grid = (lib.pl.cdiv(rows, block[0]), lib.pl.cdiv(columns, block[1]))
        specs = {
            "in_specs": [lib.pl.BlockSpec(block, lambda i, j: (i, j))],
            "out_specs": lib.pl.BlockSpec(block[::-1], lambda i, j: (j, i)),
        }
        out = lib.jax.ShapeDtypeStruct((columns, rows), x.dtype)
        return call(lib, kernel, out, grid=grid, interpret=interpret, **specs)(x)

    return run


def digits(lib: Library, interpret: bool = False) -> Function:
    """Return the number of binary digits of the largest of every 128 integers, by a loop that ends when it is 0."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        start = x_ref[...].max(), lib.jnp.int32(0)
        _, count = lib.lax.while_loop(
            lambda c: c[0] > 0, lambda c: (lib.lax.shift_right_logical(c[0], 1), c[1] + 1), start
        )

        @lib.pl.when(count > 3)
        def _() -> None:
            out_ref[...] = lib.jnp.full((1,), count)

        @lib.pl.when(count <= 3)
        def _() -> None:
            out_ref[...] = lib.jnp.full((1,), -count)

    def run(x: Any) -> Any:
        out = lib.jax.ShapeDtypeStruct((x.size // 128,), lib.jnp.int32)
        specs = {
            "in_specs": [lib.pl.BlockSpec((128,), lambda i: (i,))],
            "out_specs": lib.pl.BlockSpec((1,), lambda i: (i,)),
        }
        return call(lib, kernel, out, grid=(x.size // 128,), interpret=interpret, **specs)(x)

    return run


def take_rows(lib: Library, interpret: bool = False) -> Function:
    """Return rows of a table, added to rows of an array that is updated in place."""

    def kernel(index_ref: Any, table_ref: Any, x_ref: Any, out_ref: Any) -> None:
        row = index_ref[lib.pl.program_id(0)]
        out_ref[...] = x_ref[...] + table_ref[row, :]

    def run(index: Any, table: Any, x: Any) -> Any:
        rows, width = x.shape
        spec = lib.pl.BlockSpec((None, width), lambda i: (i, 0))
        whole = [lib.pl.BlockSpec(array.shape, lambda i, rank=array.ndim: (0,) * rank) for array in (index, table)]
        options = {"grid": (rows,), "in_specs": [*whole, spec], "out_specs": spec, "input_output_aliases": {2: 0}}
        out = lib.jax.ShapeDtypeStruct(x.shape, x.dtype)
        return call(lib, kernel, out, interpret=interpret, **options)(index, table, x)

    return run
