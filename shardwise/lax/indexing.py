"""Parts of arrays at places that may be of the program: close to the ops of `dynamic.py`, `gather.py`, `scatter.py`."""

import enum
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardwise.api.control import fori_loop
from shardwise.api.vmap import vmap
from shardwise.compiler.arrays.arithmetic import negative, remainder
from shardwise.compiler.arrays.indexing import (
    as_index,
    canonical_axis,
    clip_indices,
    fill_of,
    filled,
    gather_by_index,
    index_mode,
    indexer,
    same_kind,
    wrap_negative_index,
)
from shardwise.compiler.arrays.methods import where
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.arrays.reductions import amax
from shardwise.compiler.ir.types import Scalar
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.index_vectors import WindowDims
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, permuted
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction


class GatherScatterMode(enum.Enum):
    """What is done where a window does not lie inside of the array."""

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"

    @staticmethod
    def from_any(mode: "str | GatherScatterMode | None") -> "GatherScatterMode":
        """The mode of this name; where there is none, the one that fills or drops."""
        found = index_mode("GatherScatterMode", mode, "fill")
        return GatherScatterMode("fill" if found == "drop" else found)


class GatherDimensionNumbers(NamedTuple):
    """Which dims of a gather's operands and result belong together. Index vectors lie along the indices' last dim.

    `offset_dims`: of the result, those of a window. `collapsed_slice_dims`: of the operand, those of which a window has
    one element, and that the result lacks. `start_index_map`: for which dim of the operand each component of an index
    vector is. `operand_batching_dims` run along with `start_indices_batching_dims`.
    """

    offset_dims: Sequence[int]
    collapsed_slice_dims: Sequence[int]
    start_index_map: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    start_indices_batching_dims: Sequence[int] = ()


class ScatterDimensionNumbers(NamedTuple):
    """Which dims of a scatter's operands belong together: as in `GatherDimensionNumbers`, updates for the result."""

    update_window_dims: Sequence[int]
    inserted_window_dims: Sequence[int]
    scatter_dims_to_operand_dims: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    scatter_indices_batching_dims: Sequence[int] = ()


