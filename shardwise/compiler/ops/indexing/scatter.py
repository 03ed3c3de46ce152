"""scatter: write updates into an array at traced indices.

The operands are an array, index vectors and updates. `index_vectors` defines the dims: the updates have the shape of a
gather at these indices. A window that is not completely in bounds is dropped.

On a mesh, each device applies the updates that fall into its shard of the array. If the index vectors are sharded
instead (a batch of updates), a scatter-add returns a partial sum, to which the array itself is added once, and a
scatter-max returns a partial maximum.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, numpy_carrier
from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.jax_checks import check_unsharded
from shardwise.compiler.ir.op import (
    BatchAxis,
    Hlo,
    HloValue,
    LocalContext,
    NumpyArray,
    Primal,
    UndefinedPrimal,
    ignore_float_errors,
    known,
)
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Div, Mul, Sub, add_tangents
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.select import Compare, Select, lower_compare
from shardwise.compiler.ops.indexing import (
    gather,  # gather and scatter are each other's transposes, so the two modules import each other
)
from shardwise.compiler.ops.indexing.index_vectors import Indexed, between, join_columns
from shardwise.compiler.ops.indexing.lower_slices import lower_clamped_starts, lower_slice_at
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.shardings.factors import FactorRule

_SUPPORTED = (SUM, PROD, MIN, MAX)


@final
@record
class Scatter(Indexed):
    """The first operand with updates combined into it by `combine`. Without `combine`, updates replace elements.

    If several updates replace one element, the last in row-major order wins, on platforms that apply updates in order.
    Sums and products of floats narrower than f32 are computed in f32 and rounded once. `sorted` and `unique` are
    promises about the indices that XLA may use.
    """

    fusion = Fusion(updates=2, fuses_updates=True, stores_updated=True)
    name = "scatter"
    accepts_keys = True
    combine: Reduction | None
    sorted: bool = False
    unique: bool = False

    def out_type(self, x: ArrayType, indices: ArrayType, updates: ArrayType) -> ArrayType:
        if self.combine is not None and self.combine not in _SUPPORTED:
            raise TypeError(f"scatter: cannot combine by {self.combine}; supported: {', '.join(map(str, _SUPPORTED))}")
        if updates.dtype != x.dtype:
            raise TypeError(f"scatter: updates must have the dtype of {x}, not {updates}")
        if self.combine in (MIN, MAX) and x.dtype.kind == "c":
            raise TypeError(f"scatter: complex numbers have no {self.combine}: {x}")
        window_dims = self.window_dims_of(x.ndim)
        if len(window_dims) != len(self.window) or updates.ndim != len(window_dims) + indices.ndim - 1:
            raise TypeError(
                f"scatter: the rank of the updates {updates} does not fit dims {window_dims} of {x} "
                f"and indices {indices}"
            )
        self.check_window(updates.ndim)
        self.check(x, indices, self.sizes_of(x, updates))
        if tuple(updates.shape[dim] for dim in self.index_dims_of(updates.ndim)) != indices.shape[:-1]:
            raise TypeError(f"scatter: the updates {updates} must have the batch shape of the indices {indices}")
        return ArrayType(x.shape, x.dtype, x.weak and updates.weak)

    def sizes_of(self, x: ArrayType, updates: ArrayType) -> tuple[int, ...]:
        """Return the shape of a window."""
        sizes = dict(zip(self.window_dims_of(x.ndim), (updates.shape[dim] for dim in self.window), strict=True))
        return tuple(sizes.get(dim, min(1, size)) for dim, size in enumerate(x.shape))

    def factors(self, x: ArrayType, indices: ArrayType, updates: ArrayType) -> FactorRule:
        factors = self.factors_of(x, indices, self.sizes_of(x, updates))
        across_shards = self.combine if self.combine is not None and self.combine.has_collective else None
        return FactorRule(
            (factors.operand, factors.indices, factors.result),
            (factors.operand,),
            tuple(factors.sizes),
            dict.fromkeys(factors.per_index, across_shards) if across_shards else {},
            frozenset(factors.need_replication.union(() if across_shards else factors.per_index)),
            addends=frozenset([0]) if self.combine is SUM else frozenset(),
        )

    def check_as_jax(self, x: ArrayType, indices: ArrayType, updates: ArrayType) -> None:
        sizes = self.sizes_of(x, updates)
        self.check_lookup_as_jax(x, indices, sizes)
        batch = set(self.index_batch)
        per_index = [dim for index, dim in enumerate(self.index_dims_of(updates.ndim)) if index not in batch]
        windows = zip(self.window, self.window_dims_of(x.ndim), strict=True)
        partial = [dim for dim, of_operand in windows if sizes[of_operand] != x.shape[of_operand]]
        check_unsharded(self.name, updates, [*per_index, *partial])

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        # The update that wins among several updates of one element may differ between devices.
        return ((0, 2),) if self.combine is SUM or (self.combine is None and self.unique) else ()

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        x, indices, updates = operands
        columns = self.columns(indices)
        for index, dim in enumerate(self.mapped):
            offset = context.offset(dim, indices.type.dtype, 0) if dim in self.collapsed else None
            if offset is None:
                continue  # a window that covers the dim is in bounds only at 0, on a shard too
            column = columns[index]
            shape = column.type.shape
            local = Sub()(column, Broadcast(shape, ())(offset))
            # Compare the index itself too, because the difference may wrap around.
            in_shard = And()(between(local, 0, x.type.shape[dim] - 1), Compare("GE")(column, zeros_like(column)))
            columns[index] = Select()(in_shard, local, full(shape, -1, indices.type.dtype))
        return replace(self, sorted=False)(x, join_columns(columns, indices), updates)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        x, indices, updates = primals
        dx, _, du = tangents
        y = self(*primals)
        if self.combine is SUM:
            return y, dx if du is None else self(zeros_like(x) if dx is None else dx, indices, du)
        if self.combine is None:
            instantiated = (zeros_like(z) if dz is None else dz for z, dz in ((x, dx), (updates, du)))
            return y, self._set_linear(indices, *instantiated)
        if self.combine is PROD:
            tangent = None if dx is None else self(dx, indices, updates)
            if du is not None:
                terms = Mul()(du, self._product_of_others(x, indices, updates))
                tangent = add_tangents(tangent, self._scatter_add(zeros_like(x), indices, terms))
            return y, tangent
        return y, self._extremum_tangent(y, primals, dx, du)

    def _scatter_add(self, x: Operand, indices: Operand, updates: Operand) -> Any:
        return replace(self, combine=SUM)(x, indices, updates)

    def _set_linear(self, indices: Operand, x: Operand, updates: Operand) -> Any:
        """Replace elements as a linear function, with explicit winners that do not depend on the device's order."""
        if self.unique:
            return self(x, indices, updates)
        replaced, wins = self._winners(indices, x.type, updates.type)
        kept = Select()(replaced, zeros_like(x), x)
        return self._scatter_add(kept, indices, Select()(wins, updates, zeros_like(updates)))

    def _winners(self, indices: Operand, x: ArrayType, updates: ArrayType) -> tuple[Any, Any]:
        """Return masks of the replaced elements of the array, and of the updates that replace them."""
        index_dtype = np.dtype(np.int32)
        number = Reshape(updates.shape)(Iota((updates.size,), 0, index_dtype)())
        number = (Expr(number) + 1).array
        winner = self(full(x.shape, 0, index_dtype), indices, number)
        wins = Expr(self._gather(winner, indices, updates)) == Expr(number)
        return (Expr(winner) != 0).array, wins.array

    def _gather(self, x: Operand, indices: Operand, updates: ArrayType) -> Any:
        """Gather the elements of an array at the indices, with zeros where a window is out of bounds."""
        sizes = self.sizes_of(x.type, updates)
        elements = gather.Gather(*self.dims, sizes=sizes, sorted=self.sorted, unique=self.unique)(x, indices)
        in_bounds = self.in_bounds(x.type.shape, sizes, indices)
        if in_bounds is None:
            return elements
        return Select()(self.broadcast_per_index(in_bounds, updates.shape), elements, zeros_like(elements))

    def _product_of_others(self, x: Operand, indices: Operand, updates: Operand) -> Any:
        """Return, for each update, the product of the element and all its other updates."""
        if self.unique:
            return self._gather(x, indices, updates.type)
        # Divide the update out of the product. Zeros are counted instead.
        factors = Expr(updates)
        is_zero = factors == 0
        divisor = where(is_zero, 1, factors)
        product = Expr(self._gather(self(x, indices, divisor.array), indices, updates.type))
        ones = where(is_zero, factors.full_like(1), 0)
        zeros = Expr(self._gather(self._scatter_add(zeros_like(x), indices, ones.array), indices, updates.type))
        return where(zeros - ones == 0, product / divisor, 0).array

    def _extremum_tangent(self, y: Operand, primals: Sequence[Any], dx: Operand | None, du: Operand | None) -> Any:
        """Return the tangent of a minimum or maximum `y`: the mean over elements that attain it, and zero at NaN."""
        x, indices, updates = primals
        x_wins = Compare("EQ")(x, y)
        # Out-of-bounds updates are compared with zeros that are not in the array. The scatter-add drops them in any
        # case.
        update_wins = Compare("EQ")(updates, self._gather(y, indices, updates.type))
        counts = [Select()(wins, full_like(z, 1), zeros_like(z)) for wins, z in ((x_wins, x), (update_wins, updates))]
        count = self._scatter_add(counts[0], indices, counts[1])
        tangents = [
            zeros_like(z) if dz is None else Select()(wins, dz, zeros_like(z))
            for wins, z, dz in ((x_wins, x, dx), (update_wins, updates, du))
        ]
        return Div()(self._scatter_add(tangents[0], indices, tangents[1]), Max()(count, full_like(count, 1)))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, indices, updates = operands
        if self.combine is PROD:
            return self(cotangent, indices, updates), None, None
        to_x = to_updates = None
        if isinstance(updates, UndefinedPrimal):
            to_updates = self._gather(cotangent, known(indices), updates.type)
        if self.combine is SUM:
            return cotangent if isinstance(x, UndefinedPrimal) else None, None, to_updates
        replaced, wins = self._winners(known(indices), cotangent.type, updates.type)
        if isinstance(x, UndefinedPrimal):
            to_x = Select()(replaced, zeros_like(cotangent), cotangent)
        if to_updates is not None:
            to_updates = Select()(wins, to_updates, zeros_like(to_updates))
        return to_x, None, to_updates

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        in_indices = dims[1] is not None
        x, updates = (batch_dim_at(operands[i], dims[i], 0, axis.size) for i in (0, 2))
        indices = batch_dim_at(operands[1], dims[1], 0, axis.size) if in_indices else operands[1]
        dims_of_op = self.batched(True, in_indices)
        op = Scatter(*dims_of_op, combine=self.combine, sorted=self.sorted and not in_indices, unique=self.unique)
        return op(x, indices, updates), 0

    def lower(self, hlo: Hlo, x: HloValue, indices: HloValue, updates: HloValue) -> Any:
        out = self.out_type(x.type, indices.type, updates.type)
        rounds = is_float(out.dtype) and self.combine in (SUM, PROD) and not self.unique
        wide = numpy_carrier(out.dtype) if rounds else out.dtype
        if self.has_one_window(indices.type) and updates.type.size:
            return self._lower_one_window(hlo, x, indices, updates, wide)
        if wide != out.dtype:
            x, updates = (hlo.op("stablehlo.convert", (z,), z.type.with_dtype(wide)) for z in (x, updates))
        dims = self.attributes(
            indices.type.ndim - 1,
            (
                "update_window_dims",
                "inserted_window_dims",
                "input_batching_dims",
                "scatter_indices_batching_dims",
                "scatter_dims_to_operand_dims",
            ),
        )
        promises = {"indices_are_sorted": self.sorted, "unique_indices": self.unique}
        attributes = ", ".join(
            [
                f"scatter_dimension_numbers = #stablehlo.scatter<{dims}>",
                *(f"{name} = {'true' if promised else 'false'}" for name, promised in promises.items()),
            ]
        )
        region = hlo.reducer(self.combine, wide)
        result = hlo.op("stablehlo.scatter", (x, indices, updates), ArrayType(out.shape, wide), attributes, (region,))
        return result if wide == out.dtype else hlo.op("stablehlo.convert", (result,), out)

    def _lower_one_window(self, hlo: Hlo, x: HloValue, indices: HloValue, updates: HloValue, wide: DType) -> Any:
        """Emit an update of one slice, which is unchanged if the window is out of bounds.

        `wide` is the dtype in which the update is combined with the slice.
        """
        sizes = self.sizes_of(x.type, updates.type)
        starts = self.lower_starts(hlo, x.type, indices)
        clamped = lower_clamped_starts(hlo, x.type, sizes, starts)
        window = lower_slice_at(hlo, x, sizes, clamped)
        new = hlo.op("stablehlo.reshape", (updates,), window.type)
        if self.combine is not None:
            name = self.combine.boolean_hlo_op if wide == np.bool_ else self.combine.hlo_op
            wide_type = window.type.with_dtype(wide)
            terms = [hlo.op("stablehlo.convert", (z,), wide_type) if wide != z.type.dtype else z for z in (window, new)]
            new = hlo.op(f"stablehlo.{name}", terms, wide_type)
            if wide_type != window.type:
                new = hlo.op("stablehlo.convert", (new,), window.type)
        for dim in self.mapped:
            is_in_bounds = lower_compare(hlo, "EQ", starts[dim], clamped[dim])
            new = hlo.op("stablehlo.select", (is_in_bounds, new, window), window.type)
        return hlo.op(
            "stablehlo.dynamic_update_slice", (x, new, *clamped), self.out_type(x.type, indices.type, updates.type)
        )

    @ignore_float_errors
    def reference(self, x: NumpyArray, indices: NumpyArray, updates: NumpyArray) -> NumpyArray:
        types = [ArrayType(array.shape, array.dtype) for array in (x, updates)]
        starts = self.starts(indices, x.ndim)
        in_bounds = np.ones(indices.shape[:-1], np.bool_)
        for start, dim_size, size in zip(starts, x.shape, self.sizes_of(*types), strict=True):
            in_bounds &= (start >= 0) & (start <= dim_size - size)
        flat_index = np.zeros(updates.shape, np.int64)  # flat index of the element that each update writes
        for index, stride in zip(self.element_indices(starts, updates.shape), _strides(x.shape), strict=True):
            flat_index = flat_index + index * stride
        index_dims = self.index_dims_of(updates.ndim)
        order = (*index_dims, *self.window)  # order updates by index vector
        lead = [updates.shape[dim] if dim in index_dims else 1 for dim in range(updates.ndim)]
        kept = np.broadcast_to(in_bounds.reshape(lead), updates.shape).transpose(order)
        positions, elements = (array.transpose(order)[kept] for array in (flat_index, updates))
        result = x.astype(numpy_carrier(x.dtype)).reshape(-1)
        if self.combine is None:
            result[positions] = elements.astype(result.dtype)
        else:
            self.combine.ufunc.at(result, positions, elements.astype(result.dtype))
        return result.reshape(x.shape).astype(x.dtype)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
