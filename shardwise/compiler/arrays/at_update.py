"""`x.at[index].set(values)` and its kin: an array like `x`, with other elements at some places.

Places that slices say are known: elements are chosen between the array and the values, moved there by a pad, and on a
mesh nothing else moves. At places that integers or arrays say, a scatter; one outside is left alone.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.arrays.arithmetic import divide, negative, power
from shardwise.compiler.arrays.indexing import (
    Indexer,
    clip_indices,
    gather_by_index,
    index_mode,
    out_of_bounds_fill,
    parse_index,
)
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Rem, Sub
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Pad, Reverse
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.errors import ConcretizationTypeError

_COMBINE: dict[str, Reduction | None] = {"set": None, "add": SUM, "mul": PROD, "min": MIN, "max": MAX}
_PAIRS: dict[Reduction, Callable[[], Any]] = {SUM: Add, PROD: Mul, MIN: Min, MAX: Max}


@final
@dataclass(frozen=True, eq=False)
class IndexUpdateHelper:
    """What `x.at` is: indexed, it gives the places to update."""

    array: Any

    def __getitem__(self, index: Any) -> "IndexUpdateRef":
        return IndexUpdateRef(self.array, index)


@final
@dataclass(frozen=True, eq=False)
class IndexUpdateRef:
    """What `x.at[index]` is. No method changes `x`: each returns an array.

    `mode`: what is done where an index lies outside: "drop" or "fill" (updates are left out, and other values taken
    are `fill_value`), "clip" (the nearest element is meant), "promise_in_bounds" (there is none). Updates drop unless
    told, `get` clips. Negative ones count from the end, or lie outside without `wrap_negative_indices`.
    `unique_indices` and `indices_are_sorted` are promises, which devices may use.
    """

    array: Any
    index: Any

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        fill_value: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x[index]`."""
        fills = index_mode("at.get", mode, "clip") in ("fill", "drop")
        by, arrays = parse_index(self.index, self.array.type, not fills, wrap_negative_indices)
        fill = out_of_bounds_fill(fill_value, self.array.type.dtype) if fills else None
        return gather_by_index(self.array, *arrays, by=by, fill=fill, sorted=indices_are_sorted, unique=unique_indices)

    def set(
        self,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, with `values` at these places. Where places repeat, any of their values may be taken."""
        return self._update("set", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices)

    def add(
        self,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, with `values` added at these places; where they repeat, all of them."""
        return self._update("add", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices)

    def subtract(
        self,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, with `values` subtracted at these places."""
        return self._update("add", negative(values), indices_are_sorted, unique_indices, mode, wrap_negative_indices)

    def multiply(
        self,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, multiplied by `values` at these places."""
        return self._update("mul", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices)

    mul = multiply

    def divide(
        self,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, divided by `values` at these places and by 1 elsewhere."""
        by = self._ones()._update("mul", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices)
        return divide(self.array, by)

    def power(
        self,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, raised to the power of `values` at these places and of 1 elsewhere."""
        by = self._ones()._update("mul", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices)
        return power(self.array, by)

    def min(
        self,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, but no more than `values` at these places."""
        return self._update("min", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices)

    def max(
        self,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, but no less than `values` at these places."""
        return self._update("max", values, indices_are_sorted, unique_indices, mode, wrap_negative_indices)

    def apply(
        self,
        func: Callable[[Any], Any],
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Any:
        """`x`, with `func`, a function of each element, applied at these places: as often as a place is given."""
        clips = index_mode("at.apply", mode, "drop") == "clip"
        by, arrays = parse_index(self.index, self.array.type, clips, wrap_negative_indices, takes=False)
        options = {"mode": mode, "wrap_negative_indices": wrap_negative_indices}
        if unique_indices or not any(type_of(array).shape for array in arrays):
            applied = func(self.get(mode="clip", wrap_negative_indices=wrap_negative_indices))
            promised = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices}
            return self.set(applied, **promised, **options)
        most = _most_often(by, arrays, clips)
        counts = IndexUpdateRef(full(self.array.type.shape, 0, np.int32), self.index).add(1, **options)
        found = self.array
        for often in range(most):
            found = _chosen(counts, func(found), found, often=often)
        return found

    def _ones(self) -> "IndexUpdateRef":
        return IndexUpdateRef(full(self.array.type.shape, 1, self.array.type.dtype, self.array.type.weak), self.index)

    def _update(self, name: str, values: Any, is_sorted: bool, unique: bool, mode: Any, from_end: bool) -> Any:
        clips = index_mode(f"at.{name}", mode, "drop") == "clip"
        by, arrays = parse_index(self.index, self.array.type, clips, from_end, takes=False)
        kind = type_of(values, f"at.{name}")
        if promote_dtypes(f"at.{name}", (self.array.type, kind))[0] != self.array.type.dtype:
            warnings.warn(
                f"at.{name}: {self.array.type} cannot hold all values of {kind}: they are converted, and JAX will "
                "make this an error; convert them with `.astype`",
                FutureWarning,
                stacklevel=3,
            )
        if broadcast_shapes(f"at.{name}", by.shape, kind.shape) != by.shape:
            raise ValueError(f"at.{name}: values of {kind} do not broadcast to {by.shape}, the shape of the places")
        if not self.array.type.size:
            return self.array
        if by.cutting and all(isinstance(array, int) for array in arrays):
            if any(at == self.array.type.shape[dim] for at, dim in zip(arrays, by.dims, strict=True)):
                return self.array
            by, arrays = by.sliced(arrays), []
        return update_at_index(
            self.array, values, *arrays, by=by, combine=_COMBINE[name], clips=clips, sorted=is_sorted, unique=unique
        )


def _most_often(by: Indexer, arrays: list[Any], clips: bool) -> int:
    """How often the index gives the place that it gives most often."""
    sizes = [by.type.shape[dim] for dim in by.dims]
    columns, inside = [], np.ones(by.places, np.bool_)
    for array, size in zip(arrays, sizes, strict=True):
        try:
            at = np.asarray(array)
        except ConcretizationTypeError:
            raise NotImplementedError(
                f"at.apply: {type_of(array)} is traced, so nobody knows how often it gives each place; promise that "
                "none repeats with `unique_indices=True`, or give indices that are known"
            ) from None
        if by.from_end and not isinstance(array, int):
            at = np.where(at < 0, at + size, at)
        at = np.clip(at, 0, size - 1) if clips else at
        columns.append(np.broadcast_to(at, by.places))
        inside = inside & (at >= 0) & (at < size)
    _, counts = np.unique(np.stack([column[inside] for column in columns]), axis=1, return_counts=True)
    return int(counts.max(initial=0))


@compiled_function
def _chosen(counts: Any, applied: Any, before: Any, *, often: int) -> Any:
    """What `func` made where a place was given more often than so."""
    again = Compare("GT")(counts, full(counts.type.shape, often, counts.type.dtype))
    return Select()(again, astype_weak(as_operand(applied), before.type.dtype, before.type.weak), before)


@compiled_function
def update_at_index(
    x: Any,
    values: Any,
    *indices: Any,
    by: Indexer,
    combine: Reduction | None,
    clips: bool = False,
    sorted: bool = False,
    unique: bool = False,
) -> Any:
    """`x`, with values that meet it at the places of an index."""
    x = as_operand(x)
    if 0 in by.shape:
        return x
    before = x.type
    dtype, weak = promote_dtypes("at", (before, type_of(values)))
    x = astype_weak(x, dtype, weak and before.weak)
    values = astype_weak(as_operand(values), dtype, weak and before.weak)
    if not indices:
        sizes = [*(1,) * (len(by.shape) - values.type.ndim), *values.type.shape]
        sizes = [size for dim, size in enumerate(sizes) if dim not in by.new]
        for dim in by.dims:
            sizes.insert(dim, 1)
        found = _put_slices(x, Reshape(tuple(sizes))(values), by, combine)
    else:
        part = x
        for op in by.cutting:
            part = op(part)
        op = Scatter(*by.windows, combine=combine, sorted=sorted, unique=unique or not by.places)
        vectors = by.vectors(indices)
        if clips:
            vectors = clip_indices(op, part.type.shape, by.sizes, vectors)
        updates = broadcast_to_shape(values, by.shape)
        found = op(part, vectors, updates if by.shape == by.taken else Reshape(by.taken)(updates))
        if by.cutting:
            found = _put_slices(x, found, by, None)
    return astype_weak(found, before.dtype, before.weak)


def _put_slices(x: Any, values: Any, by: Indexer, combine: Reduction | None) -> Any:
    """Where the index is made of slices alone. `values` have a dim for each of `x`, of the slice's size or 1."""
    sizes = values.type.shape
    low, high, between = ([0] * x.type.ndim for _ in range(3))
    for dim, (start, _, stride) in enumerate(by.parts):
        if sizes[dim] > 1:
            spread = (sizes[dim] - 1) * stride + 1
            low[dim], high[dim], between[dim] = start, x.type.shape[dim] - start - spread, stride - 1
    turned = tuple(dim for dim in by.backwards if sizes[dim] > 1)
    values = Reverse(turned)(values) if turned else values
    if any((*low, *high, *between)):
        values = Pad(tuple(low), tuple(high), tuple(between))(values, full((), 1, x.type.dtype, x.type.weak))
    values = broadcast_to_shape(values, x.type.shape)  # what is the same along a dim need not be moved
    mask = _places_of(by)
    if mask is None:
        return values if combine is None else _PAIRS[combine]()(x, values)
    if combine is None:
        return Select()(mask, values, x)
    # Elsewhere 1 takes part, which spoils no derivative.
    values = Select()(mask, values, full(x.type.shape, 1, x.type.dtype, x.type.weak))
    return Select()(mask, _PAIRS[combine]()(x, values), x)


def _places_of(by: Indexer) -> Any:
    """Whether each element of the array is one of the slices'; None where all are."""
    found = None
    shape, dtype = by.type.shape, np.dtype(np.int32)
    for dim, (start, limit, stride) in enumerate(by.parts):
        if (start, limit, stride) == (0, shape[dim], 1):
            continue
        index = Iota(shape, dim, dtype)()
        inside = And()(Compare("GE")(index, full(shape, start, dtype)), Compare("LT")(index, full(shape, limit, dtype)))
        if stride > 1:
            steps = Rem()(Sub()(index, full(shape, start, dtype)), full(shape, stride, dtype))
            inside = And()(inside, Compare("EQ")(steps, full(shape, 0, dtype)))
        found = inside if found is None else And()(found, inside)
    return found