def dynamic_slice(
    operand: Any,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Any:
    """`slice_sizes[i]` elements along each dim i from `start_indices[i]` on. A slice that would reach past an end is
    moved in; before that, negative starts count from the end where `allow_negative_indices` says so.

    >>> lax.dynamic_slice(jnp.arange(5), (2,), (2,))
    Array([2, 3], dtype=int32)
    """
    ndim = type_of(operand, "dynamic_slice").ndim
    starts, around = _starts("dynamic_slice", start_indices, allow_negative_indices, ndim)
    return _dynamic_slice(operand, *starts, sizes=tuple(map(operator.index, slice_sizes)), around=around)


@compiled_function
def _dynamic_slice(x: Any, *starts: Any, sizes: tuple[int, ...], around: tuple[bool, ...]) -> Any:
    x = as_operand(x)
    return DynamicSlice(sizes)(x, *_from_start(x, starts, around))


def dynamic_update_slice(
    operand: Any, update: Any, start_indices: Any, *, allow_negative_indices: bool | Sequence[bool] = True
) -> Any:
    """`operand` with `update` in place of a part of it, which begins at `start_indices`, as in `dynamic_slice`.

    >>> lax.dynamic_update_slice(jnp.arange(5), jnp.array([8, 9]), (2,))
    Array([0, 1, 8, 9, 4], dtype=int32)
    """
    ndim = type_of(operand, "dynamic_update_slice").ndim
    starts, around = _starts("dynamic_update_slice", start_indices, allow_negative_indices, ndim)
    return _dynamic_update_slice(operand, update, *starts, around=around)


@compiled_function
def _dynamic_update_slice(x: Any, update: Any, *starts: Any, around: tuple[bool, ...]) -> Any:
    x = as_operand(x)
    return DynamicUpdateSlice()(x, as_operand(update, "dynamic_update_slice"), *_from_start(x, starts, around))


def dynamic_slice_in_dim(
    operand: Any, start_index: Any, slice_size: int, axis: int = 0, *, allow_negative_indices: bool = True
) -> Any:
    """`dynamic_slice` along one dim.

    >>> lax.dynamic_slice_in_dim(jnp.arange(5), 2, 2)
    Array([2, 3], dtype=int32)
    """
    kind = type_of(operand, "dynamic_slice_in_dim")
    dim = canonical_axis("dynamic_slice_in_dim", axis, kind.ndim)
    sizes = (*kind.shape[:dim], slice_size, *kind.shape[dim + 1 :])
    starts = _start_along(dim, start_index, kind.ndim)
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(
    operand: Any, index: Any, axis: int = 0, keepdims: bool = True, *, allow_negative_indices: bool = True
) -> Any:
    """The element at `index` along one dim, which stays as one of size 1 if `keepdims`.

    >>> lax.dynamic_index_in_dim(jnp.array([5, 6, 7]), 1, keepdims=False)
    Array(6, dtype=int32)
    """
    found = dynamic_slice_in_dim(operand, index, 1, axis, allow_negative_indices=allow_negative_indices)
    dim = canonical_axis("dynamic_index_in_dim", axis, found.type.ndim)
    return found if keepdims else Reshape(found.type.without((dim,)).shape)(found)


def dynamic_update_slice_in_dim(
    operand: Any, update: Any, start_index: Any, axis: int, *, allow_negative_indices: bool = True
) -> Any:
    """`dynamic_update_slice` along one dim.

    >>> lax.dynamic_update_slice_in_dim(jnp.arange(5), jnp.array([8, 9]), 2, axis=0)
    Array([0, 1, 8, 9, 4], dtype=int32)
    """
    ndim = type_of(operand, "dynamic_update_slice_in_dim").ndim
    dim = canonical_axis("dynamic_update_slice_in_dim", axis, ndim)
    starts = _start_along(dim, start_index, ndim)
    return dynamic_update_slice(operand, update, starts, allow_negative_indices=allow_negative_indices)


def dynamic_update_index_in_dim(
    operand: Any, update: Any, index: Any, axis: int, *, allow_negative_indices: bool = True
) -> Any:
    """`operand` with `update` at `index` along one dim; the update has that dim with size 1, or lacks it.

    >>> lax.dynamic_update_index_in_dim(jnp.arange(5), 9, 1, axis=0)
    Array([0, 9, 2, 3, 4], dtype=int32)
    """
    kind = type_of(operand, "dynamic_update_index_in_dim")
    dim = canonical_axis("dynamic_update_index_in_dim", axis, kind.ndim)
    update = as_operand(update, "dynamic_update_index_in_dim")
    if update.type.ndim == kind.ndim - 1:
        shape = update.type.shape
        update = Reshape((*shape[:dim], 1, *shape[dim:]))(update)
    return dynamic_update_slice_in_dim(operand, update, index, dim, allow_negative_indices=allow_negative_indices)


def _starts(
    name: str, starts: Any, allow_negative: bool | Sequence[bool], ndim: int
) -> tuple[list[Any], tuple[bool, ...]]:
    """One index for each dim, of a sequence or an array, and whether it may count from the end."""
    found = list(starts)
    around = (allow_negative,) * ndim if isinstance(allow_negative, bool) else tuple(map(bool, allow_negative))
    if len(found) != ndim:
        raise ValueError(f"{name}: needs a start for each of {ndim} dims, not {len(found)}")
    if len(around) != ndim:
        raise ValueError(f"{name}: allow_negative_indices is one for all or for each of {ndim} dims, not {around}")
    for dim, (start, is_around) in enumerate(zip(found, around, strict=True)):
        if isinstance(start, int) and start < 0 and not is_around:
            raise ValueError(f"{name}: start {start} of dim {dim} is negative, which allow_negative_indices rules out")
    return found, around


def _start_along(dim: int, start: Any, ndim: int) -> list[Any]:
    return [start if d == dim else 0 for d in range(ndim)]


def _from_start(x: Any, starts: Sequence[Any], around: Sequence[bool]) -> list[Any]:
    return [
        wrap_negative_index(start, size) if is_around else start
        for start, size, is_around in zip(same_kind(starts), x.type.shape, around, strict=True)
    ]


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Any:
    """A window of `slice_sizes` for each index vector. One that does not lie inside is moved in (mode "clip", unless
    told), or else ("fill") all `fill_value`. Negative indices lie outside.

    >>> numbers = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    >>> lax.gather(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), numbers, (1,))
    Array([7, 5], dtype=int32)
    """
    numbers = dimension_numbers
    dims = _dims(
        numbers.offset_dims,
        numbers.collapsed_slice_dims,
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
        numbers.start_index_map,
    )
    sizes = tuple(map(operator.index, slice_sizes))
    op = Gather(*dims, sizes=sizes, sorted=indices_are_sorted, unique=unique_indices)
    fill = None
    if index_mode("gather", mode, "clip") in ("fill", "drop"):
        fill = fill_of(fill_value, type_of(operand, "gather").dtype)
    return _gathered(operand, start_indices, op=op, fill=fill)


def _dims(
    window: Sequence[int],
    collapsed: Sequence[int],
    batch: Sequence[int],
    index_batch: Sequence[int],
    mapped: Sequence[int],
) -> WindowDims:
    """As fields of an op can hold them."""
    return tuple(window), tuple(collapsed), tuple(batch), tuple(index_batch), tuple(mapped)


@compiled_function
def _gathered(x: Any, indices: Any, *, op: Gather, fill: Scalar | None) -> Any:
    return filled(op, op.sizes, as_operand(x, "gather"), as_index(indices), fill)


def scatter(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with updates put at the places of index vectors. Where places repeat, any of them may be taken.

    `mode` is for windows that do not lie inside: "drop" leaves them out, and is meant unless told; "clip" moves them
    in. `indices_are_sorted` and `unique_indices` are promises, which devices may use.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), jnp.array([2, 9]), numbers)
    Array([9, 6, 2], dtype=int32)
    """
    op = _scattering(None, dimension_numbers, indices_are_sorted, unique_indices)
    return _scattered(operand, scatter_indices, updates, op=op, clips=_clips(mode))


def scatter_add(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with updates added at the places of index vectors; see `scatter`.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_add(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), jnp.array([2, 9]), numbers)
    Array([14,  6,  9], dtype=int32)
    """
    op = _scattering(SUM, dimension_numbers, indices_are_sorted, unique_indices)
    return _scattered(operand, scatter_indices, updates, op=op, clips=_clips(mode))


