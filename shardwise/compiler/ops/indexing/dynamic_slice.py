"""Slices at places that are only known when the program runs: dynamic_slice, dynamic_update_slice.

Where a slice would reach past an end it is moved in, as a whole. On a mesh this is settled first, on the whole array:
then each device gives, or takes, what overlaps with its piece.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op, UndefinedPrimal
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Sub
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.indexing.gather import Gather, take_op
from shardwise.compiler.ops.indexing.index_vectors import INDICES, WindowDims, between, both, clamped, joined, nothing
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, i64_array_attribute
from shardwise.compiler.ops.shape.slicing import Pad
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class DynamicSlice(Op):
    """`sizes[i]` elements along each dim i, from the i-th of the scalars on."""

    name = "dynamic_slice"
    accepts_keys = True
    sizes: tuple[int, ...]

    def out_type(self, x: ArrayType, *starts: ArrayType) -> ArrayType:
        _check_starts(self.name, x, starts)
        if len(self.sizes) != x.ndim or not all(0 <= n <= whole for n, whole in zip(self.sizes, x.shape, strict=True)):
            raise TypeError(f"dynamic_slice: sizes {self.sizes} are not those of a part of {x}")
        return x.with_shape(self.sizes)

    def factors(self, x: ArrayType, *starts: ArrayType) -> FactorRule:
        inner, sizes, whole = _inner(self.sizes, x.shape)
        operand = tuple((dim,) for dim in range(x.ndim))
        summed = {dim: SUM for dim in range(x.ndim) if inner[dim] != dim}
        return FactorRule((operand, *((),) * len(starts)), (tuple((f,) for f in inner),), sizes, summed, whole)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        x, *starts = operands
        whole = context.global_types[0].shape
        sizes = list(self.sizes)
        mine = None
        for dim, size in enumerate(self.sizes):
            if size == whole[dim]:
                sizes[dim] = x.type.shape[dim]  # passes through, padding too
                continue
            starts[dim] = clamped(starts[dim], whole[dim] - size)
            offset = context.offset(dim, starts[dim].type.dtype, 0)
            if offset is None:
                continue
            here = Sub()(starts[dim], offset)
            index = counted_from(here, size)
            within = between(index, 0, x.type.shape[dim] - 1)
            mine = both(mine, Broadcast(context.out_shapes[0], (dim,))(within))
            if size == 1:
                starts[dim] = here
            else:
                x = take_op(x.type.shape, dim)(x, Reshape((size, 1))(index))
                starts[dim] = zeros_like(here)
        found = DynamicSlice(tuple(sizes))(x, *starts)
        return found if mine is None else Select()(mine, found, nothing(found.type))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(tangents[0], *primals[1:])

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, *starts = operands
        zeros = full(x.type.shape, 0, cotangent.type.dtype)
        return DynamicUpdateSlice()(zeros, cotangent, *starts), *(None for _ in starts)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x, *starts = operands
        dim, *start_dims = dims
        if all(start_dim is None for start_dim in start_dims):
            x = batch_dim_at(x, dim, 0, axis.size)
            return DynamicSlice((axis.size, *self.sizes))(x, _first(starts), *starts), 0
        shape = x.type.shape if dim is None else x.type.without((dim,)).shape
        places = _places(self.sizes, shape)
        if not places[-1]:
            return x, dim
        vectors = _vectors(starts, start_dims, places[-1], axis)
        found, _ = Gather(*places, self.sizes).vmap(axis, (x, vectors), (dim, 0))
        return Reshape((axis.size, *self.sizes))(found), 0

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        out = self.out_type(*(x.type for x in operands))
        return hlo.op("stablehlo.dynamic_slice", operands, out, f"slice_sizes = {i64_array_attribute(self.sizes)}")

    def reference(self, x: NumpyArray, *starts: NumpyArray) -> NumpyArray:
        return x[_part(x.shape, self.sizes, starts)]


@final
@record
class DynamicUpdateSlice(Op):
    """The first operand with the second in place of a part of it, which begins at the scalars that follow."""

    name = "dynamic_update_slice"
    accepts_keys = True

    def out_type(self, x: ArrayType, update: ArrayType, *starts: ArrayType) -> ArrayType:
        _check_starts(self.name, x, starts)
        fits = update.ndim == x.ndim and all(n <= whole for n, whole in zip(update.shape, x.shape, strict=True))
        if not fits or update.dtype != x.dtype:
            raise TypeError(f"dynamic_update_slice: {update} is no part of {x}")
        return ArrayType(x.shape, x.dtype, x.weak and update.weak)

    def factors(self, x: ArrayType, update: ArrayType, *starts: ArrayType) -> FactorRule:
        inner, sizes, whole = _inner(update.shape, x.shape)
        operand = tuple((dim,) for dim in range(x.ndim))
        operands = (operand, tuple((factor,) for factor in inner), *((),) * len(starts))
        return FactorRule(operands, (operand,), sizes, need_replication=whole)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        x, update, *starts = operands
        part, whole = context.global_types[1].shape, context.global_types[0].shape
        mine = None
        edges = []  # for each cut dim: how wide the part is that this device has, and with what of the update it begins
        for dim, size in enumerate(part):
            if size == whole[dim]:
                continue  # passes through
            starts[dim] = clamped(starts[dim], whole[dim] - size)
            offset = context.offset(dim, starts[dim].type.dtype)
            if offset is None:
                continue
            here = Sub()(starts[dim], offset)
            width = min(size, x.type.shape[dim])
            starts[dim] = clamped(here, x.type.shape[dim] - width)
            edges.append((dim, width, Sub()(starts[dim], here)))
        for dim, width, first in edges:
            update = _window(update, dim, width, first)
        for dim, width, first in edges:
            inside = between(counted_from(first, width), 0, part[dim] - 1)
            mine = both(mine, Broadcast(update.type.shape, (dim,))(inside))
        if mine is not None:
            before = DynamicSlice(update.type.shape)(x, *starts)
            update = Select()(mine, update, before)
        return self(x, update, *starts)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moved = [zeros_like(x) if dx is None else dx for x, dx in zip(primals[:2], tangents[:2], strict=True)]
        return self(*primals), self(*moved, *primals[2:])

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, update, *starts = operands
        zeros = full(update.type.shape, 0, cotangent.type.dtype)
        to_x = self(cotangent, zeros, *starts) if isinstance(x, UndefinedPrimal) else None
        to_update = DynamicSlice(update.type.shape)(cotangent, *starts) if isinstance(update, UndefinedPrimal) else None
        return to_x, to_update, *(None for _ in starts)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x, update, *starts = operands
        if all(dim is None for dim in dims[2:]):
            x, update = (batch_dim_at(operands[i], dims[i], 0, axis.size) for i in (0, 1))
            return self(x, update, _first(starts), *starts), 0
        x, update = (batch_dim_at(operands[i], dims[i], 0, axis.size) for i in (0, 1))
        shape, sizes = x.type.shape[1:], update.type.shape[1:]
        places = _places(sizes, shape)
        if not places[-1]:
            return update, 0
        starts = [clamped(start, n - size) for start, n, size in zip(starts, shape, sizes, strict=True)]
        kept = tuple(size for dim, size in enumerate(sizes) if dim not in places[1])
        update = Reshape((axis.size, *kept))(update)
        op = Scatter(*places, None, unique=True)
        return op.vmap(axis, (x, _vectors(starts, dims[2:], places[-1], axis), update), (0, 0, 0))

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        out = self.out_type(*(x.type for x in operands))
        return hlo.op("stablehlo.dynamic_update_slice", operands, out)

    def reference(self, x: NumpyArray, update: NumpyArray, *starts: NumpyArray) -> NumpyArray:
        found = x.copy()
        found[_part(x.shape, update.shape, starts)] = update
        return found


def _check_starts(name: str, x: ArrayType, starts: Sequence[ArrayType]) -> None:
    if len(starts) != x.ndim:
        raise TypeError(f"{name}: needs a start for each dim of {x}, not {len(starts)}")
    kinds = {start.strong() for start in starts}
    if len(kinds) > 1 or any(start.shape or start.dtype not in INDICES for start in starts):
        raise TypeError(f"{name}: starts must be scalars of i32, or all of i64, not {', '.join(map(str, starts))}")


def _inner(part: tuple[int, ...], shape: tuple[int, ...]) -> tuple[list[int], tuple[int, ...], frozenset[int]]:
    """Factors of the dims of a part: the array's where it has all of it, else one of its own that stays whole.

    Then the sizes of all factors, the array's first, and those that stay whole.
    """
    inner, sizes = [], list(shape)
    for dim, size in enumerate(part):
        if size != shape[dim]:
            sizes.append(size)
        inner.append(dim if size == shape[dim] else len(sizes) - 1)
    return inner, tuple(sizes), frozenset(range(len(shape), len(sizes)))


def _part(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[NumpyArray]) -> tuple[slice, ...]:
    firsts = [min(max(int(start), 0), n - size) for start, n, size in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def counted_from(start: Any, size: int) -> Any:
    """A row of `size` integers, from a scalar on."""
    return Add()(Iota((size,), 0, start.type.dtype)(), Broadcast((size,), ())(start))


def _window(x: Any, dim: int, width: int, first: Any) -> Any:
    """`width` elements along `dim`, from a scalar on that may lie before the first of them; zeros outside."""
    edges = tuple(width if d == dim else 0 for d in range(x.type.ndim))
    wide = Pad(edges, edges, (0,) * len(edges))(x, full((), 0, x.type.dtype, x.type.weak))
    zero = zeros_like(first)
    starts = [Add()(first, full((), width, first.type.dtype)) if d == dim else zero for d in range(x.type.ndim)]
    shape = x.type.shape
    return DynamicSlice((*shape[:dim], width, *shape[dim + 1 :]))(wide, *starts)


def _first(starts: Sequence[Any]) -> Any:
    """The start along a dim that is taken whole, of the dtype of the others."""
    return full((), 0, starts[0].type.dtype if starts else np.int32)


def _places(sizes: Sequence[int], shape: Sequence[int]) -> WindowDims:
    """The dims of the gather of one slice: those that it has all of need no index, those of size 1 are looked up."""
    mapped = tuple(dim for dim, size in enumerate(sizes) if size != shape[dim])
    collapsed = tuple(dim for dim in mapped if sizes[dim] == 1)
    return tuple(range(len(sizes) - len(collapsed))), collapsed, (), (), mapped


def _vectors(starts: Sequence[Any], dims: Sequence[int | None], mapped: Sequence[int], axis: BatchAxis) -> Any:
    """An index vector for each of a batch, of the starts along the dims in `mapped`."""
    batched = [batch_dim_at(starts[dim], dims[dim], 0, axis.size) for dim in mapped]
    columns = [Reshape((axis.size, 1))(start) for start in batched]
    return joined(columns, columns[0])
