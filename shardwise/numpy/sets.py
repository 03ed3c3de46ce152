"""Set functions of arrays: unique elements, union, intersection, difference and membership.

All are based on a sort followed by a mask of the first element of each run of equal elements. The size of the result
depends on the values. Outside `jit` it is computed; inside, `size` is required. A result that is longer than `size` is
truncated, a shorter one is padded with `fill_value`. A dim that is sorted must be unsharded, so a sharded operand is
resharded first.
"""

from typing import Any, Literal, NamedTuple, overload

import numpy as np

from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_to_shape,
    compiled_function,
    compiled_list_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, promote_dtypes
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ops.elementwise.arithmetic import Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, Not
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.gather import take_op
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.reduce.reductions import ReduceOr
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, move_dim
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.reduction import SUM
from shardwise.errors import ConcretizationTypeError
from shardwise.numpy.elementwise import isnan
from shardwise.numpy.families import ARRAYS, TRACED_WITHOUT_SIZE
from shardwise.numpy.indexing import nonzero, static_size
from shardwise.numpy.ordering import gather_1d, searchsorted
from shardwise.typing import ArrayLike

_FILL_VALUE = "the padding if there are fewer than `size` elements. By default, the smallest element."
_UNIQUE = ARRAYS.extended(
    {
        "ar": ARRAYS.args["a"],
        "size": Parameter("the number of unique elements to return. Required under `jit`.", TRACED_WITHOUT_SIZE),
        "fill_value": _FILL_VALUE,
    },
    raises=["ValueError: if `x` is empty and `size` needs padding without `fill_value`."],
)
_SETS = Family(
    {
        "ar1, ar2": "the arrays. They are flattened.",
        "assume_unique": "whether the elements of each array are known to be unique.",
        "size": Parameter("the number of elements to return. Required under `jit`.", TRACED_WITHOUT_SIZE),
        "fill_value": _FILL_VALUE,
    },
    raises=["TypeError: if an argument is not an array or a number."],
)

_INT = np.dtype(np.int32)


class UniqueAllResult(NamedTuple):
    """The result of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    """The result of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    """The result of `unique_inverse`."""

    values: Array
    inverse_indices: Array


