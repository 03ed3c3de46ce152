"""Slices with traced start indices: dynamic_slice and dynamic_update_slice.

A start index is clamped so that the entire slice is in bounds. On a mesh, starts are clamped against the global shape
first; then each device contributes, or updates, the part of the slice that overlaps its shard.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.jax_checks import check_divisible, check_equal
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op, Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Sub
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.indexing.gather import Gather, take_op
from shardwise.compiler.ops.indexing.index_vectors import (
    INDICES,
    WindowDims,
    additive_zero,
    between,
    both,
    clamp_index,
    join_columns,
)
from shardwise.compiler.ops.indexing.lower_slices import lower_clamped_starts, lower_slice_at
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.placement.reshard import reshard_to, shard_batch_dim
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Pad
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class DynamicSlice(Op):
    """A slice of `sizes[i]` elements along each dim i; the operands after the first are the start indices."""

    fusion = Fusion(reads_part=True, is_indexed=True)
    name = "dynamic_slice"
    accepts_keys = True
    sizes: tuple[int, ...]

    def out_type(self, x: ArrayType, *starts: ArrayType) -> ArrayType:
        _check_starts(self.name, x, starts)
        if len(self.sizes) != x.ndim:
            raise TypeError(f"dynamic_slice: {x} has {x.ndim} dims, but slice_sizes {self.sizes} has {len(self.sizes)}")
        for dim, (size, whole) in enumerate(zip(self.sizes, x.shape, strict=True)):
            if 0 <= size <= whole:
                continue
            raise TypeError(
                f"dynamic_slice: slice_sizes {self.sizes} must be from 0 to the size of each dim: dim {dim} of {x} has "
                f"{whole} elements, not {size}"
            )
        return x.with_shape(self.sizes)

    def factors(self, x: ArrayType, *starts: ArrayType) -> FactorRule:
        inner, sizes, whole = _slice_factors(self.sizes, x.shape)
        operand = tuple((dim,) for dim in range(x.ndim))
        summed = {dim: SUM for dim in range(x.ndim) if inner[dim] != dim}
        result = tuple((factor,) for factor in inner)
        typed_as = {factor: dim for dim, factor in enumerate(inner) if factor in whole and self.sizes[dim] > 1}
        return FactorRule((operand, *((),) * len(starts)), (result,), sizes, summed, whole, typed_as=typed_as)

    def check_as_jax(self, x: ArrayType, *starts: ArrayType) -> None:
        check_divisible(self.name, x, self.sizes)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        x, *starts = operands
        global_shape = context.global_types[0].shape
        sizes = list(self.sizes)
        in_shard = None
        for dim, size in enumerate(self.sizes):
            if size == global_shape[dim]:
                sizes[dim] = x.type.shape[dim]  # the dim passes through, padding included
                continue
            starts[dim] = clamp_index(starts[dim], global_shape[dim] - size)
            offset = context.offset(dim, starts[dim].type.dtype, 0)
            if offset is None:
                continue
            local_start = Sub()(starts[dim], offset)
            index = iota_from(local_start, size)
            within = between(index, 0, x.type.shape[dim] - 1)
            in_shard = both(in_shard, Broadcast(context.out_shapes[0], (dim,))(within))
            if size == 1:
                starts[dim] = clamp_index(local_start, x.type.shape[dim] - 1)
            else:
                rows = clamp_index(index, x.type.shape[dim] - 1)
                x = take_op(x.type.shape, dim)(x, Reshape((size, 1))(rows))
                starts[dim] = zeros_like(local_start)
        result = DynamicSlice(tuple(sizes))(x, *starts)
        return result if in_shard is None else Select()(in_shard, result, additive_zero(result.type))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(tangents[0], *primals[1:])

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, *starts = operands
        zeros = full(x.type.shape, 0, cotangent.type.dtype)
        return DynamicUpdateSlice()(zeros, cotangent, *starts), *(None for _ in starts)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x, *starts = operands
        dim, *start_dims = dims
        if all(start_dim is None for start_dim in start_dims):
            x = batch_dim_at(x, dim, 0, axis.size)
            return DynamicSlice((axis.size, *self.sizes))(x, _zero_start(starts), *starts), 0
        shape = x.type.shape if dim is None else x.type.without((dim,)).shape
        dims_of_gather = _gather_dims(self.sizes, shape)
        if not dims_of_gather[-1]:
            return x, dim
        indices = _index_vectors(starts, start_dims, dims_of_gather[-1], axis)
        sharding = None
        if x.type.explicit is not None and (partly_sliced := _partly_covered(self.sizes, shape)):
            one = x.type if dim is None else x.type.without((dim,))
            sharding = one.with_dim(0, axis.size, axis.explicit).explicit
            x = _replicate_dims(x, [d if dim is None or d < dim else d + 1 for d in partly_sliced])
        found, _ = Gather(*dims_of_gather, self.sizes).vmap(axis, (x, indices), (dim, 0))
        result = Reshape((axis.size, *self.sizes))(found)
        return result if sharding is None else reshard_to(result, sharding), 0

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        x, *starts = operands
        return lower_slice_at(hlo, x, self.sizes, lower_clamped_starts(hlo, x.type, self.sizes, starts))

    def reference(self, x: NumpyArray, *starts: NumpyArray) -> NumpyArray:
        return x[_clamped_slices(x.shape, self.sizes, starts)]


@final
@record
class DynamicUpdateSlice(Op):
    """The first operand with a slice replaced by the second; the operands after them are the start indices."""

    fusion = Fusion(updates=1)
    name = "dynamic_update_slice"
    accepts_keys = True

    def out_type(self, x: ArrayType, update: ArrayType, *starts: ArrayType) -> ArrayType:
        _check_starts(self.name, x, starts)
        fits = update.ndim == x.ndim and all(n <= whole for n, whole in zip(update.shape, x.shape, strict=True))
        if not fits or update.dtype != x.dtype:
            raise TypeError(
                f"dynamic_update_slice: the update {update} must have the dtype and rank of {x}, and no larger dims"
            )
        return ArrayType(x.shape, x.dtype, x.weak and update.weak)

    def factors(self, x: ArrayType, update: ArrayType, *starts: ArrayType) -> FactorRule:
        inner, sizes, whole = _slice_factors(update.shape, x.shape)
        operand = tuple((dim,) for dim in range(x.ndim))
        operands = (operand, tuple((factor,) for factor in inner), *((),) * len(starts))
        return FactorRule(operands, (operand,), sizes, need_replication=whole)

    def check_as_jax(self, x: ArrayType, update: ArrayType, *starts: ArrayType) -> None:
        check_equal(self.name, (x, update))

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        x, update, *starts = operands
        update_shape, global_shape = context.global_types[1].shape, context.global_types[0].shape
        in_update = None
        windows = []  # per sharded dim: size of the local update, and its start in the global one
        for dim, size in enumerate(update_shape):
            if size == global_shape[dim]:
                continue  # the dim passes through
            starts[dim] = clamp_index(starts[dim], global_shape[dim] - size)
            offset = context.offset(dim, starts[dim].type.dtype)
            if offset is None:
                continue
            local_start = Sub()(starts[dim], offset)
            width = min(size, x.type.shape[dim])
            starts[dim] = clamp_index(local_start, x.type.shape[dim] - width)
            windows.append((dim, width, Sub()(starts[dim], local_start)))
        for dim, width, first in windows:
            update = _window(update, dim, width, first)
        for dim, width, first in windows:
            inside = between(iota_from(first, width), 0, update_shape[dim] - 1)
            in_update = both(in_update, Broadcast(update.type.shape, (dim,))(inside))
        if in_update is not None:
            unchanged = DynamicSlice(update.type.shape)(x, *starts)
            update = Select()(in_update, update, unchanged)
        return self(x, update, *starts)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        instantiated = [zeros_like(x) if dx is None else dx for x, dx in zip(primals[:2], tangents[:2], strict=True)]
        return self(*primals), self(*instantiated, *primals[2:])

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, update, *starts = operands
        zeros = full(update.type.shape, 0, cotangent.type.dtype)
        to_x = self(cotangent, zeros, *starts) if isinstance(x, UndefinedPrimal) else None
        to_update = DynamicSlice(update.type.shape)(cotangent, *starts) if isinstance(update, UndefinedPrimal) else None
        return to_x, to_update, *(None for _ in starts)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x, update, *starts = operands
        if all(dim is None for dim in dims[2:]):
            x, update = (batch_dim_at(operands[i], dims[i], 0, axis.size) for i in (0, 1))
            return self(x, update, _zero_start(starts), *starts), 0
        x, update = (batch_dim_at(operands[i], dims[i], 0, axis.size) for i in (0, 1))
        shape, sizes = x.type.shape[1:], update.type.shape[1:]
        dims_of_gather = _gather_dims(sizes, shape)
        if not dims_of_gather[-1]:  # the update covers the array; the result has the array's sharding
            return self(x, update, *[_zero_start(starts)] * x.type.ndim), 0
        starts = [clamp_index(start, n - size) for start, n, size in zip(starts, shape, sizes, strict=True)]
        kept = tuple(size for dim, size in enumerate(sizes) if dim not in dims_of_gather[1])
        update = Reshape((axis.size, *kept))(update)
        op = Scatter(*dims_of_gather, None, unique=True)
        indices = _index_vectors(starts, dims[2:], dims_of_gather[-1], axis)
        partly_updated = _partly_covered(sizes, shape)
        if x.type.explicit is None or not partly_updated:
            return op.vmap(axis, (x, indices, update), (0, 0, 0))
        x = shard_batch_dim(x, 0, axis)
        sharding = x.type.explicit
        x = _replicate_dims(x, [dim + 1 for dim in partly_updated])
        result, _ = op.vmap(axis, (x, indices, update), (0, 0, 0))
        return reshard_to(result, sharding), 0

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        out = self.out_type(*(x.type for x in operands))
        return hlo.op("stablehlo.dynamic_update_slice", operands, out)

    def reference(self, x: NumpyArray, update: NumpyArray, *starts: NumpyArray) -> NumpyArray:
        result = x.copy()
        result[_clamped_slices(x.shape, update.shape, starts)] = update
        return result


def _check_starts(name: str, x: ArrayType, starts: Sequence[ArrayType]) -> None:
    if len(starts) != x.ndim:
        raise TypeError(f"{name}: needs one start index per dim of {x}, not {len(starts)}")
    types = {start.strong() for start in starts}
    if len(types) > 1 or any(start.shape or start.dtype not in INDICES for start in starts):
        raise TypeError(f"{name}: start indices must be scalars, all i32 or all i64, not {', '.join(map(str, starts))}")


def _slice_factors(part: tuple[int, ...], shape: tuple[int, ...]) -> tuple[list[int], tuple[int, ...], frozenset[int]]:
    """Return the factors of the dims of a slice, the sizes of all factors, and the factors that need replication.

    A dim that the slice covers completely has the factor of the array's dim. Any other dim has its own factor, which
    cannot be sharded.
    """
    inner, sizes = [], list(shape)
    for dim, size in enumerate(part):
        if size != shape[dim]:
            sizes.append(size)
        inner.append(dim if size == shape[dim] else len(sizes) - 1)
    return inner, tuple(sizes), frozenset(range(len(shape), len(sizes)))


def _clamped_slices(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[NumpyArray]) -> tuple[slice, ...]:
    firsts = [min(max(int(start), 0), n - size) for start, n, size in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def iota_from(start: Operand, size: int) -> Any:
    """Return the integers `start`, `start + 1`, … as a vector of `size` elements."""
    return Add()(Iota((size,), 0, start.type.dtype)(), Broadcast((size,), ())(start))


def _window(x: Operand, dim: int, width: int, first: Operand) -> Any:
    """Return `width` elements along `dim` from index `first` on. Elements out of bounds are zeros."""
    shape = x.type.shape
    edges = tuple(width if d == dim else 0 for d in range(x.type.ndim))
    wide = Pad(edges, edges, (0,) * len(edges))(x, full((), 0, x.type.dtype, x.type.weak))
    zero = zeros_like(first)
    start = clamp_index(Add()(first, full((), width, first.type.dtype)), shape[dim] + width)
    starts = [start if d == dim else zero for d in range(x.type.ndim)]
    return DynamicSlice((*shape[:dim], width, *shape[dim + 1 :]))(wide, *starts)


def _partly_covered(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the dims of which a slice covers more than one element but not all.

    Unlike a dynamic slice, a gather or scatter of such windows cannot be sharded along these dims.
    """
    return [dim for dim, size in enumerate(sizes) if 1 < size < shape[dim]]


