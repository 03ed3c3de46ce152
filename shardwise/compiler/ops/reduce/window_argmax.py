"""What the derivative of a windowed maximum or minimum needs: window_winner, pick_from_window, add_to_window.

It picks one element of each window along a dim, the first of the most extreme. window_winner says at which position of
its window that is, pick_from_window takes what another array has there, and add_to_window, its transpose, brings back
what comes from there. On a mesh each device takes the rows around its piece from its neighbours.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, highest, is_float, is_inexact, lowest, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.bitwise import And, Or
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.reduce.sliding_window import WindowDimension, halo_exchange
from shardwise.compiler.ops.shape.constants import Full, full
from shardwise.compiler.ops.shape.slicing import Pad, Slice
from shardwise.compiler.shardings.factors import FactorRule

Apply = Callable[..., Any]  # an op and its operands → its result, in the open frame or in StableHLO
NO_POSITION = -1  # a position that no window has


def window_slices(
    apply: Apply, x: Any, type: ArrayType, dim: int, sliding: WindowDimension, fill: Any
) -> Iterator[Any]:
    """For each position of the windows along `dim`, what an array of this type has there; `fill` outside of it."""
    low, high, between = (
        tuple(number if d == dim else 0 for d in range(type.ndim))
        for number in (sliding.low, sliding.high, sliding.base_dilation - 1)
    )
    pad = Pad(low, high, between)
    padded = apply(pad, x, apply(Full((), Scalar.of(fill, type.dtype))))
    limit = pad.out_type(type, ArrayType((), type.dtype)).shape
    for position in range(sliding.window):
        first = position * sliding.window_dilation
        last = first + sliding.stride * (sliding.output_size(type.shape[dim]) - 1) + 1
        start, step = _at((0,) * type.ndim, dim, first), _at((1,) * type.ndim, dim, sliding.stride)
        yield apply(Slice(start, _at(limit, dim, last), step), padded)


def _at(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim + 1 :])


def _lowering(hlo: Hlo) -> Apply:
    return lambda op, *operands: op.lower(hlo, *operands)


@record
class WindowOp(Op):
    """Windows along `dim` of operands of one shape; the other fields are those of a `WindowDimension`."""

    dim: int
    window: int
    stride: int
    low: int
    high: int
    base_dilation: int
    window_dilation: int

    @property
    def sliding(self) -> WindowDimension:
        """How windows lie along `dim`."""
        return WindowDimension(self.window, self.stride, self.low, self.high, self.base_dilation, self.window_dilation)

    def placed(self, x: ArrayType) -> ArrayType:
        """The type of an array like `x` with one element for each window."""
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"{self.name}: dim {self.dim} does not exist in {x}")
        self.sliding.check(self.name, self.dim)
        return x.with_shape(_at(x.shape, self.dim, self.sliding.output_size(x.shape[self.dim])))

    def fills(self, dtype: DType) -> tuple[Any, ...]:
        """For each operand over which windows slide, what lies outside of it; the others go with the result."""
        raise self.missing_rule("fills")

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(types[0].ndim))
        sizes = self.placed(types[0]).shape
        return FactorRule((dims,) * len(types), (dims,), sizes, exchange=frozenset({self.dim}))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        piece = -(-self.placed(types[0]).shape[self.dim] // count)
        halo = self.sliding.halo(self.dim, (), count, piece)
        return sum(halo.window.bytes_sent_of_array(type) for type in types[: len(self.fills(types[0].dtype))])

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        cut, piece = context.sharding_of(self.dim), context.out_shapes[0][self.dim]
        if not piece:
            return full(context.out_shapes[0], 0, self.out_type(*context.global_types).dtype)
        if not cut[0]:
            return self(*operands)
        size = context.global_types[0].shape[self.dim]
        fills = self.fills(operands[0].type.dtype)
        around = [
            halo_exchange(x, self.dim, size, self.sliding, cut, piece, fill)
            for x, fill in zip(operands, fills, strict=False)
        ]
        window = TakeWindow(self.dim, *cut, 0, piece, piece)  # an operand may be padded to another size than the result
        others = [x if x.type.shape[self.dim] == piece else window(x) for x in operands[len(fills) :]]
        return replace(self, **around[0][1]._asdict())(*(x for x, _ in around), *others)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)]
        return replace(self, dim=self.dim + 1)(*batched), 0

    def stacked(self, x: NumpyArray, fill: Any) -> NumpyArray:
        """The windows of a numpy array, each along the first dim."""
        type = ArrayType(x.shape, x.dtype)
        return np.stack(list(window_slices(lambda op, *xs: op.reference(*xs), x, type, self.dim, self.sliding, fill)))


@final
@record
class WindowArgExtremum(WindowOp):
    """The position within each window of its first largest (`direction` is "GT") or smallest ("LT") element.

    NaN compares beyond every number.
    """

    name = "window_arg_extremum"
    direction: str

    def out_type(self, x: ArrayType) -> ArrayType:
        if x.dtype.kind == "c":
            raise TypeError(f"window_arg_extremum: complex numbers have no order: {x}")
        return ArrayType(self.placed(x).shape, np.int32)

    def fills(self, dtype: DType) -> tuple[Any, ...]:
        return ((lowest if self.direction == "GT" else highest)(dtype),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        if not out.size:
            return hlo.constant(0, out)
        apply = _lowering(hlo)
        (fill,) = self.fills(x.type.dtype)
        best, *rest = window_slices(apply, x, x.type, self.dim, self.sliding, fill)
        found = hlo.constant(0, out)
        for position, here in enumerate(rest, 1):
            wins = apply(Compare(self.direction), here, best)
            if is_inexact(x.type.dtype):
                is_first_nan = apply(And(), apply(Compare("NE"), here, here), apply(Compare("EQ"), best, best))
                wins = apply(Or(), wins, is_first_nan)
            best = apply(Select(), wins, here, best)
            found = apply(Select(), wins, hlo.constant(position, out), found)
        return found

    def reference(self, x: NumpyArray) -> NumpyArray:
        out = self.out_type(ArrayType(x.shape, x.dtype))
        if not out.size:
            return np.zeros(out.shape, out.dtype)
        found = self.stacked(x, *self.fills(x.dtype)).astype(numpy_carrier(x.dtype))
        return np.asarray((np.argmax if self.direction == "GT" else np.argmin)(found, 0)).astype(out.dtype)


class WindowSelection(WindowOp):
    """The second operand says for each window at which position it picks an element of the first."""

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(tangents[0], primals[1])


def _check_positions(name: str, positions: ArrayType, shape: tuple[int, ...]) -> None:
    if positions != ArrayType(shape, np.int32):
        raise TypeError(f"{name}: needs a position for each window, {ArrayType(shape, np.int32)}, not {positions}")


@final
@record
class GatherFromWindow(WindowSelection):
    """Of each window of the first operand the element at the position that the second has for it; zero where there is
    none.
    """

    name = "gather_from_window"

    def out_type(self, x: ArrayType, positions: ArrayType) -> ArrayType:
        _check_positions(self.name, positions, self.placed(x).shape)
        return self.placed(x)

    def fills(self, dtype: DType) -> tuple[Any, ...]:
        return (0,)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, positions = operands
        if not cotangent.type.size:
            return full(x.type.shape, 0, x.type.dtype), None
        back = self.sliding.transposed(x.type.shape[self.dim])
        return ScatterAddToWindow(self.dim, *back)(cotangent, positions), None

    def lower(self, hlo: Hlo, x: Any, positions: Any) -> Any:
        out = self.out_type(x.type, positions.type)
        found = hlo.constant(0, out)
        if not out.size:
            return found
        for position, here in enumerate(window_slices(_lowering(hlo), x, x.type, self.dim, self.sliding, 0)):
            is_it = Compare("EQ").lower(hlo, positions, hlo.constant(position, positions.type))
            found = Select().lower(hlo, is_it, here, found)
        return found

    def reference(self, x: NumpyArray, positions: NumpyArray) -> NumpyArray:
        if not positions.size:
            return np.zeros(positions.shape, x.dtype)
        inside = (positions >= 0) & (positions < self.window)
        index = np.where(inside, positions, 0)[None].astype(np.int64)
        found = np.take_along_axis(self.stacked(x, 0), index, 0)[0]
        return np.where(inside, found, np.zeros((), x.dtype))


@final
@record
class ScatterAddToWindow(WindowSelection):
    """Of each window of the first operand the sum of the elements that were picked there: those whose position, which
    the second operand has for them, is theirs in the window, counted from its end.
    """

    name = "scatter_add_to_window"

    def out_type(self, x: ArrayType, positions: ArrayType) -> ArrayType:
        _check_positions(self.name, positions, x.shape)
        return self.placed(x)

    def fills(self, dtype: DType) -> tuple[Any, ...]:
        return 0, NO_POSITION

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, positions = operands
        if not cotangent.type.size:
            return full(x.type.shape, 0, x.type.dtype), None
        back = self.sliding.transposed(x.type.shape[self.dim])
        return GatherFromWindow(self.dim, *back)(cotangent, positions), None

    def lower(self, hlo: Hlo, x: Any, positions: Any) -> Any:
        out = self.out_type(x.type, positions.type)
        if not out.size:
            return hlo.constant(0, out)
        apply = _lowering(hlo)
        wide = numpy_carrier(out.dtype) if is_float(out.dtype) else out.dtype
        if wide != out.dtype:
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide))
        zero = hlo.constant(0, ArrayType(out.shape, wide))
        there = window_slices(apply, positions, positions.type, self.dim, self.sliding, NO_POSITION)
        terms = []
        for number, (here, position) in enumerate(
            zip(window_slices(apply, x, x.type, self.dim, self.sliding, 0), there, strict=True)
        ):
            mine = hlo.constant(self.window - 1 - number, position.type)
            terms.append(apply(Select(), apply(Compare("EQ"), position, mine), here, zero))
        total = reduce(lambda a, b: apply(Add(), a, b), terms)
        return total if wide == out.dtype else hlo.op("stablehlo.convert", (total,), out)

    @ignore_float_errors
    def reference(self, x: NumpyArray, positions: NumpyArray) -> NumpyArray:
        """Every element is carried to the window that it comes from."""
        out = self.out_type(*(ArrayType(y.shape, y.dtype) for y in (x, positions)))
        total = np.zeros(out.shape, numpy_carrier(x.dtype))
        for index in np.ndindex(*x.shape):
            position = self.window - 1 - int(positions[index])
            offset = self.base_dilation * index[self.dim] + self.low - self.window_dilation * position
            place, rest = divmod(offset, self.stride)
            if 0 <= position < self.window and not rest and 0 <= place < out.shape[self.dim]:
                total[_at(index, self.dim, place)] += x[index]
        return total.astype(x.dtype)