def scatter_sub(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with updates subtracted at the places of index vectors; see `scatter`.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_sub(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), jnp.array([2, 9]), numbers)
    Array([-4,  6,  5], dtype=int32)
    """
    op = _scattering(SUM, dimension_numbers, indices_are_sorted, unique_indices)
    return _scattered(operand, scatter_indices, negative(updates), op=op, clips=_clips(mode))


def scatter_mul(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` multiplied by updates at the places of index vectors; see `scatter`.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_mul(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), jnp.array([2, 9]), numbers)
    Array([45,  6, 14], dtype=int32)
    """
    op = _scattering(PROD, dimension_numbers, indices_are_sorted, unique_indices)
    return _scattered(operand, scatter_indices, updates, op=op, clips=_clips(mode))


def scatter_min(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand`, but no more than the updates at the places of index vectors; see `scatter`.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_min(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), jnp.array([2, 9]), numbers)
    Array([5, 6, 2], dtype=int32)
    """
    op = _scattering(MIN, dimension_numbers, indices_are_sorted, unique_indices)
    return _scattered(operand, scatter_indices, updates, op=op, clips=_clips(mode))


def scatter_max(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand`, but no less than the updates at the places of index vectors; see `scatter`.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_max(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), jnp.array([2, 9]), numbers)
    Array([9, 6, 7], dtype=int32)
    """
    op = _scattering(MAX, dimension_numbers, indices_are_sorted, unique_indices)
    return _scattered(operand, scatter_indices, updates, op=op, clips=_clips(mode))


def scatter_apply(
    operand: Any,
    scatter_indices: Any,
    func: Callable[[Any], Any],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with `func` applied to its elements in windows of `update_shape` at the places of index vectors: once
    for each window that an element is in. See `scatter`.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.scatter_apply(jnp.array([1, 2, 3]), jnp.array([[0], [2]]), lambda x: -x, numbers, update_shape=(2,))
    Array([-1,  2, -3], dtype=int32)
    """
    x = as_operand(operand, "scatter_apply")
    kind = x.type
    once = full(tuple(map(operator.index, update_shape)), 1, np.int32)
    op = _scattering(SUM, dimension_numbers, indices_are_sorted, unique_indices)
    counts = _scattered(full(kind.shape, 0, np.int32), scatter_indices, once, op=op, clips=_clips(mode))

    def applied(array: Any, wanted: Any) -> Any:
        each = vmap(func)(array.reshape(-1)).reshape(kind.shape)
        if each.type.dtype != kind.dtype:
            raise TypeError(f"scatter_apply: func must return {kind.dtype}, as it gets, not {each.type.dtype}")
        return where(wanted, each, array)

    if unique_indices:
        return applied(x, counts > 0)
    turns = amax(counts, or_none=True)
    return fori_loop(0, turns, lambda turn, array: applied(array, turn < counts), x)


def _scattering(
    combine: Reduction | None, numbers: ScatterDimensionNumbers, is_sorted: bool, is_unique: bool
) -> Scatter:
    dims = _dims(
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
        numbers.scatter_dims_to_operand_dims,
    )
    return Scatter(*dims, combine=combine, sorted=is_sorted, unique=is_unique)


def _clips(mode: Any) -> bool:
    return index_mode("scatter", mode, "drop") == "clip"


@compiled_function
def _scattered(x: Any, indices: Any, updates: Any, *, op: Scatter, clips: bool) -> Any:
    x, updates, indices = as_operand(x, "scatter"), as_operand(updates, "scatter"), as_index(indices)
    if clips:
        indices = clip_indices(op, x.type.shape, op.sizes_of(x.type, updates.type), indices)
    return op(x, indices, updates)


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Any:
    """The elements at places along `axes`, of which a row of indices each is given, in front of the other dims.

    Indices outside are counted around.

    >>> lax.index_take(jnp.array([[1, 2], [3, 4]]), (jnp.array([1, 0]),), (0,))
    Array([[3, 4],
           [1, 2]], dtype=int32)
    """
    x = as_operand(src, "index_take")
    dims = [canonical_axis("index_take", axis, x.type.ndim) for axis in axes]
    moved = [*dims, *(dim for dim in range(x.type.ndim) if dim not in dims)]
    around = tuple(remainder(index, x.type.shape[dim]) for index, dim in zip(idxs, dims, strict=True))
    by, arrays = indexer(around, x.type.with_shape(tuple(x.type.shape[dim] for dim in moved)))
    return gather_by_index(permuted(x, tuple(moved)), *arrays, by=by)