def _replicate_dims(x: Operand, dims: Sequence[int]) -> Any:
    """Replicate dims along Explicit axes."""
    for dim in dims:
        x = reshard_to(x, x.type.explicit and x.type.explicit.replicating(dim))
    return x


def _zero_start(starts: Sequence[Any]) -> Any:
    """Return the start index 0 along a batch dim, with the dtype of the other starts."""
    return full((), 0, starts[0].type.dtype if starts else np.int32)


def _gather_dims(sizes: Sequence[int], shape: Sequence[int]) -> WindowDims:
    """Return the dims of the gather of one slice. Dims that the slice covers completely need no index."""
    mapped = tuple(dim for dim, size in enumerate(sizes) if size != shape[dim])
    collapsed = tuple(dim for dim in mapped if sizes[dim] == 1)
    return tuple(range(len(sizes) - len(collapsed))), collapsed, (), (), mapped


def _index_vectors(starts: Sequence[Any], dims: Sequence[int | None], mapped: Sequence[int], axis: BatchAxis) -> Any:
    """Return one index vector per batch element, from the start indices along the dims in `mapped`."""
    batched = [batch_dim_at(starts[dim], dims[dim], 0, axis.size) for dim in mapped]
    columns = [Reshape((axis.size, 1))(start) for start in batched]
    return join_columns(columns, columns[0])
