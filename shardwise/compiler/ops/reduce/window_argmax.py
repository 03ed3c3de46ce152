"""Ops for the derivative of a windowed maximum or minimum.

The derivative selects one element of each window along a dim: its first extremum. `window_arg_extremum` finds the
position of this element in the window, `gather_from_window` reads another array at that position, and
`scatter_add_to_window` is the transpose of `gather_from_window`. Along a sharded dim, devices exchange halos with their
neighbours.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar, final

import numpy as np

from shardwise.compiler.dtypes import DType, highest, is_float, is_inexact, lowest, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op, Primal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, Scalar, ScalarLike
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.bitwise import And, Or
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.reduce.sliding_window import WindowDimension, halo_exchange
from shardwise.compiler.ops.shape.constants import Full, full
from shardwise.compiler.ops.shape.slicing import Pad, Slice
from shardwise.compiler.shardings.factors import FactorRule

Apply = Callable[..., Any]  # (op, *operands) -> result: applies the op in the current frame, or lowers it
_Value = TypeVar("_Value", Operand, HloValue, NumpyArray)
NO_POSITION = -1  # outside every window


def window_slices(
    apply: Apply, x: _Value, type: ArrayType, dim: int, window_dim: WindowDimension, fill: ScalarLike
) -> Iterator[_Value]:
    """Yield, for each position of the window, the elements at that position of all windows along `dim`.

    `type` is the type of `x`. Elements outside the array are `fill`.
    """
    low, high, interior = (
        tuple(number if d == dim else 0 for d in range(type.ndim))
        for number in (window_dim.low, window_dim.high, window_dim.base_dilation - 1)
    )
    pad = Pad(low, high, interior)
    padded = apply(pad, x, apply(Full((), Scalar.from_value(fill, type.dtype))))
    limit = pad.out_type(type, ArrayType((), type.dtype)).shape
    for position in range(window_dim.window):
        first = position * window_dim.window_dilation
        last = first + window_dim.stride * (window_dim.output_size(type.shape[dim]) - 1) + 1
        start, step = _replace_at((0,) * type.ndim, dim, first), _replace_at((1,) * type.ndim, dim, window_dim.stride)
        yield apply(Slice(start, _replace_at(limit, dim, last), step), padded)


def _replace_at(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim + 1 :])


def _constant(type: ArrayType, value: int) -> Full:
    return Full(type.shape, Scalar.from_value(value, type.dtype), type.weak)


def _lower_with(hlo: Hlo) -> Apply:
    return lambda op, *operands: op.lower(hlo, *operands)


@record
class WindowOp(Op):
    """An op on windows along `dim`. The other fields are the fields of a `WindowDimension`."""

    dim: int
    window: int
    stride: int
    low: int
    high: int
    base_dilation: int
    window_dilation: int

    @property
    def window_dim(self) -> WindowDimension:
        """The window parameters along `dim`."""
        return WindowDimension(self.window, self.stride, self.low, self.high, self.base_dilation, self.window_dilation)

    @abstractmethod
    def expand(self, apply: Apply, *operands: Any) -> Any:
        """Return the result for operands with at least one window, as slices of them that are compared and selected."""

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        out = self.out_type(*[operand.type for operand in operands])
        return self.expand(_lower_with(hlo), *operands) if out.size else hlo.constant(0, out)

    def windowed_type(self, x: ArrayType) -> ArrayType:
        """Return the type of `x` with one element per window along `dim`."""
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"{self.name}: dim {self.dim} does not exist in {x}")
        self.window_dim.check(self.name, self.dim)
        return x.with_shape(_replace_at(x.shape, self.dim, self.window_dim.output_size(x.shape[self.dim])))

    def fills(self, dtype: DType) -> tuple[Any, ...]:
        """Return the fill outside each operand that has windows. The other operands have the shape of the result."""
        raise self.missing_rule("fills")

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(types[0].ndim))
        sizes = self.windowed_type(types[0]).shape
        return FactorRule((dims,) * len(types), (dims,), sizes, exchange=frozenset({self.dim}))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        out_size = -(-self.windowed_type(types[0]).shape[self.dim] // count)
        halo = self.window_dim.halo(self.dim, (), count, out_size)
        return sum(halo.window.bytes_sent_of_array(type) for type in types[: len(self.fills(types[0].dtype))])

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        sharding, out_size = context.sharding_of(self.dim), context.out_shapes[0][self.dim]
        if not out_size:
            return full(context.out_shapes[0], 0, self.out_type(*context.global_types).dtype)
        if not sharding[0]:
            return self(*operands)
        size = context.global_types[0].shape[self.dim]
        fills = self.fills(operands[0].type.dtype)
        with_halos = [
            halo_exchange(x, self.dim, size, self.window_dim, sharding, out_size, fill)
            for x, fill in zip(operands, fills, strict=False)
        ]
        window = TakeWindow(self.dim, *sharding, 0, out_size, out_size)  # the padded sizes may differ
        others = [x if x.type.shape[self.dim] == out_size else window(x) for x in operands[len(fills) :]]
        return replace(self, **with_halos[0][1]._asdict())(*(x for x, _ in with_halos), *others)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)]
        return replace(self, dim=self.dim + 1)(*batched), 0

    def stack_windows(self, x: NumpyArray, fill: ScalarLike) -> NumpyArray:
        """Stack the elements of each window of a numpy array along a new first dim."""
        type = ArrayType(x.shape, x.dtype)
        return np.stack(
            list(window_slices(lambda op, *xs: op.reference(*xs), x, type, self.dim, self.window_dim, fill))
        )


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
        return ArrayType(self.windowed_type(x).shape, np.int32)

    def fills(self, dtype: DType) -> tuple[Any, ...]:
        return ((lowest if self.direction == "GT" else highest)(dtype),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def expand(self, apply: Apply, *operands: Any) -> Any:
        (x,) = operands
        out = self.out_type(x.type)
        (fill,) = self.fills(x.type.dtype)
        best, *rest = window_slices(apply, x, x.type, self.dim, self.window_dim, fill)
        best_position = apply(_constant(out, 0))
        for position, element in enumerate(rest, 1):
            is_better = apply(Compare(self.direction), element, best)
            if is_inexact(x.type.dtype):
                is_first_nan = apply(And(), apply(Compare("NE"), element, element), apply(Compare("EQ"), best, best))
                is_better = apply(Or(), is_better, is_first_nan)
            best = apply(Select(), is_better, element, best)
            best_position = apply(Select(), is_better, apply(_constant(out, position)), best_position)
        return best_position

    def reference(self, x: NumpyArray) -> NumpyArray:
        out = self.out_type(ArrayType(x.shape, x.dtype))
        if not out.size:
            return np.zeros(out.shape, out.dtype)
        windows = self.stack_windows(x, *self.fills(x.dtype)).astype(numpy_carrier(x.dtype))
        return np.asarray((np.argmax if self.direction == "GT" else np.argmin)(windows, 0)).astype(out.dtype)


class WindowSelection(WindowOp):
    """An op that selects one element per window of the first operand. The second operand holds the positions."""

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(tangents[0], primals[1])


def _check_positions(name: str, positions: ArrayType, shape: tuple[int, ...]) -> None:
    if positions != ArrayType(shape, np.int32):
        raise TypeError(f"{name}: needs one position per window, {ArrayType(shape, np.int32)}, not {positions}")


@final
@record
class GatherFromWindow(WindowSelection):
    """The element of each window of the first operand at the position in the second; zero if out of bounds."""

    name = "gather_from_window"

    def out_type(self, x: ArrayType, positions: ArrayType) -> ArrayType:
        _check_positions(self.name, positions, self.windowed_type(x).shape)
        return self.windowed_type(x)

    def fills(self, dtype: DType) -> tuple[Any, ...]:
        return (0,)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, positions = operands
        if not cotangent.type.size:
            return full(x.type.shape, 0, x.type.dtype), None
        transposed = self.window_dim.transposed(x.type.shape[self.dim])
        return ScatterAddToWindow(self.dim, *transposed)(cotangent, positions), None

    def expand(self, apply: Apply, *operands: Any) -> Any:
        x, positions = operands
        result = apply(_constant(self.out_type(x.type, positions.type), 0))
        for position, element in enumerate(window_slices(apply, x, x.type, self.dim, self.window_dim, 0)):
            is_selected = apply(Compare("EQ"), positions, apply(_constant(positions.type, position)))
            result = apply(Select(), is_selected, element, result)
        return result

    def reference(self, x: NumpyArray, positions: NumpyArray) -> NumpyArray:
        if not positions.size:
            return np.zeros(positions.shape, x.dtype)
        inside = (positions >= 0) & (positions < self.window)
        index = np.where(inside, positions, 0)[None].astype(np.int64)
        selected = np.take_along_axis(self.stack_windows(x, 0), index, 0)[0]
        return np.where(inside, selected, np.zeros((), x.dtype))


@final
@record
class ScatterAddToWindow(WindowSelection):
    """The transpose of `GatherFromWindow`.

    Sum the elements of each window of the first operand whose position in the second operand equals their index in the
    window, counted from its end.
    """

    name = "scatter_add_to_window"

    def out_type(self, x: ArrayType, positions: ArrayType) -> ArrayType:
        _check_positions(self.name, positions, x.shape)
        return self.windowed_type(x)

    def fills(self, dtype: DType) -> tuple[Any, ...]:
        return 0, NO_POSITION

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, positions = operands
        if not cotangent.type.size:
            return full(x.type.shape, 0, x.type.dtype), None
        transposed = self.window_dim.transposed(x.type.shape[self.dim])
        return GatherFromWindow(self.dim, *transposed)(cotangent, positions), None

    def expand(self, apply: Apply, *operands: Any) -> Any:
        x, positions = operands
        out = self.out_type(x.type, positions.type)
        wide = numpy_carrier(out.dtype) if is_float(out.dtype) else out.dtype
        if wide != out.dtype:
            x = apply(Convert(wide, x.type.weak), x)
        zero = apply(_constant(out.with_dtype(wide), 0))
        window_positions = window_slices(apply, positions, positions.type, self.dim, self.window_dim, NO_POSITION)
        terms = []
        for index, (element, position) in enumerate(
            zip(window_slices(apply, x, x.type, self.dim, self.window_dim, 0), window_positions, strict=True)
        ):
            place = apply(_constant(position.type, self.window - 1 - index))
            terms.append(apply(Select(), apply(Compare("EQ"), position, place), element, zero))
        total = reduce(lambda a, b: apply(Add(), a, b), terms)
        return total if wide == out.dtype else apply(Convert(out.dtype, out.weak), total)

    @ignore_float_errors
    def reference(self, x: NumpyArray, positions: NumpyArray) -> NumpyArray:
        """Add each element to the window that it was gathered from."""
        out = self.out_type(*(ArrayType(y.shape, y.dtype) for y in (x, positions)))
        total = np.zeros(out.shape, numpy_carrier(x.dtype))
        for index in np.ndindex(*x.shape):
            position = self.window - 1 - int(positions[index])
            offset = self.base_dilation * index[self.dim] + self.low - self.window_dilation * position
            index_out, rest = divmod(offset, self.stride)
            if 0 <= position < self.window and not rest and 0 <= index_out < out.shape[self.dim]:
                total[_replace_at(index, self.dim, index_out)] += x[index]
        return total.astype(x.dtype)
