"""Dynamic slices, gather and scatter: indexing whose indices may be traced."""

import enum
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from shardwise.api.control import fori_loop
from shardwise.api.transformations.vmap import vmap
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.arithmetic import negative, remainder
from shardwise.compiler.arrays.indexing import (
    as_index,
    canonical_axis,
    clip_indices,
    gather_by_index,
    gather_with_fill,
    index_mode,
    out_of_bounds_fill,
    parse_index,
    promote_indices,
    wrap_negative_index,
)
from shardwise.compiler.arrays.methods import Array, where
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.arrays.reductions import amax
from shardwise.compiler.ir.types import Scalar
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.index_vectors import WindowDims
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.typing import ArrayLike, Arrays


class GatherScatterMode(enum.Enum):
    """The handling of indices that are out of bounds."""

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"

    @staticmethod
    def from_any(mode: "str | GatherScatterMode | None") -> "GatherScatterMode":
        """Convert a name or a mode to a mode. None and "drop" mean FILL_OR_DROP."""
        name = index_mode("GatherScatterMode", mode, "fill")
        return GatherScatterMode("fill" if name == "drop" else name)


class GatherDimensionNumbers(NamedTuple):
    """The roles of the dims of a gather. Index vectors are along the last dim of the indices.

    `offset_dims`: the dims of the result that are dims of a window. `collapsed_slice_dims`: the dims of the operand
    with window size 1 that the result lacks. `start_index_map`: the dim of the operand that each component of an index
    vector indexes. `operand_batching_dims` and `start_indices_batching_dims`: pairs of batch dims of operand and
    indices.
    """

    offset_dims: Sequence[int]
    collapsed_slice_dims: Sequence[int]
    start_index_map: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    start_indices_batching_dims: Sequence[int] = ()


class ScatterDimensionNumbers(NamedTuple):
    """The roles of the dims of a scatter, as in `GatherDimensionNumbers`, with the updates in place of the result."""

    update_window_dims: Sequence[int]
    inserted_window_dims: Sequence[int]
    scatter_dims_to_operand_dims: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    scatter_indices_batching_dims: Sequence[int] = ()


