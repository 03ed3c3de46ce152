"""gather: windows of an array at traced indices. `index_vectors` defines the dims.

On a mesh, dims that pass completely from the operand to the result are sharded like any other. A sharded collapsed dim
(a vocabulary) is a masked sum: each device looks up the indices in its shard and contributes zeros elsewhere. Indices
are clamped against the global shape first, never against a shard.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Primal, known
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Sub
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing import (
    scatter,  # gather and scatter are each other's transposes, so the two modules import each other
)
from shardwise.compiler.ops.indexing.index_vectors import (
    Indexed,
    additive_zero,
    between,
    both,
    clamp_index,
    join_columns,
)
from shardwise.compiler.ops.indexing.lower_slices import lower_clamped_starts, lower_slice_at
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, i64_array_attribute
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class Gather(Indexed):
    """For each index vector, the window of `sizes` that starts there. Starts are clamped so that windows are in bounds.

    `sorted` and `unique` are promises about the indices that XLA may use.
    """

    fusion = Fusion(reads_part=True, is_indexed=True, duplicates="on GPUs")
    name = "gather"
    accepts_keys = True
    sizes: tuple[int, ...]
    sorted: bool = False
    unique: bool = False

    def out_type(self, x: ArrayType, indices: ArrayType) -> ArrayType:
        self.check(x, indices, self.sizes)
        window_dims = self.window_dims_of(x.ndim)
        ndim = len(window_dims) + indices.ndim - 1
        if len(window_dims) != len(self.window):
            raise TypeError(f"gather: {len(self.window)} window dims for the dims {window_dims} of {x}")
        self.check_window(ndim)
        window_sizes, index_sizes = (self.sizes[dim] for dim in window_dims), iter(indices.shape)
        shape = tuple(next(window_sizes) if dim in self.window else next(index_sizes) for dim in range(ndim))
        return x.with_shape(shape)

    def factors(self, x: ArrayType, indices: ArrayType) -> FactorRule:
        factors = self.factors_of(x, indices, self.sizes)
        return FactorRule(
            (factors.operand, factors.indices),
            (factors.result,),
            tuple(factors.sizes),
            dict.fromkeys(factors.looked_up, SUM),
            frozenset(factors.need_replication),
        )

    def check_as_jax(self, x: ArrayType, indices: ArrayType) -> None:
        self.check_lookup_as_jax(x, indices, self.sizes)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        x, indices = operands
        global_shape, shard_shape = context.global_types[0].shape, x.type.shape
        sizes = list(self.sizes)
        columns = self.columns(indices)
        in_shard = None
        for dim in self.window_dims_of(len(global_shape)):
            if sizes[dim] == global_shape[dim]:  # the dim passes through, padding included
                sizes[dim] = shard_shape[dim]
        for index, dim in enumerate(self.mapped):
            if shard_shape[dim] == global_shape[dim] and not context.sharding_of(dim, 0)[0]:
                continue
            columns[index] = clamp_index(columns[index], global_shape[dim] - self.sizes[dim])
            if dim in self.collapsed and (offset := context.offset(dim, indices.type.dtype, 0)) is not None:
                columns[index] = Sub()(columns[index], Broadcast(columns[index].type.shape, ())(offset))
                in_shard = both(in_shard, between(columns[index], 0, shard_shape[dim] - 1))
                columns[index] = clamp_index(columns[index], shard_shape[dim] - 1)
        result = replace(self, sizes=tuple(sizes), sorted=False)(x, join_columns(columns, indices))
        if in_shard is None:
            return result
        mask = self.broadcast_per_index(in_shard, result.type.shape)
        return Select()(mask, result, additive_zero(result.type))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(tangents[0], primals[1])

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, indices = operands[0], known(operands[1])
        columns = [
            clamp_index(column, x.type.shape[dim] - self.sizes[dim])
            for column, dim in zip(self.columns(indices), self.mapped, strict=True)
        ]
        if self._takes_one_per_row(x.type, indices.type):
            return self._select_cotangent(cotangent, columns[0], x.type), None
        back = scatter.Scatter(*self.dims, combine=SUM, sorted=self.sorted, unique=self.unique)
        zeros = full(x.type.shape, 0, cotangent.type.dtype)
        return back(zeros, join_columns(columns, indices), cotangent), None

    def _takes_one_per_row(self, x: ArrayType, indices: ArrayType) -> bool:
        """Return whether the gather reads one element of each row along a dim, as the loss of a classifier does."""
        if not self.batch or self.window or len(self.mapped) != 1 or len(self.batch) != x.ndim - 1:
            return False
        pairs = sorted(zip(self.index_batch, self.batch, strict=True))
        rest = (size for dim, size in enumerate(indices.shape[:-1]) if dim not in self.index_batch)
        return sorted(self.batch) == [dim for _, dim in pairs] and all(size == 1 for size in rest)

    def _select_cotangent(self, cotangent: Operand, column: Operand, x: ArrayType) -> Any:
        """Return the cotangent at the gathered position, and zeros elsewhere.

        This is elementwise: it is fused with other terms of the cotangent, and needs no communication along the dim.
        """
        (dim,), rows = self.mapped, tuple(sorted(self.batch))
        shape = tuple(x.shape[row] for row in rows)

        def spread(values: Operand) -> Any:
            return Broadcast(x.shape, rows)(Reshape(shape)(values))

        is_taken = Compare("EQ")(Iota(x.shape, dim, column.type.dtype)(), spread(column))
        return Select()(is_taken, spread(cotangent), full(x.shape, 0, cotangent.type.dtype))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        in_operand, in_indices = (dim is not None for dim in dims)
        batched = [
            x if dim is None else batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)
        ]
        first = () if not in_operand else (min(1, axis.size) if in_indices else axis.size,)
        op = Gather(
            *self.batched(in_operand, in_indices),
            sizes=(*first, *self.sizes),
            sorted=self.sorted and not in_indices,
            unique=self.unique and in_operand,
        )
        return op(*batched), 0

    def lower(self, hlo: Hlo, x: HloValue, indices: HloValue) -> Any:
        out = self.out_type(x.type, indices.type)
        if self.has_one_window(indices.type):
            starts = lower_clamped_starts(hlo, x.type, self.sizes, self.lower_starts(hlo, x.type, indices))
            return hlo.op("stablehlo.reshape", (lower_slice_at(hlo, x, self.sizes, starts),), out)
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
        return hlo.op("stablehlo.gather", (x, indices), out, attributes)

    def reference(self, x: NumpyArray, indices: NumpyArray) -> NumpyArray:
        types = (ArrayType(array.shape, array.dtype) for array in (x, indices))
        shape = self.out_type(*types).shape
        limits = [dim_size - size for dim_size, size in zip(x.shape, self.sizes, strict=True)]
        starts = self.starts(indices, x.ndim)
        for dim in self.mapped:
            starts[dim] = np.clip(starts[dim], 0, limits[dim])
        return np.broadcast_to(x[tuple(self.element_indices(starts, shape))], shape)


def take_op(shape: tuple[int, ...], dim: int) -> Gather:
    """Return the gather of slices along `dim` of an array of this shape; its indices are a column, i32[n,1]."""
    rest = tuple(d for d in range(len(shape)) if d != dim)
    return Gather(rest, (dim,), (), (), (dim,), (*shape[:dim], 1, *shape[dim + 1 :]))
