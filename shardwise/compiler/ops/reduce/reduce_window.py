"""reduce_window: a sum, product, maximum or minimum of each window of an array.

On a mesh each device takes the rows around its piece from its neighbours.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, accumulation_dtype, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op, ignore_float_errors
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


ACCEPTED_DTYPES = {
    SUM: NUMBERS,
    PROD: NUMBERS,
    MAX: ORDERED,
    MIN: ORDERED,
}  # the element types that each reduction accepts


@final
@record
class ReduceWindow(Op):
    """Along dim i windows of `window[i]` elements, each `window_dilation[i]` from the next, lie `strides[i]` apart.

    The array's elements are `base_dilation[i]` apart, with `low[i]` and `high[i]` more around them: negative counts
    take away, and what is added changes nothing. `reduction` is SUM, PROD, MAX or MIN (NaN where any is).
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
    def slidings(self) -> list[WindowDimension]:
        """How windows lie along each dim."""
        return [WindowDimension(*numbers) for numbers in zip(*self._lists, strict=True)]

    @property
    def _lists(self) -> tuple[tuple[int, ...], ...]:
        return self.window, self.strides, self.low, self.high, self.base_dilation, self.window_dilation

    def over(self, slidings: Sequence[WindowDimension]) -> "ReduceWindow":
        """The same with other windows."""
        return ReduceWindow(self.reduction, *(tuple(sliding[i] for sliding in slidings) for i in range(6)))

    def start(self, dtype: DType) -> Any:
        """The element that changes nothing."""
        return self.reduction.neutral(dtype)

    def out_type(self, x: ArrayType) -> ArrayType:
        if self.reduction not in ACCEPTED_DTYPES:
            raise TypeError(
                f"reduce_window: no windowed {self.reduction}; supported: {', '.join(map(str, ACCEPTED_DTYPES))}"
            )
        if any(len(numbers) != x.ndim for numbers in self._lists):
            raise TypeError(f"reduce_window: needs a number for each dim of {x} in each of {self._lists}")
        for dim, sliding in enumerate(self.slidings):
            sliding.check("reduce_window", dim)
        takes = ACCEPTED_DTYPES[self.reduction]
        if not takes.contains(x.dtype):
            raise TypeError(f"reduce_window: {self.reduction} needs {takes.description}, not {x}")
        return x.with_shape(tuple(s.output_size(size) for s, size in zip(self.slidings, x.shape, strict=True)))

    def factors(self, x: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(x.ndim))
        moved = frozenset(dim for dim, sliding in enumerate(self.slidings) if sliding != WindowDimension(1))
        return FactorRule((dims,), (dims,), self.out_type(x).shape, exchange=moved)

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        piece = -(-self.out_type(*types).shape[factor] // count)
        return self.slidings[factor].halo(factor, (), count, piece).window.bytes_sent_of_array(types[0])

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        slidings = self.slidings
        start = self.start(x.type.dtype)
        if 0 in context.out_shapes[0]:
            return full(context.out_shapes[0], start, x.type.dtype, x.type.weak)
        for dim, sliding in enumerate(slidings):
            if sliding != WindowDimension(1) and context.sharding_of(dim)[0]:
                size, piece = context.global_types[0].shape[dim], context.out_shapes[0][dim]
                x, slidings[dim] = halo_exchange(x, dim, size, sliding, context.sharding_of(dim), piece, start)
        return self.over(slidings)(x)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if self.reduction is SUM else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        if self.reduction is SUM:
            return y, self(dx)
        if not y.type.size:
            return y, None
        # Dim by dim, the last one first: so of equal elements the first in row-major order is picked.
        here, moved = x, dx
        for dim in reversed(range(x.type.ndim)):
            sliding = self.slidings[dim]
            if sliding == WindowDimension(1):
                continue
            if self.reduction is PROD:
                stacks = [self._stacked(z, dim, sliding, fill) for z, fill in ((here, 1), (moved, 0))]
                here, moved = ReduceProd((x.type.ndim,)).jvp(stacks[:1], stacks[1:])
                continue
            index = WindowArgExtremum(dim, *sliding, self.reduction.selects)(here)
            moved = GatherFromWindow(dim, *sliding)(moved, index)
            here = self.over([sliding if d == dim else WindowDimension(1) for d in range(x.type.ndim)])(here)
        return y, moved

    def _stacked(self, x: Any, dim: int, sliding: WindowDimension, fill: int) -> Any:
        """The windows along `dim`, each along a new last dim."""
        found = [
            Reshape((*view.type.shape, 1))(view) for view in window_slices(_applied, x, x.type, dim, sliding, fill)
        ]
        return Concatenate(x.type.ndim)(*found)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        shape = operands[0].type.shape
        if not cotangent.type.size:
            return (full(shape, 0, cotangent.type.dtype),)
        return (self.over([s.transposed(size) for s, size in zip(self.slidings, shape, strict=True)])(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (dim,) = dims
        assert dim is not None
        slidings = self.slidings
        slidings.insert(dim, WindowDimension(1))
        return self.over(slidings)(*operands), dim

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        if not (x.type.size and out.size):
            return hlo.constant(self.start(out.dtype), out)
        if not out.ndim:
            return x
        wide = accumulation_dtype(out.dtype)
        if wide != out.dtype:
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide))
        start = hlo.constant(self.start(out.dtype), ArrayType((), wide))
        low, high, base = self.low, self.high, self.base_dilation
        if any(count < 0 for count in (*low, *high)):  # XLA's simplifier dies of a reduce_window that takes away
            x = Pad(low, high, tuple(dilation - 1 for dilation in base)).lower(hlo, x, start)
            low, high, base = (0,) * out.ndim, (0,) * out.ndim, (1,) * out.ndim
        lists = {
            "window_dimensions": self.window,
            "window_strides": self.strides,
            "base_dilations": base,
            "window_dilations": self.window_dilation,
        }
        edges = [list(pair) for pair in zip(low, high, strict=True)]
        attributes = ", ".join(
            [
                *(f"{name} = {i64_array_attribute(numbers)}" for name, numbers in lists.items()),
                f"padding = dense<{edges}> : tensor<{len(edges)}x2xi64>",
            ]
        )
        region = hlo.reducer(self.reduction, wide)
        found = hlo.op("stablehlo.reduce_window", (x, start), ArrayType(out.shape, wide), attributes, (region,))
        return found if wide == out.dtype else hlo.op("stablehlo.convert", (found,), out)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        out = self.out_type(ArrayType(x.shape, x.dtype))
        start = np.asarray(self.start(x.dtype)).astype(numpy_carrier(x.dtype))
        between = tuple(dilation - 1 for dilation in self.base_dilation)
        padded = Pad(self.low, self.high, between).reference(x.astype(numpy_carrier(x.dtype)), start)
        total = np.full(out.shape, start)
        for position in np.ndindex(*self.window) if out.size else ():
            firsts = [p * dilation for p, dilation in zip(position, self.window_dilation, strict=True)]
            seen = zip(firsts, self.strides, out.shape, strict=True)
            view = padded[tuple(slice(first, first + step * (n - 1) + 1, step) for first, step, n in seen)]
            total = self.reduction.ufunc(total, view)
        return total.astype(x.dtype)


def _applied(op: Op, *operands: Any) -> Any:
    return op(*operands)
