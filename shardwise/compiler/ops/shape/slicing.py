"""Ops that take arrays apart and put them together, at places that are known: slice, pad, concatenate, reverse.

Along a dim that one of them changes, each device takes the stretch that its piece of the result is made of from its
neighbours; the other dims pass through. Cuts may be uneven everywhere.
"""

from collections.abc import Collection, Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, UndefinedPrimal
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import MovementOp, i64_array_attribute
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class Slice(MovementOp):
    """Along dim i the elements `start[i]`, `start[i] + stride[i]`, and so on, before `limit[i]`."""

    name = "slice"
    start: tuple[int, ...]
    limit: tuple[int, ...]
    stride: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if not len(self.start) == len(self.limit) == len(self.stride) == x.ndim:
            raise TypeError(
                f"slice: needs a start, a limit and a stride for each dim of {x}, "
                f"not {self.start}, {self.limit} and {self.stride}"
            )
        for dim, (start, limit, stride) in enumerate(zip(self.start, self.limit, self.stride, strict=True)):
            if not 0 <= start <= limit <= x.shape[dim]:
                raise TypeError(f"slice: {start}:{limit} is not a part of dim {dim} of {x}")
            if stride < 1:
                raise TypeError(f"slice: dim {dim} needs a stride of 1 or more, not {stride}; reverse to go backwards")
        parts = zip(self.start, self.limit, self.stride, strict=True)
        return x.with_shape(tuple(-(-(limit - start) // stride) for start, limit, stride in parts))

    def factors(self, x: ArrayType) -> FactorRule:
        return _changing((x.shape,), self.out_type(x).shape, self._changed(x))

    def _changed(self, x: ArrayType) -> set[int]:
        result = self.out_type(x).shape
        return {dim for dim in range(x.ndim) if result[dim] != x.shape[dim]}

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        parts = [(0, size, 1) for size in x.type.shape]  # a dim that keeps its size is taken as it is, padding too
        for dim in self._changed(context.global_types[0]):
            wanted = context.out_shapes[0][dim]
            if not context.sharding_of(dim)[0]:
                parts[dim] = (self.start[dim], self.limit[dim], self.stride[dim])
                continue
            window = self._window(dim, *context.sharding_of(dim), wanted)
            x = window(x)
            parts[dim] = (0, window.width, self.stride[dim])
        return slice_dims(x, parts)

    def _window(self, dim: int, axes: tuple[str, ...], count: int, piece: int) -> TakeWindow:
        """What a piece of the result is made of."""
        step = self.stride[dim]
        return TakeWindow(dim, axes, count, self.start[dim], step * piece, max(0, step * (piece - 1) + 1))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        piece = -(-self.out_type(*types).shape[factor] // count)
        return self._window(factor, (), count, piece).bytes_sent_of_array(types[0])

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        (x,) = operands
        high = [
            size - start - _spread(count, stride - 1)
            for size, start, count, stride in zip(
                x.type.shape, self.start, cotangent.type.shape, self.stride, strict=True
            )
        ]
        interior = tuple(stride - 1 for stride in self.stride)
        return (Pad(self.start, tuple(high), interior)(cotangent, full((), 0, cotangent.type.dtype)),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (dim,) = dims
        assert dim is not None
        start, limit, stride = self.start, self.limit, self.stride
        op = Slice(_inserted(start, dim, 0), _inserted(limit, dim, axis.size), _inserted(stride, dim, 1))
        return op(*operands), dim

    def lower(self, hlo: Hlo, x: Any) -> Any:
        lists = {"start_indices": self.start, "limit_indices": self.limit, "strides": self.stride}
        return hlo.op("stablehlo.slice", (x,), self.out_type(x.type), _attributes(lists))

    def reference(self, x: NumpyArray) -> NumpyArray:
        return x[tuple(map(slice, self.start, self.limit, self.stride))]


@final
@record
class Reverse(MovementOp):
    """The elements in opposite order along `dims`."""

    name = "reverse"
    dims: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if missing := [dim for dim in self.dims if not 0 <= dim < x.ndim]:
            raise TypeError(f"reverse: dims {missing} do not exist in {x}")
        if len(set(self.dims)) != len(self.dims):
            raise TypeError(f"reverse: a dim repeats in {self.dims}")
        return x

    def factors(self, x: ArrayType) -> FactorRule:
        return _changing((x.shape,), x.shape, self.dims)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        for dim in self.dims:
            if context.sharding_of(dim)[0]:
                x = self._window(
                    dim, *context.sharding_of(dim), context.out_shapes[0][dim], context.global_types[0].shape[dim]
                )(x)
        return self(x)

    def _window(self, dim: int, axes: tuple[str, ...], count: int, piece: int, size: int) -> TakeWindow:
        """What a piece of the result is made of: the last piece's elements come first."""
        return TakeWindow(dim, axes, count, size - piece, -piece, piece)

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        size = types[0].shape[factor]
        return self._window(factor, (), count, -(-size // count), size).bytes_sent_of_array(types[0])

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (self(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (dim,) = dims
        assert dim is not None
        return Reverse(tuple(d + (d >= dim) for d in self.dims))(*operands), dim

    def lower(self, hlo: Hlo, x: Any) -> Any:
        return hlo.op("stablehlo.reverse", (x,), x.type, _attributes({"dimensions": self.dims}))

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.flip(x, self.dims)


class JointlyLinearMovement(MovementOp):
    """Elements of several operands in one result: linear in all of them together."""

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(types))),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moved = [zeros_like(x) if dx is None else dx for x, dx in zip(primals, tangents, strict=True)]
        return self(*primals), self(*moved)


@final
@record
class Pad(JointlyLinearMovement):
    """The first operand with copies of the second, a scalar, around it and between its elements.

    Along dim i `low[i]` come before, `high[i]` after, and `interior[i]` between two elements. A negative `low` or
    `high` takes as many away, once the others are there.
    """

    name = "pad"
    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]

    def out_type(self, x: ArrayType, value: ArrayType) -> ArrayType:
        if not len(self.low) == len(self.high) == len(self.interior) == x.ndim:
            raise TypeError(
                f"pad: needs a low, a high and an interior padding for each dim of {x}, "
                f"not {self.low}, {self.high} and {self.interior}"
            )
        if value.shape or value.dtype != x.dtype:
            raise TypeError(f"pad: {x} is padded with a scalar of its dtype, not with {value}")
        if any(between < 0 for between in self.interior):
            raise TypeError(f"pad: interior padding cannot be negative: {self.interior}")
        shape = self._shape(x.shape)
        for dim, size in enumerate(shape):
            if size < 0:
                raise TypeError(
                    f"pad: {self.low[dim]} and {self.high[dim]} take more than there is of dim {dim} of {x}"
                )
        return ArrayType(shape, x.dtype, x.weak and value.weak)

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        parts = zip(shape, self.low, self.high, self.interior, strict=True)
        return tuple(low + _spread(size, between) + high for size, low, high, between in parts)

    def factors(self, x: ArrayType, value: ArrayType) -> FactorRule:
        parts = list(zip(self.low, self.high, self.interior, strict=True))
        changed = {dim for dim, part in enumerate(parts) if part != (0, 0, 0)}
        return _changing((x.shape, ()), self._shape(x.shape), changed)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        x, value = operands
        low, high, interior = (list(counts) for counts in (self.low, self.high, self.interior))
        shape = list(x.type.shape)
        outside = []
        for dim, size in enumerate(context.global_types[0].shape):
            axes, count = context.sharding_of(dim)
            if axes and (low[dim] or high[dim] or interior[dim]):
                piece = context.out_shapes[0][dim]
                x = self._window(dim, axes, count, piece)(self._spread_out(x, value, dim))
                outside.append((dim, self.low[dim], self.low[dim] + _spread(size, interior[dim])))
                low[dim] = high[dim] = interior[dim] = 0
                shape[dim] = piece
        for dim, first, last in outside:
            index = global_indices(context, tuple(shape), dim)
            bounds = [full(tuple(shape), bound, np.int32) for bound in (first, last)]
            inside = And()(Compare("GE")(index, bounds[0]), Compare("LT")(index, bounds[1]))
            x = Select()(inside, x, Broadcast(tuple(shape), ())(value))
        return Pad(tuple(low), tuple(high), tuple(interior))(x, value)

    def _spread_out(self, x: Any, value: Any, dim: int) -> Any:
        """`x` with the scalar after each of its elements along `dim`: pieces of this still follow each other."""
        between = _inserted((0,) * (x.type.ndim - 1), dim, self.interior[dim])
        return Pad((0,) * x.type.ndim, between, between)(x, value) if self.interior[dim] else x

    def _window(self, dim: int, axes: tuple[str, ...], count: int, piece: int) -> TakeWindow:
        """What a piece of the result is made of, of pieces that are spread out."""
        return TakeWindow(dim, axes, count, -self.low[dim], piece, piece)

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        shape = types[0].shape
        piece = -(-self._shape(shape)[factor] // count)
        rows = -(-shape[factor] // count) * count * (self.interior[factor] + 1)
        spread = types[0].with_shape((*shape[:factor], rows, *shape[factor + 1 :]))
        return self._window(factor, (), count, piece).bytes_sent_of_array(spread)

    def padding(self, fills: Sequence[Any]) -> Any:
        # Past the end of a dim that passes through, the padding of other dims brings the scalar in.
        brings = any(count > 0 for count in (*self.low, *self.high, *self.interior))
        return _common(fills) if len(fills) == 2 or not brings else None

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, value = operands
        zero = full((), 0, cotangent.type.dtype)
        to_x = to_value = None
        if isinstance(x, UndefinedPrimal):
            low, high = (tuple(-count for count in counts) for counts in (self.low, self.high))
            spread = Pad(low, high, (0,) * len(low))(cotangent, zero)
            steps = (between + 1 for between in self.interior)
            to_x = slice_dims(spread, [(0, size, step) for size, step in zip(spread.type.shape, steps, strict=True)])
        if isinstance(value, UndefinedPrimal):
            # Chosen, not subtracted from the sum of all: what flows to the operand may be infinite.
            added = Select()(self._is_new(x.type.shape), cotangent, zeros_like(cotangent))
            to_value = Sum(tuple(range(cotangent.type.ndim)))(added)
        return to_x, to_value

    def _is_new(self, shape: tuple[int, ...]) -> Any:
        """Where the result for an operand of `shape` holds the scalar."""
        return self(full(shape, False, np.bool_), full((), True, np.bool_))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x, value), (dim, value_dim) = operands, dims
        target = 0 if dim is None else dim
        x = batch_dim_at(x, dim, target, axis.size)
        op = Pad(*(_inserted(counts, target, 0) for counts in (self.low, self.high, self.interior)))
        if value_dim is None:
            return op(x, value), target
        padded = op(x, full((), 0, x.type.dtype, x.type.weak))
        values = Broadcast(padded.type.shape, (target,))(value)  # one for each element of the batch
        return Select()(op._is_new(x.type.shape), values, padded), target

    def lower(self, hlo: Hlo, x: Any, value: Any) -> Any:
        lists = {"edge_padding_low": self.low, "edge_padding_high": self.high, "interior_padding": self.interior}
        return hlo.op("stablehlo.pad", (x, value), self.out_type(x.type, value.type), _attributes(lists))

    def reference(self, x: NumpyArray, value: NumpyArray) -> NumpyArray:
        before, after = (tuple(max(0, count) for count in counts) for counts in (self.low, self.high))
        whole = np.full(Pad(before, after, self.interior)._shape(x.shape), value, x.dtype)
        parts = zip(x.shape, before, self.interior, strict=True)
        whole[tuple(slice(low, low + _spread(size, between), between + 1) for size, low, between in parts)] = x
        edges = zip(whole.shape, self.low, self.high, strict=True)
        return whole[tuple(slice(max(0, -low), size - max(0, -high)) for size, low, high in edges)]


@final
@record
class Concatenate(JointlyLinearMovement):
    """The operands one after the other along `dim`."""

    name = "concatenate"
    dim: int

    def out_type(self, *types: ArrayType) -> ArrayType:
        if not types:
            raise TypeError("concatenate: needs at least one operand")
        if not 0 <= self.dim < types[0].ndim:
            raise TypeError(f"concatenate: dim {self.dim} does not exist in {types[0]}")
        if len({(type.dtype, type.ndim, type.without((self.dim,)).shape) for type in types}) != 1:
            raise TypeError(
                f"concatenate: operands must have one dtype and equal sizes in all dims but {self.dim}, "
                f"not {', '.join(map(str, types))}"
            )
        size = sum(type.shape[self.dim] for type in types)
        shape = (*types[0].shape[: self.dim], size, *types[0].shape[self.dim + 1 :])
        return ArrayType(shape, types[0].dtype, all(type.weak for type in types))

    def factors(self, *types: ArrayType) -> FactorRule:
        return _changing([type.shape for type in types], self.out_type(*types).shape, {self.dim})

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        axes, count = context.sharding_of(self.dim)
        if not axes:
            return self(*operands)
        piece = context.out_shapes[0][self.dim]
        found: Any = None
        for x, first in zip(operands, self._firsts(context.global_types), strict=True):
            taken = TakeWindow(self.dim, axes, count, -first, piece, piece)(x)
            if found is None:
                found = taken
                continue
            shape = taken.type.shape
            is_here = Compare("GE")(global_indices(context, shape, self.dim), full(shape, first, np.int32))
            found = Select()(is_here, taken, found)
        return found

    def _firsts(self, types: Sequence[ArrayType]) -> list[int]:
        """Where each operand begins in the result."""
        return [sum(type.shape[self.dim] for type in types[:number]) for number in range(len(types))]

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        piece = -(-self.out_type(*types).shape[self.dim] // count)
        windows = [TakeWindow(self.dim, (), count, -first, piece, piece) for first in self._firsts(types)]
        return sum(window.bytes_sent_of_array(type) for window, type in zip(windows, types, strict=True))

    def padding(self, fills: Sequence[Any]) -> Any:
        return _common(fills)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        start = 0
        for x in operands:
            limit = start + x.type.shape[self.dim]
            found.append(slice_along(cotangent, self.dim, start, limit) if isinstance(x, UndefinedPrimal) else None)
            start = limit
        return tuple(found)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        target = next(dim for dim in dims if dim is not None)
        batched = [batch_dim_at(x, dim, target, axis.size) for x, dim in zip(operands, dims, strict=True)]
        return Concatenate(self.dim + (self.dim >= target))(*batched), target

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        out = self.out_type(*(x.type for x in operands))
        return hlo.op("stablehlo.concatenate", operands, out, f"dimension = {self.dim} : i64")

    def reference(self, *operands: NumpyArray) -> NumpyArray:
        return np.concatenate(operands, self.dim)


def slice_dims(x: Any, parts: Sequence[tuple[int, int, int]]) -> Any:
    """`x` cut to a start, a limit and a stride for each dim; itself where that changes nothing."""
    if list(parts) == [(0, size, 1) for size in x.type.shape]:
        return x
    return Slice(*(tuple(part[i] for part in parts) for i in range(3)))(x)


def slice_along(x: Any, dim: int, start: int, limit: int, stride: int = 1) -> Any:
    """`x` cut along one dim."""
    parts = [(0, size, 1) for size in x.type.shape]
    parts[dim] = (start, limit, stride)
    return slice_dims(x, parts)


def global_indices(context: LocalContext, shape: tuple[int, ...], dim: int, operand: int | None = None) -> Any:
    """Each element's index along `dim` in the whole (the result, or an operand) of which this shape is a piece."""
    index = Iota(shape, dim, np.dtype(np.int32))()
    offset = context.offset(dim, np.int32, operand)
    return index if offset is None else Add()(index, Broadcast(shape, ())(offset))


def valid_mask(context: LocalContext, shape: tuple[int, ...], dim: int, operand: int | None = None) -> Any:
    """Which elements of such a piece are not padding of the first operand's `dim`; None where none can be."""
    size = context.global_types[0].shape[dim]
    if shape[dim] * context.sharding_of(dim, operand)[1] == size:
        return None
    return Compare("LT")(global_indices(context, shape, dim, operand), full(shape, size, np.int32))


def _changing(operands: Sequence[tuple[int, ...]], result: tuple[int, ...], changed: Collection[int]) -> FactorRule:
    """Dim i of each operand is dim i of the result; where it changes, devices talk."""
    tables = tuple(tuple((dim,) for dim in range(len(shape))) for shape in operands)
    dims = tuple((dim,) for dim in range(len(result)))
    return FactorRule(tables, (dims,), result, exchange=frozenset(changed))


def _spread(count: int, between: int) -> int:
    """How far `count` elements reach with `between` others between two of them."""
    return count + max(0, count - 1) * between


def _inserted(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at:])


def _common(fills: Sequence[Any]) -> Any:
    """What all of these are, if they are one."""
    return fills[0] if all(fill is not None and fill == fills[0] for fill in fills) else None


def _attributes(lists: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} = {i64_array_attribute(values)}" for name, values in lists.items())
