"""Functional updates: `x.at[index].set(values)`, `add`, `multiply` and so on.

With slices the positions are static: the values are padded to the shape of the array and selected by a mask, so that on
a mesh only the values move. With integers or arrays the update is a scatter, which drops updates out of bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any, ParamSpec, final

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.base.call_site import warn_user
from shardwise.base.config import config
from shardwise.compiler.arrays.argument_types import ArrayLike, Index
from shardwise.compiler.arrays.arithmetic import divide, negative, power
from shardwise.compiler.arrays.dynamic_index import has_dynamic_slices, replace_dynamic_slices
from shardwise.compiler.arrays.indexing import (
    Indexer,
    clip_indices,
    gather_by_index,
    index_mode,
    out_of_bounds_fill,
    parse_index,
)
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.control.while_loop import while_capturing
from shardwise.compiler.dtypes import integer_range, is_integer
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Rem, Sub
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.placement.retype import with_sums_of, with_varying_of
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceOr
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Pad, Reverse
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.errors import ConcretizationTypeError
from shardwise.numpy.creation import asarray

_Parameters = ParamSpec("_Parameters")

_REDUCTIONS: dict[str, Reduction | None] = {"set": None, "add": SUM, "mul": PROD, "min": MIN, "max": MAX}
_ELEMENTWISE_OPS: dict[Reduction, Callable[[], Any]] = {SUM: Add, PROD: Mul, MIN: Min, MAX: Max}


@final
@dataclass(frozen=True, eq=False)
class IndexUpdateHelper:
    """The value of `x.at`: index it to select the elements to update."""

    array: Any

    def __getitem__(self, index: Index) -> "IndexUpdateRef":
        if has_dynamic_slices(index):
            index = replace_dynamic_slices(index, self.array.type)
        return IndexUpdateRef(self.array, index)


def _combining(
    like: Callable[_Parameters, Array],
    name: str,
    reduction: str,
    doc: str,
    prepare: Callable[[Any], Any] = lambda values: values,
) -> Callable[_Parameters, Array]:
    """Make a method with the signature of `like` that combines elements with `prepare(values)` by a reduction."""

    def method(self: "IndexUpdateRef", values: ArrayLike, **options: Any) -> Array:
        return self._update(reduction, prepare(_as_array_like(values)), **options)

    return _update_method(method, like, name, doc)


def _with_ones(
    like: Callable[_Parameters, Array], name: str, function: Callable[[Any, Any], Any], doc: str
) -> Callable[_Parameters, Array]:
    """Make a method with the signature of `like` that applies `function` to all elements.

    Its second operand is the product of the values for an element, and 1 for elements that are not indexed.
    """

    def method(self: "IndexUpdateRef", values: ArrayLike, *, out_sharding: Any = None, **options: Any) -> Array:
        operand = self._ones()._update("mul", values, out_sharding=out_sharding, **options)
        with decided_by(out_sharding):
            result = function(self.array, operand)
        return constrain_sharding(result, out_sharding)

    return _update_method(method, like, name, doc)


def _update_method(
    method: Callable[..., Array], like: Callable[_Parameters, Array], name: str, doc: str
) -> Callable[_Parameters, Array]:
    """Set the signature, the name and the docstring of a method."""
    method = wraps(like)(method)
    method.__name__, method.__qualname__, method.__doc__ = name, f"IndexUpdateRef.{name}", doc
    return method


@final
@dataclass(frozen=True, eq=False)
class IndexUpdateRef:
    """The value of `x.at[index]`. Its methods return a new array and leave `x` unchanged.

    All methods share these parameters:

    * `mode` says how to treat indices out of bounds. "drop" and "fill" drop updates, and `get` returns `fill_value`;
      "clip" clamps the indices; "promise_in_bounds" promises that there are none. The default is "drop" for updates
      and "clip" for `get`.
    * `wrap_negative_indices`: whether negative indices count from the end. If not, they are out of bounds.
    * `unique_indices` and `indices_are_sorted` are promises that the compiler may use.
    * `out_sharding` is the sharding of the result. It decides where operands conflict along Explicit mesh axes.
    """

    array: Any
    index: Any

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | Enum | None = None,
        fill_value: ArrayLike | None = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """Return `x[index]`."""
        fills = index_mode("at.get", mode, "clip") in ("fill", "drop")
        check_bounds = mode is None and config.check_static_indices
        indexer, arrays = parse_index(self.index, self.array.type, wrap_negative_indices, check_bounds=check_bounds)
        fill = out_of_bounds_fill(fill_value, self.array.type.dtype) if fills else None
        with decided_by(out_sharding):
            result = gather_by_index(
                self.array, *arrays, indexer=indexer, fill=fill, sorted=indices_are_sorted, unique=unique_indices
            )
        return constrain_sharding(result, out_sharding)

    def set(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | Enum | None = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """Set the elements to `values`. If indices repeat, it is undefined which value is used."""
        return self._update(
            "set",
            values,
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
            mode=mode,
            out_sharding=out_sharding,
            wrap_negative_indices=wrap_negative_indices,
        )

    add = _combining(set, "add", "add", "Add `values` to the elements. If indices repeat, all values are added.")
    subtract = _combining(set, "subtract", "add", "Subtract `values` from the elements.", prepare=negative)
    multiply = mul = _combining(set, "multiply", "mul", "Multiply the elements by `values`.")
    min = _combining(set, "min", "min", "Replace the elements by their minimum with `values`.")
    max = _combining(set, "max", "max", "Replace the elements by their maximum with `values`.")
    divide = _with_ones(set, "divide", divide, "Divide the elements by `values`, and all others by 1.")
    power = _with_ones(set, "power", power, "Raise the elements to the power `values`, and all others to the power 1.")

    def apply(
        self,
        func: Callable[[Any], Any],
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | Enum | None = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """Apply the elementwise function `func` to the elements, once for each time that an index occurs."""
        clip = index_mode("at.apply", mode, "drop") == "clip"
        indexer, arrays = parse_index(self.index, self.array.type, wrap_negative_indices, reads=False)
        options: dict[str, Any] = {"mode": mode, "wrap_negative_indices": wrap_negative_indices}
        if unique_indices or not any(type_of(array).shape for array in arrays):
            applied = func(self.get(mode="clip", wrap_negative_indices=wrap_negative_indices))
            promises: dict[str, Any] = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices}
            return self.set(applied, **promises, **options)
        counts = IndexUpdateRef(full(self.array.type.shape, 0, np.int32), self.index).add(1, **options)
        max_count = _max_index_count(indexer, arrays, clip)
        if max_count is None:
            return _apply_repeatedly(func, self.array, counts)
        result = self.array
        for repetition in range(max_count):
            result = _apply_where_repeated(counts, func(result), result, np.int32(repetition))
        return result

    def _ones(self) -> "IndexUpdateRef":
        return IndexUpdateRef(full(self.array.type.shape, 1, self.array.type.dtype, self.array.type.weak), self.index)

    def _update(
        self,
        name: str,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | Enum | None = None,
        out_sharding: Any = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        clip = index_mode(f"at.{name}", mode, "drop") == "clip"
        indexer, arrays = parse_index(self.index, self.array.type, wrap_negative_indices, reads=False)
        values = _as_array_like(values)
        if type(values) is int and is_integer(self.array.type.dtype):
            low, high = integer_range(self.array.type.dtype)
            values = np.asarray(values, self.array.type.dtype) if low <= values <= high else values
        values_type = type_of(values, f"at.{name}")
        if promote_dtypes(f"at.{name}", (self.array.type, values_type))[0] != self.array.type.dtype:
            warn_user(
                f"at.{name}: values of {values_type} are cast to the narrower {self.array.type}; JAX will make this an "
                "error. Convert them with `.astype`",
                FutureWarning,
            )
        if broadcast_shapes(f"at.{name}", indexer.shape, values_type.shape) != indexer.shape:
            raise ValueError(
                f"at.{name}: values of {values_type} do not broadcast to {indexer.shape}, the shape of the "
                "indexed elements"
            )
        if not self.array.type.size:
            return constrain_sharding(self.array, out_sharding)
        if indexer.slice_ops and all(isinstance(array, int) for array in arrays):
            indexer, arrays = indexer.with_static_indices(arrays), []
        with decided_by(out_sharding):
            result = update_at_index(
                self.array,
                values,
                *arrays,
                indexer=indexer,
                combine=_REDUCTIONS[name],
                clip=clip,
                sorted=indices_are_sorted,
                unique=unique_indices,
            )
        return constrain_sharding(result, out_sharding)


def _as_array_like(values: Any) -> ArrayLike:
    """Return the array of a list or a tuple of numbers and arrays; other values as they are."""
    return asarray(values) if isinstance(values, (list, tuple)) else values


def _max_index_count(indexer: Indexer, arrays: list[Any], clip: bool) -> int | None:
    """Return how often the most frequent index occurs; None if an index is traced."""
    sizes = [indexer.type.shape[dim] for dim in indexer.dims]
    columns, inside = [], np.ones(indexer.index_shape, np.bool_)
    for array, size in zip(arrays, sizes, strict=True):
        try:
            index = np.asarray(array)
        except ConcretizationTypeError:
            return None
        if indexer.wrap_negative and not isinstance(array, int):
            index = np.where(index < 0, index + size, index)
        index = np.clip(index, 0, size - 1) if clip else index
        columns.append(np.broadcast_to(index, indexer.index_shape))
        inside = inside & (index >= 0) & (index < size)
    _, counts = np.unique(np.stack([column[inside] for column in columns]), axis=1, return_counts=True)
    return int(counts.max(initial=0))


def _apply_repeatedly(func: Callable[[Any], Any], x: Array, counts: Array) -> Any:
    """Apply `func` to each element as often as `counts` says, in a loop. It has no reverse-mode derivative."""

    def has_more(repetition: Array, result: Array) -> list[Any]:
        repeats = Compare("GT")(counts, Broadcast(counts.type.shape, ())(repetition))
        return [ReduceOr(tuple(range(repeats.type.ndim)))(repeats)]

    def step(repetition: Array, result: Array) -> list[Any]:
        applied = _apply_where_repeated(counts, func(result), result, repetition)
        return [Add()(repetition, full((), 1, np.int32)), applied]

    # The first application is before the loop: its result has the type of the carry.
    start = _apply_where_repeated(counts, func(x), x, np.int32(0))
    return while_capturing("at.apply", [full((), 1, np.int32), start], has_more, step)[1]


@compiled_function
def _apply_where_repeated(counts: Array, applied: ArrayLike, before: Array, repetition: ArrayLike) -> Any:
    """Select `applied` where an index occurs more than `repetition` times, else `before`."""
    repeats = Compare("GT")(counts, Broadcast(counts.type.shape, ())(as_operand(repetition)))
    return Select()(repeats, astype_weak(as_operand(applied), before.type.dtype, before.type.weak), before)


@compiled_function
def update_at_index(
    x: ArrayLike,
    values: ArrayLike,
    *indices: ArrayLike,
    indexer: Indexer,
    combine: Reduction | None,
    clip: bool = False,
    sorted: bool = False,
    unique: bool = False,
) -> Any:
    """Combine `values` with the indexed elements of `x`; replace them if `combine` is None."""
    x = as_operand(x)
    if 0 in indexer.shape:
        return x
    before = x.type
    x = indexer.with_scalar_dims(x)
    dtype, weak = promote_dtypes("at", (before, type_of(values)))
    x = astype_weak(x, dtype, weak and before.weak)
    values = astype_weak(as_operand(values), dtype, weak and before.weak)
    if not indices:
        sizes = [*(1,) * (len(indexer.shape) - values.type.ndim), *values.type.shape]
        sizes = [size for dim, size in enumerate(sizes) if dim not in indexer.new_dims]
        for dim in indexer.dims:
            sizes.insert(dim, 1)
        result = _update_slices(x, Reshape(tuple(sizes))(values), indexer, combine)
    else:
        sliced = x
        for op in indexer.slice_ops:
            sliced = op(sliced)
        op = Scatter(*indexer.windows, combine=combine, sorted=sorted, unique=unique or not indexer.index_shape)
        vectors = indexer.vectors(indices)
        if clip:
            vectors = clip_indices(op, sliced.type.shape, indexer.sizes, vectors)
        updates = broadcast_to_shape(values, indexer.shape)
        gathered_shape = indexer.gathered_shape
        updates = updates if indexer.shape == gathered_shape else Reshape(gathered_shape)(updates)
        result = op(sliced, vectors, updates)
        if indexer.slice_ops:
            result = _update_slices(x, result, indexer, None)
    result = result if result.type.shape == before.shape else Reshape(before.shape)(result)
    return astype_weak(result, before.dtype, before.weak)


def _update_slices(x: Array, values: Array, indexer: Indexer, combine: Reduction | None) -> Any:
    """Update the slices of an index. `values` has the rank of `x`; each dim has the size of the slice, or 1."""
    sizes = values.type.shape
    low, high, interior = ([0] * x.type.ndim for _ in range(3))
    for dim, (start, _, stride) in enumerate(indexer.slices):
        if sizes[dim] > 1:
            extent = (sizes[dim] - 1) * stride + 1
            low[dim], high[dim], interior[dim] = start, x.type.shape[dim] - start - extent, stride - 1
    reversed_dims = tuple(dim for dim in indexer.reversed_dims if sizes[dim] > 1)
    values = Reverse(reversed_dims)(values) if reversed_dims else values
    if any((*low, *high, *interior)):
        values = Pad(tuple(low), tuple(high), tuple(interior))(values, full((), 1, x.type.dtype, x.type.weak))
    values = broadcast_to_shape(values, x.type.shape)  # dims of size 1 need no pad
    mask = _slice_mask(indexer)
    if mask is None:
        return with_varying_of(values, x.type) if combine is None else _ELEMENTWISE_OPS[combine]()(x, values)
    if combine is None:
        return Select()(mask, values, x)
    # Outside the mask the values are 1, so that the derivative of the combination stays finite.
    ones = full(x.type.shape, 1, x.type.dtype, x.type.weak)
    values = Select()(mask, values, with_sums_of(ones, values.type))
    return Select()(mask, _ELEMENTWISE_OPS[combine]()(x, values), x)


def _slice_mask(indexer: Indexer) -> Any:
    """Return a mask of the elements that the slices select; None if they select all."""
    mask = None
    shape, dtype = indexer.type.shape, np.dtype(np.int32)
    for dim, (start, limit, stride) in enumerate(indexer.slices):
        if (start, limit, stride) == (0, shape[dim], 1):
            continue
        index = Iota(shape, dim, dtype)()
        inside = And()(Compare("GE")(index, full(shape, start, dtype)), Compare("LT")(index, full(shape, limit, dtype)))
        if stride > 1:
            steps = Rem()(Sub()(index, full(shape, start, dtype)), full(shape, stride, dtype))
            inside = And()(inside, Compare("EQ")(steps, full(shape, 0, dtype)))
        mask = inside if mask is None else And()(mask, inside)
    return mask
