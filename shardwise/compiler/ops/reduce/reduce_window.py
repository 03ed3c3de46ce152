"""Windowed reductions: the sum, product, maximum or minimum of each window of an array.

Along a sharded dim, devices exchange halos with their neighbours.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, accumulation_dtype, numpy_carrier
from shardwise.compiler.ir.jax_checks import check_divisible
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op, Primal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import NUMBERS, DtypeSet
from shardwise.compiler.ops.reduce.reductions import ReduceProd
from shardwise.compiler.ops.reduce.sliding_window import WindowDimension, halo_exchange
from shardwise.compiler.ops.reduce.window_argmax import GatherFromWindow, WindowArgExtremum, window_slices
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, i64_array_attribute
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.shardings.factors import FactorRule

ORDERED = DtypeSet("integers, floats or booleans", lambda dtype: dtype.kind != "c")


ACCEPTED_DTYPES = {SUM: NUMBERS, PROD: NUMBERS, MAX: ORDERED, MIN: ORDERED}


@final
@record
class ReduceWindow(Op):
    """Reduce each window with `reduction`: SUM, PROD, MAX or MIN (NaN propagates).

    The other fields have one entry per dim, with the same meaning as in XLA's ReduceWindow. The padding holds the
    neutral element of the reduction; a negative `low` or `high` crops.
    """

    name = "reduce_window"
    reduction: Reduction
    window: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    @property
    def window_dims(self) -> list[WindowDimension]:
        """The window parameters of each dim."""
        return [WindowDimension(*parameters) for parameters in zip(*self._parameters, strict=True)]

    @property
    def _parameters(self) -> tuple[tuple[int, ...], ...]:
        return self.window, self.strides, self.low, self.high, self.base_dilation, self.window_dilation

    def with_window_dims(self, window_dims: Sequence[WindowDimension]) -> "ReduceWindow":
        """Return the same reduction with other windows."""
        return ReduceWindow(self.reduction, *(tuple(window[i] for window in window_dims) for i in range(6)))

    def neutral(self, dtype: DType) -> Any:
        """Return the neutral element of the reduction."""
        return self.reduction.neutral(dtype)

    def out_type(self, x: ArrayType) -> ArrayType:
        if self.reduction not in ACCEPTED_DTYPES:
            raise TypeError(
                f"reduce_window: no windowed {self.reduction}; supported: {', '.join(map(str, ACCEPTED_DTYPES))}"
            )
        if any(len(numbers) != x.ndim for numbers in self._parameters):
            raise TypeError(f"reduce_window: each parameter needs one entry per dim of {x}, not {self._parameters}")
        for dim, window in enumerate(self.window_dims):
            window.check("reduce_window", dim)
        dtypes = ACCEPTED_DTYPES[self.reduction]
        if not dtypes.contains(x.dtype):
            raise TypeError(f"reduce_window: {self.reduction} needs {dtypes.description}, not {x}")
        return x.with_shape(
            tuple(window.output_size(size) for window, size in zip(self.window_dims, x.shape, strict=True))
        )

    def factors(self, x: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(x.ndim))
        windowed = frozenset(dim for dim, window in enumerate(self.window_dims) if window != WindowDimension(1))
        return FactorRule((dims,), (dims,), self.out_type(x).shape, exchange=windowed)

    def check_as_jax(self, x: ArrayType) -> None:
        check_divisible(self.name, x, self.out_type(x).shape)

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        out_size = -(-self.out_type(*types).shape[factor] // count)
        return self.window_dims[factor].halo(factor, (), count, out_size).window.bytes_sent_of_array(types[0])

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        window_dims = self.window_dims
        start = self.neutral(x.type.dtype)
        if 0 in context.out_shapes[0]:
            return full(context.out_shapes[0], start, x.type.dtype, x.type.weak)
        for dim, window in enumerate(window_dims):
            if window != WindowDimension(1) and context.sharding_of(dim)[0]:
                size, out_size = context.global_types[0].shape[dim], context.out_shapes[0][dim]
                x, window_dims[dim] = halo_exchange(x, dim, size, window, context.sharding_of(dim), out_size, start)
        return self.with_window_dims(window_dims)(x)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if self.reduction is SUM else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        if self.reduction is SUM:
            return y, self(dx)
        if not y.type.size:
            return y, None
        # Reduce one dim at a time, the last first, so that the first of equal elements in row-major order is selected.
        partial, tangent = x, dx
        for dim in reversed(range(x.type.ndim)):
            window = self.window_dims[dim]
            if window == WindowDimension(1):
                continue
            if self.reduction is PROD:
                stacks = [self._stack_windows(z, dim, window, fill) for z, fill in ((partial, 1), (tangent, 0))]
                partial, tangent = ReduceProd((x.type.ndim,)).jvp(stacks[:1], stacks[1:])
                continue
            index = WindowArgExtremum(dim, *window, self.reduction.selects)(partial)
            tangent = GatherFromWindow(dim, *window)(tangent, index)
            along_dim = [window if d == dim else WindowDimension(1) for d in range(x.type.ndim)]
            partial = self.with_window_dims(along_dim)(partial)
        return y, tangent

    def _stack_windows(self, x: Operand, dim: int, window: WindowDimension, fill: int) -> Any:
        """Stack the elements of each window along a new last dim."""
        slices = window_slices(_apply, x, x.type, dim, window, fill)
        return Concatenate(x.type.ndim)(*(Reshape((*y.type.shape, 1))(y) for y in slices))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        shape = operands[0].type.shape
        if not cotangent.type.size:
            return (full(shape, 0, cotangent.type.dtype),)
        transposed = [window.transposed(size) for window, size in zip(self.window_dims, shape, strict=True)]
        return (self.with_window_dims(transposed)(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (dim,) = dims
        assert dim is not None
        window_dims = self.window_dims
        window_dims.insert(dim, WindowDimension(1))
        return self.with_window_dims(window_dims)(*operands), dim

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        out = self.out_type(x.type)
        if not (x.type.size and out.size):
            return hlo.constant(self.neutral(out.dtype), out)
        if not out.ndim:
            return x
        wide = accumulation_dtype(out.dtype)
        if wide != out.dtype:
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide))
        start = hlo.constant(self.neutral(out.dtype), ArrayType((), wide))
        low, high, base = self.low, self.high, self.base_dilation
        if any(count < 0 for count in (*low, *high)):  # XLA's algebraic simplifier crashes on negative padding
            x = Pad(low, high, tuple(dilation - 1 for dilation in base)).lower(hlo, x, start)
            low, high, base = (0,) * out.ndim, (0,) * out.ndim, (1,) * out.ndim
        arrays = {
            "window_dimensions": self.window,
            "window_strides": self.strides,
            "base_dilations": base,
            "window_dilations": self.window_dilation,
        }
        edges = [list(pair) for pair in zip(low, high, strict=True)]
        attributes = ", ".join(
            [
                *(f"{name} = {i64_array_attribute(numbers)}" for name, numbers in arrays.items()),
                f"padding = dense<{edges}> : tensor<{len(edges)}x2xi64>",
            ]
        )
        region = hlo.reducer(self.reduction, wide)
        result = hlo.op("stablehlo.reduce_window", (x, start), ArrayType(out.shape, wide), attributes, (region,))
        return result if wide == out.dtype else hlo.op("stablehlo.convert", (result,), out)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        out = self.out_type(ArrayType(x.shape, x.dtype))
        start = np.asarray(self.neutral(x.dtype)).astype(numpy_carrier(x.dtype))
        interior = tuple(dilation - 1 for dilation in self.base_dilation)
        padded = Pad(self.low, self.high, interior).reference(x.astype(numpy_carrier(x.dtype)), start)
        total = np.full(out.shape, start)
        for position in np.ndindex(*self.window) if out.size else ():
            firsts = [p * dilation for p, dilation in zip(position, self.window_dilation, strict=True)]
            spans = zip(firsts, self.strides, out.shape, strict=True)
            view = padded[tuple(slice(first, first + step * (n - 1) + 1, step) for first, step, n in spans)]
            total = self.reduction.ufunc(total, view)
        return total.astype(x.dtype)


def _apply(op: Op, *operands: Operand) -> Any:
    return op(*operands)
