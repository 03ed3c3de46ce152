"""Elements put, added or compared into places that are only known when the program runs: scatter.

Operands: an array, index vectors, updates. `indexed` says how dims hang together: the updates have the shape that a
gather at these places gives. A window that does not lie inside of the array is left out, all of it.

On a mesh, each device takes what falls into its piece of the array. Where the places are cut instead (a batch of
updates), an addition leaves terms of a sum, to which the array itself belongs once; a maximum, the maxima of parts.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_float, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, UndefinedPrimal, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Sub, add_tangents
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing import gather  # gather and scatter are each other's transposes
from shardwise.compiler.ops.indexing.index_vectors import Indexed, between, joined
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.shardings.factors import FactorRule

_COMBINES = (SUM, PROD, MIN, MAX)


@final
@record
class Scatter(Indexed):
    """The first operand with the updates put (without `combine`), added, multiplied or compared into it.

    Of several updates of one element "set" takes the last in row-major order, on devices that work in that order. Sums
    and products of small floats are taken in f32, and rounded once. `sorted` and `unique` are promises about the
    indices, which devices may use.
    """

    name = "scatter"
    accepts_keys = True
    combine: Reduction | None
    sorted: bool = False
    unique: bool = False

    def out_type(self, x: ArrayType, indices: ArrayType, updates: ArrayType) -> ArrayType:
        if self.combine is not None and self.combine not in _COMBINES:
            raise TypeError(f"scatter: cannot combine by {self.combine}; supported: {', '.join(map(str, _COMBINES))}")
        if updates.dtype != x.dtype:
            raise TypeError(f"scatter: {x} takes updates of its dtype, not {updates}")
        if self.combine in (MIN, MAX) and x.dtype.kind == "c":
            raise TypeError(f"scatter: complex numbers have no {self.combine}: {x}")
        kept = self.kept(x.ndim)
        if len(kept) != len(self.window) or updates.ndim != len(kept) + indices.ndim - 1:
            raise TypeError(f"scatter: {updates} is not for dims {kept} of {x} at places {indices}")
        self.check_window(updates.ndim)
        self.check(x, indices, self.sizes_of(x, updates))
        if tuple(updates.shape[dim] for dim in self.places(updates.ndim)) != indices.shape[:-1]:
            raise TypeError(f"scatter: {updates} has not the shape of the places {indices}")
        return ArrayType(x.shape, x.dtype, x.weak and updates.weak)

    def sizes_of(self, x: ArrayType, updates: ArrayType) -> tuple[int, ...]:
        """Those of a window."""
        sizes = dict(zip(self.kept(x.ndim), (updates.shape[dim] for dim in self.window), strict=True))
        return tuple(sizes.get(dim, min(1, size)) for dim, size in enumerate(x.shape))

    def factors(self, x: ArrayType, indices: ArrayType, updates: ArrayType) -> FactorRule:
        found = self.factors_of(x, indices, self.sizes_of(x, updates))
        parts = self.combine if self.combine is not None and self.combine.has_collective else None
        return FactorRule(
            (found.operand, found.indices, found.result),
            (found.operand,),
            tuple(found.sizes),
            dict.fromkeys(found.places, parts) if parts else {},
            frozenset(found.whole if parts else found.whole.union(found.places)),
            addends=frozenset([0]) if self.combine is SUM else frozenset(),
        )

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        # Which of several updates is put may differ from device to device.
        return ((0, 2),) if self.combine is SUM or (self.combine is None and self.unique) else ()

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        x, indices, updates = operands
        columns = self.columns(indices)
        for number, dim in enumerate(self.mapped):
            offset = context.offset(dim, indices.type.dtype, 0) if dim in self.collapsed else None
            if offset is None:
                continue  # along a dim that a window has all of, only a window at 0 lies inside, here too
            column = columns[number]
            shape = column.type.shape
            here = Sub()(column, Broadcast(shape, ())(offset))
            # Of the index itself: the difference may wrap around.
            mine = And()(between(here, 0, x.type.shape[dim] - 1), Compare("GE")(column, zeros_like(column)))
            columns[number] = Select()(mine, here, full(shape, -1, indices.type.dtype))
        return replace(self, sorted=False)(x, joined(columns, indices), updates)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        x, indices, updates = primals
        dx, _, du = tangents
        y = self(*primals)
        if self.combine is SUM:
            return y, dx if du is None else self(zeros_like(x) if dx is None else dx, indices, du)
        if self.combine is None:
            given = (zeros_like(z) if dz is None else dz for z, dz in ((x, dx), (updates, du)))
            return y, self._put(indices, *given)
        if self.combine is PROD:
            moved = None if dx is None else self(dx, indices, updates)
            if du is not None:
                parts = Mul()(du, self._others(x, indices, updates))
                moved = add_tangents(moved, self._added(zeros_like(x), indices, parts))
            return y, moved
        return y, self._won(y, primals, dx, du)

    def _added(self, x: Any, indices: Any, updates: Any) -> Any:
        return replace(self, combine=SUM)(x, indices, updates)

    def _put(self, indices: Any, x: Any, updates: Any) -> Any:
        """As "set", and linear: what was put is found out, not left to what a device does first."""
        if self.unique:
            return self(x, indices, updates)
        taken, won = self._winners(indices, x.type, updates.type)
        kept = Select()(taken, zeros_like(x), x)
        return self._added(kept, indices, Select()(won, updates, zeros_like(updates)))

    def _winners(self, indices: Any, x: ArrayType, updates: ArrayType) -> tuple[Any, Any]:
        """Which elements of the array are replaced, and which updates are those that are put there."""
        count = np.dtype(np.int32)
        number = Reshape(updates.shape)(Iota((updates.size,), 0, count)())
        number = Add()(number, full_like(number, 1))
        put = self(full(x.shape, 0, count), indices, number)
        return Compare("NE")(put, zeros_like(put)), Compare("EQ")(self._taken(put, indices, updates), number)

    def _taken(self, x: Any, indices: Any, updates: ArrayType) -> Any:
        """What an array holds at the places; zeros where a window does not lie inside."""
        sizes = self.sizes_of(x.type, updates)
        found = gather.Gather(*self.dims, sizes=sizes, sorted=self.sorted, unique=self.unique)(x, indices)
        inside = self.inside(x.type.shape, sizes, indices)
        return found if inside is None else Select()(self.spread(inside, updates.shape), found, zeros_like(found))

    def _others(self, x: Any, indices: Any, updates: Any) -> Any:
        """For each update, the product of all others of its element and of what was there."""
        if self.unique:
            return self._taken(x, indices, updates.type)
        # Divided out of the product; zeros are counted instead.
        zero = Compare("EQ")(updates, zeros_like(updates))
        divisor = Select()(zero, full_like(updates, 1), updates)
        product = self._taken(self(x, indices, divisor), indices, updates.type)
        ones = Select()(zero, full_like(updates, 1), zeros_like(updates))
        zeros = self._taken(self._added(zeros_like(x), indices, ones), indices, updates.type)
        alone = Compare("EQ")(Sub()(zeros, ones), zeros_like(zeros))  # no other is zero
        return Select()(alone, Div()(product, divisor), zeros_like(product))

    def _won(self, y: Any, primals: Sequence[Any], dx: Any, du: Any) -> Any:
        """The tangent of a minimum or maximum `y`: shared by all that attain it; at NaN it is zero."""
        x, indices, updates = primals
        there = Compare("EQ")(x, y)
        came = Compare("EQ")(updates, self._taken(y, indices, updates.type))
        # What lies outside meets a zero that is not the array's: it is left out all the same.
        counts = [Select()(won, full_like(z, 1), zeros_like(z)) for won, z in ((there, x), (came, updates))]
        share = self._added(counts[0], indices, counts[1])
        moved = [
            zeros_like(z) if dz is None else Select()(won, dz, zeros_like(z))
            for won, z, dz in ((there, x, dx), (came, updates, du))
        ]
        return Div()(self._added(moved[0], indices, moved[1]), Max()(share, full_like(share, 1)))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, indices, updates = operands
        if self.combine is PROD:
            return self(cotangent, indices, updates), None, None
        to_x = to_updates = None
        if isinstance(updates, UndefinedPrimal):
            to_updates = self._taken(cotangent, indices, updates.type)
        if self.combine is SUM:
            return cotangent if isinstance(x, UndefinedPrimal) else None, None, to_updates
        taken, won = self._winners(indices, cotangent.type, updates.type)
        if isinstance(x, UndefinedPrimal):
            to_x = Select()(taken, zeros_like(cotangent), cotangent)
        if to_updates is not None:
            to_updates = Select()(won, to_updates, zeros_like(to_updates))
        return to_x, None, to_updates

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        in_indices = dims[1] is not None
        x, updates = (batch_dim_at(operands[i], dims[i], 0, axis.size) for i in (0, 2))
        indices = batch_dim_at(operands[1], dims[1], 0, axis.size) if in_indices else operands[1]
        changed = self.batched(True, in_indices)
        op = Scatter(*changed, combine=self.combine, sorted=self.sorted and not in_indices, unique=self.unique)
        return op(x, indices, updates), 0

    def lower(self, hlo: Hlo, x: Any, indices: Any, updates: Any) -> Any:
        out = self.out_type(x.type, indices.type, updates.type)
        rounds = is_float(out.dtype) and self.combine in (SUM, PROD) and not self.unique
        wide = numpy_carrier(out.dtype) if rounds else out.dtype
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
                *(f"{name} = {'true' if holds else 'false'}" for name, holds in promises.items()),
            ]
        )
        region = hlo.reducer(self.combine, wide)
        found = hlo.op("stablehlo.scatter", (x, indices, updates), ArrayType(out.shape, wide), attributes, (region,))
        return found if wide == out.dtype else hlo.op("stablehlo.convert", (found,), out)

    @ignore_float_errors
    def reference(self, x: NumpyArray, indices: NumpyArray, updates: NumpyArray) -> NumpyArray:
        types = [ArrayType(array.shape, array.dtype) for array in (x, updates)]
        starts = self.starts(indices, x.ndim)
        inside = np.ones(indices.shape[:-1], np.bool_)
        for start, whole, size in zip(starts, x.shape, self.sizes_of(*types), strict=True):
            inside &= (start >= 0) & (start <= whole - size)
        number = np.zeros(updates.shape, np.int64)  # of each update's element, in row-major order
        for index, below in zip(self.reached(starts, updates.shape), _strides(x.shape), strict=True):
            number = number + index * below
        places = self.places(updates.ndim)
        order = (*places, *self.window)  # one place after the other
        lead = [updates.shape[dim] if dim in places else 1 for dim in range(updates.ndim)]
        kept = np.broadcast_to(inside.reshape(lead), updates.shape).transpose(order)
        at, given = (array.transpose(order)[kept] for array in (number, updates))
        found = x.astype(numpy_carrier(x.dtype)).reshape(-1)
        if self.combine is None:
            found[at] = given.astype(found.dtype)
        else:
            self.combine.ufunc.at(found, at, given.astype(found.dtype))
        return found.reshape(x.shape).astype(x.dtype)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
