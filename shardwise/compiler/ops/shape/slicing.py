"""Ops with static positions: slice, pad, concatenate and reverse.

Along a sharded dim that an op changes, each device reads the elements of its result shard from the devices that hold
them (`TakeWindow`, `ExchangeWindows`); the other dims pass through. Shards may be uneven.
"""

from collections.abc import Collection, Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.fusion import CHEAP_ON_CPU, FUSED, Fusion
from shardwise.compiler.ir.jax_checks import check_divisible, check_equal
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.exchange_windows import ExchangeWindows, Source, Window
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
from shardwise.compiler.shardings.mesh import mesh_context


@final
@record
class Slice(MovementOp):
    """Slice each dim i from `start[i]` to `limit[i]` with step `stride[i]`."""

    fusion = Fusion(fuses=True, duplicates="always", reads_part=True)
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
                raise TypeError(f"slice: {start}:{limit} is out of bounds for dim {dim} of {x}")
            if stride < 1:
                raise TypeError(
                    f"slice: the stride of dim {dim} must be 1 or more, not {stride}; use reverse to go backwards"
                )
        parts = zip(self.start, self.limit, self.stride, strict=True)
        return x.with_shape(tuple(-(-(limit - start) // stride) for start, limit, stride in parts))

    def factors(self, x: ArrayType) -> FactorRule:
        return _dimwise_rule((x.shape,), self.out_type(x).shape, self._changed(x))

    def check_as_jax(self, x: ArrayType) -> None:
        check_divisible(self.name, x, self.out_type(x).shape)

    def _changed(self, x: ArrayType) -> set[int]:
        result = self.out_type(x).shape
        return {dim for dim in range(x.ndim) if result[dim] != x.shape[dim]}

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        parts = [(0, size, 1) for size in x.type.shape]  # a dim that keeps its size keeps its padding
        for dim in self._changed(context.global_types[0]):
            out_size = context.out_shapes[0][dim]
            if not context.sharding_of(dim)[0]:
                parts[dim] = (self.start[dim], self.limit[dim], self.stride[dim])
                continue
            window = self._window(dim, *context.sharding_of(dim), out_size)
            x = window(x)
            parts[dim] = (0, window.width, self.stride[dim])
        return slice_dims(x, parts)

    def _window(self, dim: int, axes: tuple[str, ...], count: int, out_size: int) -> TakeWindow:
        """Return the window of the operand that a result shard needs."""
        step = self.stride[dim]
        return TakeWindow(dim, axes, count, self.start[dim], step * out_size, max(0, step * (out_size - 1) + 1))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        out_size = -(-self.out_type(*types).shape[factor] // count)
        return self._window(factor, (), count, out_size).bytes_sent_of_array(types[0])

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        (x,) = operands
        high = [
            size - start - dilated_size(count, stride)
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
        op = Slice(_insert(start, dim, 0), _insert(limit, dim, axis.size), _insert(stride, dim, 1))
        return op(*operands), dim

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        arrays = {"start_indices": self.start, "limit_indices": self.limit, "strides": self.stride}
        return hlo.op("stablehlo.slice", (x,), self.out_type(x.type), _attributes(arrays))

    def reference(self, x: NumpyArray) -> NumpyArray:
        return x[tuple(map(slice, self.start, self.limit, self.stride))]


@final
@record
class Reverse(MovementOp):
    """Reverse the order of elements along `dims`."""

    fusion = CHEAP_ON_CPU
    name = "reverse"
    dims: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if missing := [dim for dim in self.dims if not 0 <= dim < x.ndim]:
            raise TypeError(f"reverse: dims {missing} do not exist in {x}")
        if len(set(self.dims)) != len(self.dims):
            raise TypeError(f"reverse: a dim repeats in {self.dims}")
        return x

    def factors(self, x: ArrayType) -> FactorRule:
        return _dimwise_rule((x.shape,), x.shape, self.dims)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        even_axes: tuple[str, ...] = ()
        for dim in self.dims:
            axes, count = context.sharding_of(dim)
            size, out_size = context.global_types[0].shape[dim], context.out_shapes[0][dim]
            if axes and size == count * out_size == count * x.type.shape[dim]:
                even_axes += axes
            elif axes:
                x = self._window(dim, axes, count, out_size, size)(x)
        if even_axes:
            # Entire shards are exchanged. Reversing all sharded dims reverses the device index, so the shards are sent
            # at once, as if all these axes sharded the first dim.
            count, out_size = context.mesh.extent(even_axes), x.type.shape[self.dims[0]]
            x = self._window(self.dims[0], even_axes, count, out_size, count * out_size)(x)
        return self(x)

    def _window(self, dim: int, axes: tuple[str, ...], count: int, out_size: int, size: int) -> TakeWindow:
        """Return the window of the operand that a result shard needs: the first shard needs the last elements."""
        return TakeWindow(dim, axes, count, size - out_size, -out_size, out_size)

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        size = types[0].shape[factor]
        return self._window(factor, (), count, -(-size // count), size).bytes_sent_of_array(types[0])

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (self(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (dim,) = dims
        assert dim is not None
        return Reverse(tuple(d + (d >= dim) for d in self.dims))(*operands), dim

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return hlo.op("stablehlo.reverse", (x,), x.type, _attributes({"dimensions": self.dims}))

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.flip(x, self.dims)


class JointlyLinearMovement(MovementOp):
    """A movement op with several operands that is jointly linear in them."""

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(types))),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        instantiated = [zeros_like(x) if dx is None else dx for x, dx in zip(primals, tangents, strict=True)]
        return self(*primals), self(*instantiated)


@final
@record
class Pad(JointlyLinearMovement):
    """Pad the first operand with the second, a scalar.

    Dim i gets `low[i]` elements before, `high[i]` after, and `interior[i]` between two elements. A negative `low` or
    `high` crops after the interior padding.
    """

    fusion = FUSED
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
            raise TypeError(f"pad: the padding value of {x} must be a scalar of the same dtype, not {value}")
        if any(count < 0 for count in self.interior):
            raise TypeError(f"pad: interior padding cannot be negative: {self.interior}")
        shape = self._shape(x.shape)
        for dim, size in enumerate(shape):
            if size < 0:
                raise TypeError(
                    f"pad: low {self.low[dim]} and high {self.high[dim]} remove more elements than dim {dim} of {x} has"
                )
        return ArrayType(shape, x.dtype, x.weak and value.weak)

    def check_as_jax(self, x: ArrayType, value: ArrayType) -> None:
        check_divisible(self.name, x, self._shape(x.shape))

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        parts = zip(shape, self.low, self.high, self.interior, strict=True)
        return tuple(low + dilated_size(size, interior + 1) + high for size, low, high, interior in parts)

    def factors(self, x: ArrayType, value: ArrayType) -> FactorRule:
        parts = list(zip(self.low, self.high, self.interior, strict=True))
        changed = {dim for dim, part in enumerate(parts) if part != (0, 0, 0)}
        return _dimwise_rule((x.shape, ()), self._shape(x.shape), changed)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        x, value = operands
        low, high, interior = (list(counts) for counts in (self.low, self.high, self.interior))
        shape = list(x.type.shape)
        outside = []
        for dim, size in enumerate(context.global_types[0].shape):
            axes, count = context.sharding_of(dim)
            if axes and (low[dim] or high[dim] or interior[dim]):
                out_size = context.out_shapes[0][dim]
                x = self._window(dim, axes, count, out_size)(self._dilate(x, value, dim))
                outside.append((dim, self.low[dim], self.low[dim] + dilated_size(size, interior[dim] + 1)))
                low[dim] = high[dim] = interior[dim] = 0
                shape[dim] = out_size
        for dim, first, last in outside:
            index = global_indices(context, tuple(shape), dim)
            bounds = [full(tuple(shape), bound, np.int32) for bound in (first, last)]
            inside = And()(Compare("GE")(index, bounds[0]), Compare("LT")(index, bounds[1]))
            x = Select()(inside, x, Broadcast(tuple(shape), ())(value))
        return Pad(tuple(low), tuple(high), tuple(interior))(x, value)

    def _dilate(self, x: Operand, value: Operand, dim: int) -> Any:
        """Insert the interior padding after each element along `dim`, also the last, so that shards stay contiguous."""
        interior = _insert((0,) * (x.type.ndim - 1), dim, self.interior[dim])
        return Pad((0,) * x.type.ndim, interior, interior)(x, value) if self.interior[dim] else x

    def _window(self, dim: int, axes: tuple[str, ...], count: int, out_size: int) -> TakeWindow:
        """Return the window of the dilated operand that a result shard needs."""
        return TakeWindow(dim, axes, count, -self.low[dim], out_size, out_size)

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        shape = types[0].shape
        out_size = -(-self._shape(shape)[factor] // count)
        rows = -(-shape[factor] // count) * count * (self.interior[factor] + 1)
        dilated = types[0].with_shape((*shape[:factor], rows, *shape[factor + 1 :]))
        return self._window(factor, (), count, out_size).bytes_sent_of_array(dilated)

    def padding(self, fills: Sequence[Any]) -> Any:
        # Padding along other dims writes the scalar into the padding of a dim that passes through.
        adds_elements = any(count > 0 for count in (*self.low, *self.high, *self.interior))
        return _common_fill(fills) if len(fills) == 2 or not adds_elements else None

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, value = operands
        zero = full((), 0, cotangent.type.dtype)
        to_x = to_value = None
        if isinstance(x, UndefinedPrimal):
            low, high = (tuple(-count for count in counts) for counts in (self.low, self.high))
            cropped = Pad(low, high, (0,) * len(low))(cotangent, zero)
            steps = (count + 1 for count in self.interior)
            to_x = slice_dims(cropped, [(0, size, step) for size, step in zip(cropped.type.shape, steps, strict=True)])
        if isinstance(value, UndefinedPrimal):
            # Use a mask instead of total minus the operand's part, because the cotangent may contain infinities.
            added = Select()(self._is_padding(x.type.shape), cotangent, zeros_like(cotangent))
            to_value = Sum(tuple(range(cotangent.type.ndim)))(added)
        return to_x, to_value

    def _is_padding(self, shape: tuple[int, ...]) -> Any:
        """Return a mask of the result's elements that are padding, for an operand of `shape`."""
        return self(full(shape, False, np.bool_), full((), True, np.bool_))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x, value), (dim, value_dim) = operands, dims
        target = 0 if dim is None else dim
        x = batch_dim_at(x, dim, target, axis.size)
        op = Pad(*(_insert(counts, target, 0) for counts in (self.low, self.high, self.interior)))
        if value_dim is None:
            return op(x, value), target
        padded = op(x, full((), 0, x.type.dtype, x.type.weak))
        values = Broadcast(padded.type.shape, (target,))(value)  # one value per batch element
        return Select()(op._is_padding(x.type.shape), values, padded), target

    def lower(self, hlo: Hlo, x: HloValue, value: HloValue) -> Any:
        arrays = {"edge_padding_low": self.low, "edge_padding_high": self.high, "interior_padding": self.interior}
        return hlo.op("stablehlo.pad", (x, value), self.out_type(x.type, value.type), _attributes(arrays))

    def reference(self, x: NumpyArray, value: NumpyArray) -> NumpyArray:
        before, after = (tuple(max(0, count) for count in counts) for counts in (self.low, self.high))
        padded = np.full(Pad(before, after, self.interior)._shape(x.shape), value, x.dtype)
        parts = zip(x.shape, before, self.interior, strict=True)
        padded[tuple(slice(low, low + dilated_size(size, gap + 1), gap + 1) for size, low, gap in parts)] = x
        edges = zip(padded.shape, self.low, self.high, strict=True)
        return padded[tuple(slice(max(0, -low), size - max(0, -high)) for size, low, high in edges)]


@final
@record
class Concatenate(JointlyLinearMovement):
    """Concatenate the operands along `dim`."""

    name = "concatenate"
    lowers_narrow = False
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
        return _dimwise_rule([type.shape for type in types], self.out_type(*types).shape, {self.dim})

    def maxima_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(types))),)

    def check_as_jax(self, *types: ArrayType) -> None:
        on_mesh = [type for type in types if type.explicit is not None or mesh_context.mesh is not None]
        check_equal(self.name, on_mesh)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        axes, count = context.sharding_of(self.dim)
        if not axes:
            return self(*operands)
        distinct = list({id(x): x for x in operands}.values())
        exchange = self._exchange(
            axes,
            count,
            [next(index for index, y in enumerate(distinct) if y is x) for x in operands],
            [x.type.shape[self.dim] for x in distinct],
            [type.shape[self.dim] for type in context.global_types],
            context.out_shapes[0][self.dim],
        )
        return exchange(distinct[0] if len(distinct) == 1 else self(*distinct))

    def _exchange(
        self,
        axes: tuple[str, ...],
        count: int,
        numbers: Sequence[int],
        shard_sizes: Sequence[int],
        sizes: Sequence[int],
        out_size: int,
    ) -> ExchangeWindows:
        """Return the exchange after which each device has its shard of the result.

        Args:
            axes: the axes that shard the dim.
            count: the number of shards.
            numbers: for each operand, its index among the distinct operands.
            shard_sizes: the sizes of the shards of the distinct operands, which are concatenated on each device.
            sizes: the sizes of the operands, without padding.
            out_size: the size of a shard of the result.
        """
        positions, starts = ([sum(of[:number]) for number in range(len(of))] for of in (shard_sizes, sizes))
        sources = [
            Source(positions[number], shard_sizes[number], size, start)
            for number, size, start in zip(numbers, sizes, starts, strict=True)
        ]
        return ExchangeWindows(self.dim, axes, count, tuple(sources), (Window(0, out_size, out_size),))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        # Without padding, as in the costs of reshards: `count` times the sizes are divided evenly into these.
        sizes = [type.shape[self.dim] for type in types]
        exchange = self._exchange((), count, range(len(types)), sizes, [count * size for size in sizes], sum(sizes))
        return exchange.bytes_sent_of_shard(self.out_type(*types)) / count

    def padding(self, fills: Sequence[Any]) -> Any:
        return _common_fill(fills)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        cotangents: list[Any] = []
        start = 0
        for x in operands:
            limit = start + x.type.shape[self.dim]
            cotangents.append(
                slice_along(cotangent, self.dim, start, limit) if isinstance(x, UndefinedPrimal) else None
            )
            start = limit
        return tuple(cotangents)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        target = next(dim for dim in dims if dim is not None)
        batched = [batch_dim_at(x, dim, target, axis.size) for x, dim in zip(operands, dims, strict=True)]
        return Concatenate(self.dim + (self.dim >= target))(*batched), target

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        out = self.out_type(*(x.type for x in operands))
        return hlo.op("stablehlo.concatenate", operands, out, f"dimension = {self.dim} : i64")

    def reference(self, *operands: NumpyArray) -> NumpyArray:
        return np.concatenate(operands, self.dim)


def slice_dims(x: Operand, parts: Sequence[tuple[int, int, int]]) -> Any:
    """Slice `x` with a (start, limit, stride) for each dim; return `x` itself if the slice covers it."""
    if list(parts) == [(0, size, 1) for size in x.type.shape]:
        return x
    return Slice(*(tuple(part[i] for part in parts) for i in range(3)))(x)


def slice_along(x: Operand, dim: int, start: int, limit: int, stride: int = 1) -> Any:
    """Slice `x` along one dim."""
    parts = [(0, size, 1) for size in x.type.shape]
    parts[dim] = (start, limit, stride)
    return slice_dims(x, parts)


def global_indices(context: LocalContext, shape: tuple[int, ...], dim: int, operand: int | None = None) -> Any:
    """Return the global index along `dim` of each element of this device's shard.

    `shape` is the shape of the shard of the result, or of the operand with index `operand`.
    """
    index = Iota(shape, dim, np.dtype(np.int32))()
    offset = context.offset(dim, np.int32, operand)
    return index if offset is None else Add()(index, Broadcast(shape, ())(offset))


def valid_mask(context: LocalContext, shape: tuple[int, ...], dim: int, operand: int | None = None) -> Any:
    """Return a mask of the shard's elements that are not padding along `dim`; None if there is no padding.

    The arguments are the same as in `global_indices`. The first operand has the size of `dim`.
    """
    size = context.global_types[0].shape[dim]
    if shape[dim] * context.sharding_of(dim, operand)[1] == size:
        return None
    return Compare("LT")(global_indices(context, shape, dim, operand), full(shape, size, np.int32))


def _dimwise_rule(operands: Sequence[tuple[int, ...]], result: tuple[int, ...], changed: Collection[int]) -> FactorRule:
    """Return the rule for ops that map dim i to dim i. Along `changed` dims, devices exchange elements."""
    tables = tuple(tuple((dim,) for dim in range(len(shape))) for shape in operands)
    dims = tuple((dim,) for dim in range(len(result)))
    return FactorRule(tables, (dims,), result, exchange=frozenset(changed))


def dilated_size(count: int, dilation: int) -> int:
    """Return the size of `count` elements after dilation, which places them `dilation` apart."""
    return (count - 1) * dilation + 1 if count else 0


def _insert(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index:])


def _common_fill(fills: Sequence[Any]) -> Any:
    """Return the fill that all operands share, else None."""
    return fills[0] if all(fill is not None and fill == fills[0] for fill in fills) else None


def _attributes(arrays: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} = {i64_array_attribute(values)}" for name, values in arrays.items())
