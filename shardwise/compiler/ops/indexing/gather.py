"""Elements at places that are only known when the program runs: gather. `indexed` says how dims hang together.

On a mesh, dims that go from an operand to the result whole are cut as others are. A collapsed dim that is cut (a
vocabulary) is summed over: each device looks up what lies in its piece, and puts nothing elsewhere. What an index
means is settled before, on the whole: no device moves it into its own piece.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Sub
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.indexing import scatter  # gather and scatter are each other's transposes
from shardwise.compiler.ops.indexing.index_vectors import Indexed, between, both, clamped, joined, nothing
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import i64_array_attribute
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class Gather(Indexed):
    """For each index vector the window of `sizes` that begins there; one that would reach past an end is moved in.

    `sorted` and `unique` are promises about the indices, which devices may use.
    """

    name = "gather"
    accepts_keys = True
    sizes: tuple[int, ...]
    sorted: bool = False
    unique: bool = False

    def out_type(self, x: ArrayType, indices: ArrayType) -> ArrayType:
        self.check(x, indices, self.sizes)
        kept = self.kept(x.ndim)
        ndim = len(kept) + indices.ndim - 1
        if len(kept) != len(self.window):
            raise TypeError(f"gather: {len(self.window)} window dims for dims {kept} of {x}")
        self.check_window(ndim)
        inner, places = iter(kept), iter(indices.shape)
        shape = tuple(self.sizes[next(inner)] if dim in self.window else next(places) for dim in range(ndim))
        return x.with_shape(shape)

    def factors(self, x: ArrayType, indices: ArrayType) -> FactorRule:
        found = self.factors_of(x, indices, self.sizes)
        return FactorRule(
            (found.operand, found.indices),
            (found.result,),
            tuple(found.sizes),
            dict.fromkeys(found.looked_up, SUM),
            frozenset(found.whole),
        )

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        x, indices = operands
        whole, piece = context.global_types[0].shape, x.type.shape
        sizes = list(self.sizes)
        columns = self.columns(indices)
        mine = None
        for dim in self.kept(len(whole)):
            if sizes[dim] == whole[dim]:  # passes through, padding too
                sizes[dim] = piece[dim]
        for number, dim in enumerate(self.mapped):
            if piece[dim] == whole[dim] and not context.sharding_of(dim, 0)[0]:
                continue
            columns[number] = clamped(columns[number], whole[dim] - self.sizes[dim])
            if dim in self.collapsed and (offset := context.offset(dim, indices.type.dtype, 0)) is not None:
                columns[number] = Sub()(columns[number], Broadcast(columns[number].type.shape, ())(offset))
                mine = both(mine, between(columns[number], 0, piece[dim] - 1))
        found = replace(self, sizes=tuple(sizes), sorted=False)(x, joined(columns, indices))
        if mine is None:
            return found
        return Select()(self.spread(mine, found.type.shape), found, nothing(found.type))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(tangents[0], primals[1])

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, indices = operands
        columns = [
            clamped(column, x.type.shape[dim] - self.sizes[dim])
            for column, dim in zip(self.columns(indices), self.mapped, strict=True)
        ]
        back = scatter.Scatter(*self.dims, combine=SUM, sorted=self.sorted, unique=self.unique)
        zeros = full(x.type.shape, 0, cotangent.type.dtype)
        return back(zeros, joined(columns, indices), cotangent), None

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        in_operand, in_indices = (dim is not None for dim in dims)
        given = [
            x if dim is None else batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)
        ]
        first = () if not in_operand else (1 if in_indices else axis.size,)
        op = Gather(
            *self.batched(in_operand, in_indices),
            sizes=(*first, *self.sizes),
            sorted=self.sorted and not in_indices,
            unique=self.unique and in_operand,
        )
        return op(*given), 0

    def lower(self, hlo: Hlo, x: Any, indices: Any) -> Any:
        dims = self.attributes(
            indices.type.ndim - 1,
            (
                "offset_dims",
                "collapsed_slice_dims",
                "operand_batching_dims",
                "start_indices_batching_dims",
                "start_index_map",
            ),
        )
        attributes = (
            f"dimension_numbers = #stablehlo.gather<{dims}>, slice_sizes = {i64_array_attribute(self.sizes)}, "
            f"indices_are_sorted = {'true' if self.sorted else 'false'}"
        )
        return hlo.op("stablehlo.gather", (x, indices), self.out_type(x.type, indices.type), attributes)

    def reference(self, x: NumpyArray, indices: NumpyArray) -> NumpyArray:
        types = (ArrayType(array.shape, array.dtype) for array in (x, indices))
        shape = self.out_type(*types).shape
        limits = [whole - size for whole, size in zip(x.shape, self.sizes, strict=True)]
        starts = self.starts(indices, x.ndim)
        for dim in self.mapped:
            starts[dim] = np.clip(starts[dim], 0, limits[dim])
        return np.broadcast_to(x[tuple(self.reached(starts, shape))], shape)


def take_op(shape: tuple[int, ...], dim: int) -> Gather:
    """Along `dim` of an array of this shape the elements whose indices are in one row, with a last dim of 1."""
    rest = tuple(d for d in range(len(shape)) if d != dim)
    return Gather(rest, (dim,), (), (), (dim,), (*shape[:dim], 1, *shape[dim + 1 :]))