@overload
def unique(
    ar: ArrayLike,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Array: ...


@overload
def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Any: ...


@documented(_UNIQUE)
def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Any:
    """Return the sorted unique elements of an array, or the unique slices along an axis.

    Args:
        return_index: whether to return the index of the first occurrence of each unique element too.
        return_inverse: whether to return the indices into the unique elements that reconstruct `ar` too.
        return_counts: whether to return the number of occurrences of each unique element too.
        axis: the axis whose slices are compared. With None, the elements of the flattened array are compared.
        equal_nan: whether all NaNs count as one element. If False, each NaN is unique.
        sorted: ignored. The result is always sorted.

    Returns:
        The unique elements in ascending order, or a tuple of them and the requested arrays, in the order of the flags.

    Raises:
        ValueError: if `axis` does not exist, or `ar` is empty and `size` needs padding without `fill_value`.

    Example:
        >>> jnp.unique(jnp.array([3, 1, 1]), return_counts=True)
        (Array([1, 3], dtype=int32), Array([2, 1], dtype=int32))
    """
    results = _unique("unique", ar, axis, equal_nan, size, fill_value)
    flags = (True, return_index, return_inverse, return_counts)
    requested = tuple(result for result, flag in zip(results, flags, strict=True) if flag)
    return requested if len(requested) > 1 else requested[0]


@documented(_UNIQUE)
def unique_all(x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None) -> UniqueAllResult:
    """Return the unique elements of an array with their first indices, inverse indices and counts.

    Each NaN counts as a unique element.

    Returns:
        A named tuple with `values` (ascending), `indices`, `inverse_indices` (with the shape of `x`) and `counts`.

    Example:
        >>> jnp.unique_all(jnp.array([3, 1, 1])).counts
        Array([2, 1], dtype=int32)
    """
    return UniqueAllResult(*_unique("unique_all", x, None, False, size, fill_value))


@documented(_UNIQUE, returns="A named tuple with `values` (ascending) and `counts`.")
def unique_counts(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueCountsResult:
    """Return the unique elements of an array and the number of occurrences of each.

    Each NaN counts as a unique element.

    Example:
        >>> jnp.unique_counts(jnp.array([3, 1, 1])).counts
        Array([2, 1], dtype=int32)
    """
    values, _, _, counts = _unique("unique_counts", x, None, False, size, fill_value)
    return UniqueCountsResult(values, counts)


@documented(_UNIQUE, returns="A named tuple with `values` (ascending) and `inverse_indices` (with the shape of `x`).")
def unique_inverse(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueInverseResult:
    """Return the unique elements of an array and the indices into them that reconstruct it.

    Each NaN counts as a unique element.

    Example:
        >>> jnp.unique_inverse(jnp.array([3, 1, 1])).inverse_indices
        Array([1, 0, 0], dtype=int32)
    """
    values, _, inverse, _ = _unique("unique_inverse", x, None, False, size, fill_value)
    return UniqueInverseResult(values, inverse)


@documented(_UNIQUE, returns="The unique elements in ascending order.")
def unique_values(x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None) -> Array:
    """Return the sorted unique elements of an array.

    Each NaN counts as a unique element.

    Example:
        >>> jnp.unique_values(jnp.array([3, 1, 1]))
        Array([1, 3], dtype=int32)
    """
    return _unique("unique_values", x, None, False, size, fill_value)[0]


def _unique(
    name: str, ar: ArrayLike, axis: int | None, equal_nan: bool, size: int | None, fill_value: ArrayLike | None
) -> list[Any]:
    """Return the unique values, their first indices, the inverse indices and the counts."""
    ar_type = type_of(ar, name)
    dim = None if axis is None else canonical_axis(name, axis, ar_type.ndim)
    rows = ar_type.size if dim is None else ar_type.shape[dim]
    if not rows:
        return _unique_of_empty(name, ar, dim, size, fill_value)
    ordered, is_first, order = _sort_and_mark_first(ar, dim=dim, equal_nan=bool(equal_nan))
    count = _result_size(name, is_first, size)
    values, indices, inverse, counts = _select_first(ordered, is_first, order, *_optional(fill_value), size=count)
    if dim is None:
        return [values, indices, _reshape(inverse, shape=ar_type.shape), counts]
    return [_restore_dim(values, dim=dim, shape=ar_type.shape), indices, inverse, counts]


def _unique_of_empty(
    name: str, ar: ArrayLike, dim: int | None, size: int | None, fill_value: ArrayLike | None
) -> list[Any]:
    count = 0 if size is None else static_size(name, size)
    ar_type = type_of(ar)
    if count and fill_value is None:
        raise ValueError(f"{name}: {ar_type} is empty, so a result of size {count} needs padding: pass fill_value")
    shape = (count,) if dim is None else (*ar_type.shape[:dim], count, *ar_type.shape[dim + 1 :])
    values = _full_like(ar, 0 if fill_value is None else fill_value, shape=shape)
    empty = full((0,), 0, default_dtype("int*"))
    return [values, empty, empty if dim is not None else full(ar_type.shape, 0, default_dtype("int*")), empty]


@compiled_function
def _full_like(template: ArrayLike, value: ArrayLike, *, shape: tuple[int, ...]) -> Any:
    return broadcast_to_shape(astype_weak(as_operand(value), type_of(template).dtype, False), shape)


def _result_size(name: str, mask: Array, size: int | None) -> int:
    """Return `size`, or the number of true elements of the mask if it is None."""
    if size is not None:
        return static_size(name, size)
    try:
        return int(_count_true(mask))
    except ConcretizationTypeError:
        raise ConcretizationTypeError(
            f"{name}: the elements are traced, so the shape of the result is unknown. "
            f"Pass the maximum number of elements: `{name}(..., size=...)`"
        ) from None


@compiled_function
def _count_true(mask: ArrayLike) -> Any:
    total = Cumulative(0, SUM)(Convert(_INT)(as_operand(mask)))
    return (
        Reshape(())(slice_along(total, 0, total.type.size - 1, total.type.size))
        if total.type.size
        else full((), 0, _INT)
    )


@compiled_list_function
def _sort_and_mark_first(ar: ArrayLike, *, dim: int | None, equal_nan: bool) -> list[Any]:
    """Return the sorted rows, the mask of rows that differ from the one before, and the sorting permutation."""
    x = as_operand(ar)
    if dim is None:
        keys = [Reshape((x.type.size,))(x)]
    else:
        leading = move_dim(x, dim, 0)
        rows = leading.type.shape[0]
        table = Reshape((rows, x.type.size // rows))(leading)
        keys = [Reshape((rows,))(slice_along(table, 1, column, column + 1)) for column in range(table.type.shape[1])]
        if not keys:
            index = Iota((rows,), 0, _INT)()
            return [leading, Compare("EQ")(index, full_like(index, 0)), index]
    size = keys[0].type.size
    *ordered, order = Sort(0, len(keys))(*keys, Iota((size,), 0, _INT)())
    differs = None
    for key in ordered:
        key_differs = _differs(slice_along(key, 0, 1, size), slice_along(key, 0, 0, size - 1), equal_nan)
        differs = key_differs if differs is None else ~(~differs & ~key_differs)
    is_first = Concatenate(0)(full((1,), True, np.bool_), differs)
    if dim is None:
        return [ordered[0], is_first, order]
    table = Concatenate(1)(*(Reshape((size, 1))(key) for key in ordered)) if len(ordered) > 1 else ordered[0]
    return [Reshape(leading.type.shape)(table), is_first, order]


def _differs(x: Array, y: Array, equal_nan: bool) -> Any:
    differs = Compare("NE")(x, y)
    if equal_nan and is_inexact(x.type.dtype):
        return differs & ~(isnan(x) & isnan(y))
    return differs


@compiled_list_function
def _select_first(ordered: Array, is_first: Array, order: Array, *fill: ArrayLike, size: int) -> list[Any]:
    """Return the first row of each run, its index before the sort, the run of each row, and the length of each run."""
    rows = ordered.type.shape[0]
    (starts,) = nonzero(is_first, size=size + 1, fill_value=rows)
    start, end = slice_along(starts, 0, 0, size), slice_along(starts, 0, 1, size + 1)
    exists = Compare("LT")(start, full_like(start, rows))
    indices = Select()(exists, start, full_like(start, 0))
    values = _gather_rows(ordered, indices)
    if fill:
        mask = Broadcast(values.type.shape, (0,))(exists)
        padding = broadcast_to_shape(
            astype_weak(as_operand(fill[0]), values.type.dtype, values.type.weak), values.type.shape
        )
        values = Select()(mask, values, padding)
    index_dtype = default_dtype("int*")
    run = Sub()(Cumulative(0, SUM)(Convert(_INT)(is_first)), full((rows,), 1, _INT))
    scatter = Scatter((), (0,), (), (), (0,), combine=None, unique=True)
    inverse = scatter(full((rows,), 0, _INT), Reshape((rows, 1))(order), run)
    integers = [_gather_rows(order, indices), inverse, Sub()(end, start)]
    return [values, *(astype_weak(x, index_dtype, False) for x in integers)]


def _gather_rows(x: Array, indices: Array) -> Any:
    return take_op(x.type.shape, 0)(x, Reshape((indices.type.size, 1))(astype_weak(indices, _INT, False)))


@compiled_function
def _reshape(x: Array, *, shape: tuple[int, ...]) -> Any:
    return Reshape(shape)(x)


@compiled_function
def _restore_dim(x: Array, *, dim: int, shape: tuple[int, ...]) -> Any:
    """Reshape rows to slices of an array of `shape`, and move the leading dim back to `dim`."""
    sizes = (x.type.shape[0], *shape[:dim], *shape[dim + 1 :])
    return move_dim(Reshape(sizes)(x), 0, dim)


@documented(_SETS, returns="The union in ascending order.")
def union1d(ar1: ArrayLike, ar2: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None) -> Array:
    """Return the sorted unique elements of two arrays together.

    Raises:
        ValueError: if both arrays are empty and `size` needs padding without `fill_value`.

    Example:
        >>> jnp.union1d(jnp.array([3, 1]), jnp.array([1, 7]))
        Array([1, 3, 7], dtype=int32)
    """
    return _unique("union1d", _concatenate_flat(ar1, ar2), None, True, size, fill_value)[0]


@compiled_function
def _concatenate_flat(ar1: ArrayLike, ar2: ArrayLike) -> Any:
    return Concatenate(0)(*_promote_flat("union1d", ar1, ar2))


def _promote_flat(name: str, ar1: ArrayLike, ar2: ArrayLike) -> list[Any]:
    """Flatten two arrays and promote them to a common dtype."""
    dtype, weak = promote_dtypes(name, (type_of(ar1, name), type_of(ar2, name)))
    return [Reshape((type_of(x).size,))(astype_weak(as_operand(x), dtype, weak)) for x in (ar1, ar2)]


@documented(_SETS, returns="A boolean array with the shape of `element`.")
def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Array:
    """Test whether each element of an array is contained in another array.

    NaN is contained in no array.

    Args:
        element: the array whose elements are tested.
        test_elements: the array to search in.
        assume_unique: ignored.
        invert: whether to test for absence instead.
        method: "compare_all" compares all pairs; "binary_search" and "sort" both sort `test_elements` and search in
            them. "auto" compares all pairs if they are few.

    Raises:
        ValueError: if `method` is unknown.

    Example:
        >>> jnp.isin(jnp.array([1, 2, 3]), jnp.array([3, 1]))
        Array([ True, False,  True], dtype=bool)
    """
    if method not in _METHODS:
        raise ValueError(f"isin: method {method!r} is none of {', '.join(_METHODS)}")
    return _isin(element, test_elements, invert=bool(invert), method=method)


_METHODS = ("auto", "compare_all", "binary_search", "sort")
_MAX_COMPARED_PAIRS = 2**16


@compiled_function
def _isin(element: ArrayLike, test_elements: ArrayLike, *, invert: bool, method: str) -> Any:
    dtype, _ = promote_dtypes("isin", (type_of(element, "isin"), type_of(test_elements, "isin")))
    x, tests = (astype_weak(as_operand(z), dtype, False) for z in (element, test_elements))
    flat_tests = Reshape((tests.type.size,))(tests)
    count = flat_tests.type.size
    if not count:
        contained = full(x.type.shape, False, np.bool_)
    elif method == "compare_all" or (method == "auto" and count * x.type.size <= _MAX_COMPARED_PAIRS):
        shape = (*x.type.shape, count)
        pairs = Broadcast(shape, tuple(range(x.type.ndim)))(x), Broadcast(shape, (x.type.ndim,))(flat_tests)
        contained = ReduceOr((x.type.ndim,))(Compare("EQ")(*pairs))
    else:
        (ordered,) = Sort(0)(flat_tests)
        contained = _equals_at(ordered, x, searchsorted(ordered, x))
    return Not()(contained) if invert else contained


def _equals_at(ordered: Array, x: Array, index: Array) -> Any:
    """Compare each element of `x` with `ordered[index]`, where an index past the end is clamped."""
    clamped = Clamp()(full_like(index, 0), index, full_like(index, ordered.type.size - 1))
    return Compare("EQ")(gather_1d(ordered, clamped), x)


@overload
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: Literal[False] = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array: ...


@overload
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any: ...


@documented(_SETS)
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any:
    """Return the sorted unique elements that two arrays have in common.

    Args:
        return_indices: whether to return the indices of the first occurrences in both arrays too. They are padded with
            the size of the array.
        fill_value: the padding if there are fewer than `size` elements. By default, the smallest common element, or 0
            if there is none.

    Returns:
        The intersection in ascending order, or a tuple of it and the indices into `ar1` and `ar2`.

    Example:
        >>> jnp.intersect1d(jnp.array([3, 1, 1]), jnp.array([1, 7, 3]))
        Array([1, 3], dtype=int32)
    """
    types = type_of(ar1, "intersect1d"), type_of(ar2, "intersect1d")
    ordered, mask, order, other, other_order = _intersect(ar1, ar2, assume_unique=bool(assume_unique))
    count = _result_size("intersect1d", mask, size)
    values = _select_masked(ordered, mask, *_optional(fill_value), size=count, pad_with_first=True)
    if not return_indices:
        return values
    left = _select_masked(order, mask, types[0].size, size=count, pad_with_first=False)
    other_indices = _first_indices(ordered, other, other_order)
    right = _select_masked(other_indices, mask, types[1].size, size=count, pad_with_first=False)
    return values, left, right


def _optional(fill_value: ArrayLike | None) -> tuple[Any, ...]:
    return () if fill_value is None else (fill_value,)


@compiled_list_function
def _intersect(ar1: ArrayLike, ar2: ArrayLike, *, assume_unique: bool) -> list[Any]:
    """Return `ar1` sorted, the mask of common elements and the permutation; then `ar2` sorted and its permutation."""
    x, y = _promote_flat("intersect1d", ar1, ar2)
    ordered, is_first, order = _sort_flat(x, assume_unique)
    other, _, other_order = _sort_flat(y, True)
    mask = And()(is_first, _isin(ordered, other, invert=False, method="auto"))
    return [ordered, mask, order, other, other_order]


def _sort_flat(x: Array, assume_unique: bool) -> list[Any]:
    """Return the sorted elements, the mask of the first of each run, and the sorting permutation."""
    if not x.type.size:
        return [x, full((0,), False, np.bool_), full((0,), 0, _INT)]
    ordered, is_first, order = _sort_and_mark_first(x, dim=None, equal_nan=True)
    return [ordered, full(is_first.type.shape, True, np.bool_) if assume_unique else is_first, order]


@compiled_function
def _first_indices(x: Array, ordered: Array, order: Array) -> Any:
    """Return the index in the original array of the first occurrence of each element of `x`.

    `ordered` is that array sorted, and `order` the sorting permutation.
    """
    if not ordered.type.size:
        return full(x.type.shape, 0, _INT)
    index = searchsorted(ordered, x)
    return _gather_rows(order, Clamp()(full_like(index, 0), index, full_like(index, order.type.size - 1)))


@compiled_function
def _select_masked(row: Array, mask: Array, *fill: ArrayLike, size: int, pad_with_first: bool) -> Any:
    """Return the masked elements of a 1-d array, padded to `size` with `fill`, or the first of them, or 0."""
    dtype = row.type.dtype if row.type.dtype != _INT or pad_with_first else default_dtype("int*")
    length = row.type.size
    if not length or not size:
        padding = as_operand(fill[0]) if fill else full((), 0, dtype)
        return broadcast_to_shape(astype_weak(padding, dtype, False), (size,))
    (indices,) = nonzero(mask, size=size, fill_value=length)
    exists = Compare("LT")(indices, full_like(indices, length))
    selected = astype_weak(_gather_rows(row, Select()(exists, indices, full_like(indices, 0))), dtype, False)
    if fill:
        padding = broadcast_to_shape(astype_weak(as_operand(fill[0]), dtype, False), (size,))
    elif pad_with_first:
        first = Select()(slice_along(exists, 0, 0, 1), slice_along(selected, 0, 0, 1), full((1,), 0, dtype))
        padding = broadcast_to_shape(Reshape(())(first), (size,))
    else:
        padding = full((size,), 0, dtype)
    return Select()(exists, selected, padding)


@documented(_SETS, returns="The remaining elements in ascending order, or in the order of `ar1` with `assume_unique`.")
def setdiff1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the unique elements of one array that another does not contain.

    Args:
        ar1: the array of candidates. It is flattened.
        ar2: the array of elements to remove.
        assume_unique: whether the elements of `ar1` are known to be unique. They are then not sorted.
        fill_value: the padding if there are fewer than `size` elements. By default 0.

    Example:
        >>> jnp.setdiff1d(jnp.array([5, 3, 1, 1]), jnp.array([1, 7]))
        Array([3, 5], dtype=int32)
    """
    row, mask = _setdiff1d(ar1, ar2, assume_unique=bool(assume_unique))
    fill = _optional(fill_value) or (0,)
    return _select_masked(row, mask, *fill, size=_result_size("setdiff1d", mask, size), pad_with_first=True)


@compiled_list_function
def _setdiff1d(ar1: ArrayLike, ar2: ArrayLike, *, assume_unique: bool) -> list[Any]:
    """Return the candidates and the mask of those to keep."""
    x = as_operand(ar1, "setdiff1d")
    row = Reshape((x.type.size,))(x)
    if assume_unique:
        return [row, _isin(row, ar2, invert=True, method="auto")]
    ordered, is_first, _ = _sort_flat(row, False)
    return [ordered, And()(is_first, _isin(ordered, ar2, invert=True, method="auto"))]


@documented(_SETS, returns="The symmetric difference in ascending order.")
def setxor1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the sorted unique elements that are in exactly one of two arrays.

    Args:
        fill_value: the padding if there are fewer than `size` elements. By default, the smallest element of the result,
            or 0 if there is none.

    Example:
        >>> jnp.setxor1d(jnp.array([3, 1, 1]), jnp.array([1, 7]))
        Array([3, 7], dtype=int32)
    """
    row, mask = _setxor1d(ar1, ar2, assume_unique=bool(assume_unique))
    size = _result_size("setxor1d", mask, size)
    return _select_masked(row, mask, *_optional(fill_value), size=size, pad_with_first=True)


@compiled_list_function
def _setxor1d(ar1: ArrayLike, ar2: ArrayLike, *, assume_unique: bool) -> list[Any]:
    """Return all elements sorted and the mask of those that are in one array only."""
    x, y = _promote_flat("setxor1d", ar1, ar2)
    rows, masks = [], []
    for candidates, others in ((x, y), (y, x)):
        ordered, is_first, _ = _sort_flat(candidates, assume_unique)
        rows.append(ordered)
        masks.append(And()(is_first, _isin(ordered, others, invert=True, method="auto")))
    merged, mask = Sort(0)(Concatenate(0)(*rows), Concatenate(0)(*masks))
    return [merged, mask]