def dynamic_slice(
    operand: ArrayLike,
    start_indices: Arrays,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Slice an array at start indices that may be traced.

    A slice that would exceed the array is moved into bounds, after negative starts are converted.

    Args:
        operand: an array.
        start_indices: one integer per dim: a sequence of scalars, or an array of rank 1.
        slice_sizes: the static size of the slice along each dim.
        allow_negative_indices: whether negative starts count from the end; one boolean, or one per dim.

    Returns:
        An array of shape `slice_sizes`.

    Raises:
        ValueError: if there is not one start per dim, or a static start is negative without `allow_negative_indices`.
        TypeError: if a start is not an integer, or a size exceeds its dim.

    Example:
        >>> lax.dynamic_slice(jnp.arange(5), (2,), (2,))
        Array([2, 3], dtype=int32)
    """
    ndim = type_of(operand, "dynamic_slice").ndim
    starts, wraps = _check_starts("dynamic_slice", start_indices, allow_negative_indices, ndim)
    return _dynamic_slice(operand, *starts, sizes=tuple(map(operator.index, slice_sizes)), wraps=wraps)


@compiled_function
def _dynamic_slice(x: ArrayLike, *starts: ArrayLike, sizes: tuple[int, ...], wraps: tuple[bool, ...]) -> Any:
    x = as_operand(x)
    return DynamicSlice(sizes)(x, *_wrap_negative(x, starts, wraps))


_DYNAMIC_SLICE = Family(
    {
        "operand": "an array.",
        "start_indices": "one integer per dim: a sequence of scalars, or an array of rank 1.",
        "allow_negative_indices": "whether negative indices count from the end.",
        "update": "the new values, an array of the dtype and rank of `operand`.",
        "start_index": "the start of the slice, an integer scalar.",
        "axis": "the dim to slice.",
        "index": "the index, an integer scalar. It is clamped into bounds.",
    },
    returns="An updated copy of `operand`.",
    raises=[
        "ValueError: if `axis` does not exist, or a static index is negative without\n`allow_negative_indices`.",
        "TypeError: if the index is not an integer, or the size exceeds the dim.",
    ],
)


@documented(_DYNAMIC_SLICE)
def dynamic_update_slice(
    operand: ArrayLike,
    update: ArrayLike,
    start_indices: Arrays,
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """Replace a slice of an array, at start indices that may be traced.

    A slice that would exceed the array is moved into bounds, after negative starts are converted.

    Args:
        operand: the array to update. It is not modified.
        allow_negative_indices: whether negative starts count from the end; one boolean, or one per dim.

    Raises:
        ValueError: if there is not one start per dim, or a static start is negative without `allow_negative_indices`.
        TypeError: if a start is not an integer, or `update` has another dtype or does not fit into `operand`.

    Example:
        >>> lax.dynamic_update_slice(jnp.arange(5), jnp.array([8, 9]), (2,))
        Array([0, 1, 8, 9, 4], dtype=int32)
    """
    ndim = type_of(operand, "dynamic_update_slice").ndim
    starts, wraps = _check_starts("dynamic_update_slice", start_indices, allow_negative_indices, ndim)
    return _dynamic_update_slice(operand, update, *starts, wraps=wraps)


@compiled_function
def _dynamic_update_slice(x: ArrayLike, update: ArrayLike, *starts: ArrayLike, wraps: tuple[bool, ...]) -> Any:
    x = as_operand(x)
    return DynamicUpdateSlice()(x, as_operand(update, "dynamic_update_slice"), *_wrap_negative(x, starts, wraps))


@documented(_DYNAMIC_SLICE, returns="An array that has `slice_size` elements along `axis`.")
def dynamic_slice_in_dim(
    operand: ArrayLike, start_index: ArrayLike, slice_size: int, axis: int = 0, *, allow_negative_indices: bool = True
) -> Array:
    """Slice an array along one dim, at a start index that may be traced; see `dynamic_slice`.

    Args:
        slice_size: the static size of the slice.

    Example:
        >>> lax.dynamic_slice_in_dim(jnp.arange(5), 2, 2)
        Array([2, 3], dtype=int32)
    """
    type = type_of(operand, "dynamic_slice_in_dim")
    dim = canonical_axis("dynamic_slice_in_dim", axis, type.ndim)
    sizes = (*type.shape[:dim], slice_size, *type.shape[dim + 1 :])
    starts = _start_along(dim, start_index, type.ndim)
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow_negative_indices)


@documented(_DYNAMIC_SLICE, returns="The slice.")
def dynamic_index_in_dim(
    operand: ArrayLike, index: ArrayLike, axis: int = 0, keepdims: bool = True, *, allow_negative_indices: bool = True
) -> Array:
    """Return the slice at one index along a dim. The index may be traced.

    Args:
        axis: the dim to index.
        keepdims: keep the indexed dim, with size 1.

    Example:
        >>> lax.dynamic_index_in_dim(jnp.array([5, 6, 7]), 1, keepdims=False)
        Array(6, dtype=int32)
    """
    window = dynamic_slice_in_dim(operand, index, 1, axis, allow_negative_indices=allow_negative_indices)
    dim = canonical_axis("dynamic_index_in_dim", axis, window.type.ndim)
    return window if keepdims else Reshape(window.type.without((dim,)).shape)(window)


@documented(_DYNAMIC_SLICE)
def dynamic_update_slice_in_dim(
    operand: ArrayLike, update: ArrayLike, start_index: ArrayLike, axis: int, *, allow_negative_indices: bool = True
) -> Array:
    """Replace a slice along one dim, at a start index that may be traced; see `dynamic_update_slice`.

    Args:
        operand: the array to update. It is not modified.

    Raises:
        TypeError: if the index is not an integer, or the update has another dtype or does not fit into `operand`.

    Example:
        >>> lax.dynamic_update_slice_in_dim(jnp.arange(5), jnp.array([8, 9]), 2, axis=0)
        Array([0, 1, 8, 9, 4], dtype=int32)
    """
    ndim = type_of(operand, "dynamic_update_slice_in_dim").ndim
    dim = canonical_axis("dynamic_update_slice_in_dim", axis, ndim)
    starts = _start_along(dim, start_index, ndim)
    return dynamic_update_slice(operand, update, starts, allow_negative_indices=allow_negative_indices)


@documented(_DYNAMIC_SLICE)
def dynamic_update_index_in_dim(
    operand: ArrayLike, update: ArrayLike, index: ArrayLike, axis: int, *, allow_negative_indices: bool = True
) -> Array:
    """Replace the slice at one index along a dim. The index may be traced.

    Args:
        operand: the array to update. It is not modified.
        update: the new slice: an array that has size 1 along `axis`, or lacks that dim.
        axis: the dim to index.

    Raises:
        TypeError: if the index is not an integer, or the update has another dtype or does not fit into `operand`.

    Example:
        >>> lax.dynamic_update_index_in_dim(jnp.arange(5), 9, 1, axis=0)
        Array([0, 9, 2, 3, 4], dtype=int32)
    """
    type = type_of(operand, "dynamic_update_index_in_dim")
    dim = canonical_axis("dynamic_update_index_in_dim", axis, type.ndim)
    update = as_operand(update, "dynamic_update_index_in_dim")
    if update.type.ndim == type.ndim - 1:
        shape = update.type.shape
        update = Reshape((*shape[:dim], 1, *shape[dim:]))(update)
    return dynamic_update_slice_in_dim(operand, update, index, dim, allow_negative_indices=allow_negative_indices)


def _check_starts(
    name: str, start_indices: Arrays, allow_negative: bool | Sequence[bool], ndim: int
) -> tuple[list[Any], tuple[bool, ...]]:
    """Return the start index of each dim, and whether negative ones count from its end."""
    starts = list(start_indices)
    wraps = (allow_negative,) * ndim if isinstance(allow_negative, bool) else tuple(map(bool, allow_negative))
    if len(starts) != ndim:
        raise ValueError(f"{name}: start_indices must have one index for each of {ndim} dims, not {len(starts)}")
    if len(wraps) != ndim:
        raise ValueError(
            f"{name}: allow_negative_indices must be one boolean, or one for each of {ndim} dims, not {wraps}"
        )
    for dim, (start, wraps_start) in enumerate(zip(starts, wraps, strict=True)):
        if isinstance(start, int) and start < 0 and not wraps_start:
            raise ValueError(f"{name}: start {start} of dim {dim} is negative, but allow_negative_indices is False")
    return starts, wraps


def _start_along(dim: int, start: ArrayLike, ndim: int) -> list[Any]:
    return [start if d == dim else 0 for d in range(ndim)]


def _wrap_negative(x: Array, starts: Sequence[Any], wraps: Sequence[bool]) -> list[Any]:
    return [
        wrap_negative_index(start, size) if wraps_start else start
        for start, size, wraps_start in zip(promote_indices(starts), x.type.shape, wraps, strict=True)
    ]


def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Gather windows of an array at index vectors.

    Args:
        operand: an array.
        start_indices: integers. The last dim holds index vectors.
        dimension_numbers: a `GatherDimensionNumbers`.
        slice_sizes: the size of the window along each dim of `operand`.
        unique_indices: a promise that no index vector repeats, which the device may exploit.
        indices_are_sorted: a promise that the index vectors are in ascending order, which the device may exploit.
        mode: the handling of windows that are out of bounds: "clip" (the default) moves them into bounds, "fill" or
            "drop" fills them with `fill_value`, "promise_in_bounds" promises that there are none. Negative indices are
            out of bounds.
        fill_value: the fill value. None means NaN for floats and complex numbers, the smallest value for signed
            integers, the largest for unsigned ones, and True for booleans.

    Returns:
        The windows, in the shape that `dimension_numbers` describes.

    Raises:
        TypeError: if the indices are not integers, or shapes and sizes do not agree with the dimension numbers.
        ValueError: if `mode` is unknown.

    Example:
        >>> numbers = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
        >>> lax.gather(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), numbers, (1,))
        Array([7, 5], dtype=int32)
    """
    numbers = dimension_numbers
    dims = _window_dims(
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
        fill = out_of_bounds_fill(fill_value, type_of(operand, "gather").dtype)
    return _gather(operand, start_indices, op=op, fill=fill)


def _window_dims(
    window: Sequence[int],
    collapsed: Sequence[int],
    batch: Sequence[int],
    index_batch: Sequence[int],
    mapped: Sequence[int],
) -> WindowDims:
    """Convert dimension numbers to the hashable fields of an op."""
    return tuple(window), tuple(collapsed), tuple(batch), tuple(index_batch), tuple(mapped)


@compiled_function
def _gather(x: ArrayLike, indices: ArrayLike, *, op: Gather, fill: Scalar | None) -> Any:
    return gather_with_fill(op, op.sizes, as_operand(x, "gather"), as_index(indices), fill)


_SCATTER = Family(
    {
        "operand": "the array to update. It is not modified.",
        "scatter_indices": "integers. The last dim holds index vectors.",
        "updates": "the updates, an array of the dtype of `operand`.",
        "dimension_numbers": "a `ScatterDimensionNumbers`.",
        "indices_are_sorted": "a promise that the index vectors are in ascending order, which the device may exploit.",
        "unique_indices": "a promise that no index vector repeats, which the device may exploit.",
        "mode": 'the handling of windows that are out of bounds: "drop" or "fill" (the default) ignores their\n'
        'updates, "clip" moves them into bounds, "promise_in_bounds" promises that there are none. Negative indices\n'
        "are out of bounds.",
    },
    returns="An updated copy of `operand`.",
    raises=[
        "TypeError: if the indices are not integers, the dtypes differ, or the shapes do not agree with the dimension\n"
        "numbers.",
        "ValueError: if `mode` is unknown.",
    ],
)


class ScatterFunction(Protocol):
    """The type of `scatter` and of the functions that combine updates with the elements of windows."""

    def __call__(
        self,
        operand: ArrayLike,
        scatter_indices: ArrayLike,
        updates: ArrayLike,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | GatherScatterMode | None = None,
    ) -> Array: ...


def _scatter_function(
    name: str,
    summary: str,
    output: str,
    *,
    combine: Reduction | None,
    prepare: Callable[[ArrayLike], ArrayLike] = lambda updates: updates,
) -> ScatterFunction:
    """Make a scatter that combines elements with updates by a reduction, or replaces them if `combine` is None.

    `output` is the result of the example in the docstring. `prepare` is applied to the updates.
    """

    def function(
        operand: ArrayLike,
        scatter_indices: ArrayLike,
        updates: ArrayLike,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | GatherScatterMode | None = None,
    ) -> Array:
        op = _scatter_op(combine, dimension_numbers, indices_are_sorted, unique_indices)
        return _scatter(operand, scatter_indices, prepare(updates), op=op, clips=_clips(mode))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{summary}

Example:
    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> lax.{name}(jnp.array([5, 6, 7]), jnp.array([[2], [0]]), jnp.array([2, 9]), numbers)
    {output}
"""
    return documented(_SCATTER)(function)


scatter = _scatter_function(
    "scatter",
    "Replace windows of an array at index vectors.\n\nIf windows overlap, it is unspecified which update is written.",
    "Array([9, 6, 2], dtype=int32)",
    combine=None,
)
scatter_add = _scatter_function(
    "scatter_add",
    "Add updates to windows of an array at index vectors.",
    "Array([14,  6,  9], dtype=int32)",
    combine=SUM,
)
scatter_sub = _scatter_function(
    "scatter_sub",
    "Subtract updates from windows of an array at index vectors.",
    "Array([-4,  6,  5], dtype=int32)",
    combine=SUM,
    prepare=negative,
)
scatter_mul = _scatter_function(
    "scatter_mul",
    "Multiply windows of an array by updates at index vectors.",
    "Array([45,  6, 14], dtype=int32)",
    combine=PROD,
)
scatter_min = _scatter_function(
    "scatter_min",
    "Take the minimum of windows of an array and updates at index vectors.",
    "Array([5, 6, 2], dtype=int32)",
    combine=MIN,
)
scatter_max = _scatter_function(
    "scatter_max",
    "Take the maximum of windows of an array and updates at index vectors.",
    "Array([9, 6, 7], dtype=int32)",
    combine=MAX,
)


def scatter_apply(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    func: Callable[[Any], Any],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Apply a function to the elements of windows of an array at index vectors.

    The function is applied to an element once for each window that contains it.

    Args:
        operand: the array to update. It is not modified.
        scatter_indices: integers. The last dim holds index vectors.
        func: a function of one element that returns a scalar of the same dtype.
        dimension_numbers: a `ScatterDimensionNumbers`.
        update_shape: the shape that updates would have, which determines the windows.
        indices_are_sorted: a promise that the index vectors are in ascending order, which the device may exploit.
        unique_indices: a promise that no index vector repeats, which the device may exploit.
        mode: the handling of windows that are out of bounds: "drop" or "fill" (the default) ignores them, "clip" moves
            them into bounds, "promise_in_bounds" promises that there are none.

    Returns:
        An updated copy of `operand`.

    Raises:
        TypeError: if `func` returns another dtype, the indices are not integers, or the shapes do not agree with the
            dimension numbers.
        ValueError: if `mode` is unknown.

    Example:
        >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        >>> lax.scatter_apply(jnp.array([1, 2, 3]), jnp.array([[0], [2]]), lambda x: -x, numbers, update_shape=(2,))
        Array([-1,  2, -3], dtype=int32)
    """
    x = as_operand(operand, "scatter_apply")
    type = x.type
    ones = full(tuple(map(operator.index, update_shape)), 1, np.int32)
    op = _scatter_op(SUM, dimension_numbers, indices_are_sorted, unique_indices)
    # The number of windows that contain each element: the number of times to apply `func` to it.
    counts = _scatter(full(type.shape, 0, np.int32), scatter_indices, ones, op=op, clips=_clips(mode))

    def apply(array: Array, mask: Array) -> Any:
        values = vmap(func)(array.reshape(-1)).reshape(type.shape)
        if values.type.dtype != type.dtype:
            raise TypeError(
                f"scatter_apply: func must return {type.dtype}, the dtype of its argument, not {values.type.dtype}"
            )
        return where(mask, values, array)

    if unique_indices:
        return apply(x, counts > 0)
    iterations = amax(counts, allow_empty=True)
    return fori_loop(0, iterations, lambda i, array: apply(array, i < counts), x)


def _scatter_op(
    combine: Reduction | None, numbers: ScatterDimensionNumbers, is_sorted: bool, is_unique: bool
) -> Scatter:
    dims = _window_dims(
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
        numbers.scatter_dims_to_operand_dims,
    )
    return Scatter(*dims, combine=combine, sorted=is_sorted, unique=is_unique)


def _clips(mode: str | GatherScatterMode | None) -> bool:
    return index_mode("scatter", mode, "drop") == "clip"


@compiled_function
def _scatter(x: ArrayLike, indices: ArrayLike, updates: ArrayLike, *, op: Scatter, clips: bool) -> Any:
    x, updates, indices = as_operand(x, "scatter"), as_operand(updates, "scatter"), as_index(indices)
    if clips:
        indices = clip_indices(op, x.type.shape, op.sizes_of(x.type, updates.type), indices)
    return op(x, indices, updates)


def index_take(src: ArrayLike, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """Take the elements at given indices along several axes.

    Args:
        src: an array.
        idxs: an array of indices for each of `axes`. The arrays broadcast together. Indices that are out of bounds wrap
            around.
        axes: the axes to index.

    Returns:
        An array with the shape of the indices, followed by the other dims of `src`.

    Raises:
        ValueError: if an axis does not exist, or `idxs` and `axes` differ in length.

    Example:
        >>> lax.index_take(jnp.array([[1, 2], [3, 4]]), (jnp.array([1, 0]),), (0,))
        Array([[3, 4],
               [1, 2]], dtype=int32)
    """
    x = as_operand(src, "index_take")
    dims = [canonical_axis("index_take", axis, x.type.ndim) for axis in axes]
    order = [*dims, *(dim for dim in range(x.type.ndim) if dim not in dims)]
    wrapped = tuple(remainder(index, x.type.shape[dim]) for index, dim in zip(idxs, dims, strict=True))
    indexer, arrays = parse_index(wrapped, x.type.with_shape(tuple(x.type.shape[dim] for dim in order)))
    return gather_by_index(permute(x, tuple(order)), *arrays, indexer=indexer)
