"""Arrays as sets: their different elements, and what two have in common.

Elements are sorted, and of equal ones the first is taken. How many there are depends on the values: outside of
compiled functions it is found, inside give `size`. Those that are too many are left out; where there are too few,
`fill_value` follows, or unless told what each function says. On a mesh a sort needs whole rows.
"""

import operator
from typing import Any, NamedTuple

import numpy as np

from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops.aggregate import ReduceOr
from shardwise.compiler.ops.bitwise import And, Not
from shardwise.compiler.ops.cumulative import Cumulative
from shardwise.compiler.ops.elementwise import Compare, Convert, Select, Sub, like
from shardwise.compiler.ops.extremum import Clamp
from shardwise.compiler.ops.gather import taking
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import (
    as_operand,
    astype_weak,
    composed,
    composed_list,
    stretch,
    type_of,
)
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.scatter import Scatter
from shardwise.compiler.ops.shape import Broadcast, Iota, Reshape, full, move_dim
from shardwise.compiler.ops.slicing import Concatenate, along
from shardwise.compiler.ops.sort import Sort
from shardwise.errors import ConcretizationTypeError
from shardwise.numpy.elementwise import isnan
from shardwise.numpy.indexing import nonzero
from shardwise.numpy.ordering import row_at, searchsorted

_INT = np.dtype(np.int32)


class UniqueAllResult(NamedTuple):
    """What `unique_all` gives."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` gives."""

    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` gives."""

    values: Any
    inverse_indices: Any


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The different elements in order, each once; or with `axis` the different slices along it.

    Also, where told: where each occurs first, which of them each element of `ar` is, and how often it occurs. NaN is
    one element, or without `equal_nan` each a different one. With `size` (see this module), the first follows where
    there are too few.

    >>> jnp.unique(jnp.array([3, 1, 1]), return_counts=True)
    (Array([1, 3], dtype=int32), Array([2, 1], dtype=int32))
    """
    found = _unique("unique", ar, axis, equal_nan, size, fill_value)
    wanted = (True, return_index, return_inverse, return_counts)
    chosen = tuple(part for part, is_wanted in zip(found, wanted, strict=True) if is_wanted)
    return chosen if len(chosen) > 1 else chosen[0]


def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAllResult:
    """The different elements, where each occurs first, which of them each is, and how often; NaN are all different.

    >>> jnp.unique_all(jnp.array([3, 1, 1])).counts
    Array([2, 1], dtype=int32)
    """
    return UniqueAllResult(*_unique("unique_all", x, None, False, size, fill_value))


def unique_counts(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCountsResult:
    """The different elements, and how often each occurs; NaN are all different.

    >>> jnp.unique_counts(jnp.array([3, 1, 1])).counts
    Array([2, 1], dtype=int32)
    """
    values, _, _, counts = _unique("unique_counts", x, None, False, size, fill_value)
    return UniqueCountsResult(values, counts)


def unique_inverse(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverseResult:
    """The different elements, and which of them each is; NaN are all different.

    >>> jnp.unique_inverse(jnp.array([3, 1, 1])).inverse_indices
    Array([1, 0, 0], dtype=int32)
    """
    values, _, inverse, _ = _unique("unique_inverse", x, None, False, size, fill_value)
    return UniqueInverseResult(values, inverse)


def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The different elements in order; NaN are all different.

    >>> jnp.unique_values(jnp.array([3, 1, 1]))
    Array([1, 3], dtype=int32)
    """
    return _unique("unique_values", x, None, False, size, fill_value)[0]


def _unique(name: str, ar: Any, axis: int | None, equal_nan: bool, size: int | None, fill_value: Any) -> list[Any]:
    """Values, first places, inverse and counts."""
    kind = type_of(ar, name)
    dim = None if axis is None else dim_of(name, axis, kind.ndim)
    rows = kind.size if dim is None else kind.shape[dim]
    if not rows:
        return _of_none(name, ar, dim, size, fill_value)
    ordered, is_first, order = _runs(ar, dim=dim, equal_nan=bool(equal_nan))
    count = _count(name, is_first, size)
    fills = () if fill_value is None else (fill_value,)
    values, places, inverse, counts = _taken_first(ordered, is_first, order, *fills, size=count)
    if dim is None:
        return [values, places, _shaped(inverse, shape=kind.shape), counts]
    return [_put_back(values, dim=dim, shape=kind.shape), places, inverse, counts]


def _of_none(name: str, ar: Any, dim: int | None, size: int | None, fill_value: Any) -> list[Any]:
    count = 0 if size is None else operator.index(size)
    if count and fill_value is None:
        raise ValueError(f"{name}: {type_of(ar)} has no element that could follow {count} times: give fill_value")
    kind = type_of(ar)
    shape = (count,) if dim is None else (*kind.shape[:dim], count, *kind.shape[dim + 1 :])
    values = _filled(ar, 0 if fill_value is None else fill_value, shape=shape)
    none = full((0,), 0, default_dtype("int*"))
    return [values, none, none, none]


@composed
def _filled(like_this: Any, value: Any, *, shape: tuple[int, ...]) -> Any:
    kind = type_of(like_this)
    return stretch(astype_weak(as_operand(value), kind.dtype, False), shape)


def _count(name: str, is_first: Any, size: int | None) -> int:
    """How many are to be taken: those that there are, or `size`."""
    if size is not None:
        return operator.index(size)
    try:
        return int(_number_of(is_first))
    except ConcretizationTypeError:
        raise ConcretizationTypeError(
            f"{name}: the elements are traced, so nobody knows how many there are, and the shape of the result. "
            f"Say how many there are at most: `{name}(..., size=...)`"
        ) from None


@composed
def _number_of(mask: Any) -> Any:
    total = Cumulative(0, "sum")(Convert(_INT)(as_operand(mask)))
    return Reshape(())(along(total, 0, total.type.size - 1, total.type.size)) if total.type.size else full((), 0, _INT)


@composed_list
def _runs(ar: Any, *, dim: int | None, equal_nan: bool) -> list[Any]:
    """Rows in order, whether each differs from the one before it, and where each came from."""
    x = as_operand(ar)
    if dim is None:
        keys = [Reshape((x.type.size,))(x)]
    else:
        first = move_dim(x, dim, 0)
        rows = first.type.shape[0]
        table = Reshape((rows, x.type.size // rows))(first)
        keys = [Reshape((rows,))(along(table, 1, place, place + 1)) for place in range(table.type.shape[1])]
        if not keys:
            index = Iota((rows,), 0, _INT)()
            return [first, Compare("EQ")(index, like(index, 0)), index]
    size = keys[0].type.size
    *ordered, order = Sort(0, len(keys))(*keys, Iota((size,), 0, _INT)())
    differs = None
    for key in ordered:
        one = _differs(along(key, 0, 1, size), along(key, 0, 0, size - 1), equal_nan)
        differs = one if differs is None else Not()(And()(Not()(differs), Not()(one)))
    is_first = Concatenate(0)(full((1,), True, np.bool_), differs)
    if dim is None:
        return [ordered[0], is_first, order]
    table = Concatenate(1)(*(Reshape((size, 1))(key) for key in ordered)) if len(ordered) > 1 else ordered[0]
    return [Reshape(first.type.shape)(table), is_first, order]


def _differs(x: Any, y: Any, equal_nan: bool) -> Any:
    found = Compare("NE")(x, y)
    if equal_nan and is_inexact(x.type.dtype):
        return And()(found, Not()(And()(isnan(x), isnan(y))))
    return found


@composed_list
def _taken_first(ordered: Any, is_first: Any, order: Any, *fill: Any, size: int) -> list[Any]:
    """The rows that are first, where they came from, which of them each is, and how many follow each."""
    rows = ordered.type.shape[0]
    (starts,) = nonzero(is_first, size=size + 1, fill_value=rows)
    here, after = along(starts, 0, 0, size), along(starts, 0, 1, size + 1)
    is_there = Compare("LT")(here, like(here, rows))
    places = Select()(is_there, here, like(here, 0))
    values = _rows_at(ordered, places)
    if fill:
        there = Broadcast(values.type.shape, (0,))(is_there)
        other = stretch(astype_weak(as_operand(fill[0]), values.type.dtype, values.type.weak), values.type.shape)
        values = Select()(there, values, other)
    index = default_dtype("int*")
    number = Sub()(Cumulative(0, "sum")(Convert(_INT)(is_first)), full((rows,), 1, _INT))
    put = Scatter((), (0,), (), (), (0,), how="set", unique=True)
    inverse = put(full((rows,), 0, _INT), Reshape((rows, 1))(order), number)
    found = [_rows_at(order, places), inverse, Sub()(after, here)]
    return [values, *(astype_weak(part, index, False) for part in found)]


def _rows_at(x: Any, places: Any) -> Any:
    return taking(x.type.shape, 0)(x, Reshape((places.type.size, 1))(astype_weak(places, _INT, False)))


@composed
def _shaped(x: Any, *, shape: tuple[int, ...]) -> Any:
    return Reshape(shape)(x)


@composed
def _put_back(x: Any, *, dim: int, shape: tuple[int, ...]) -> Any:
    sizes = (x.type.shape[0], *shape[:dim], *shape[dim + 1 :])
    return move_dim(Reshape(sizes)(x), 0, dim)


def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The different elements of two arrays, in order. With `size`, the first follows where there are too few.

    >>> jnp.union1d(jnp.array([3, 1]), jnp.array([1, 7]))
    Array([1, 3, 7], dtype=int32)
    """
    return _unique("union1d", _both(ar1, ar2), None, True, size, fill_value)[0]


@composed
def _both(ar1: Any, ar2: Any) -> Any:
    return Concatenate(0)(*_two_rows("union1d", ar1, ar2))


def _two_rows(name: str, ar1: Any, ar2: Any) -> list[Any]:
    dtype, weak = meet(name, (type_of(ar1, name), type_of(ar2, name)))
    return [Reshape((type_of(x).size,))(astype_weak(as_operand(x), dtype, weak)) for x in (ar1, ar2)]


def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, method: str = "auto"
) -> Any:
    """Whether each element is one of `test_elements`; with `invert`, whether it is none. NaN is none.

    `method`: "compare_all" compares all pairs, "binary_search" and "sort" search among those that are sorted first.

    >>> jnp.isin(jnp.array([1, 2, 3]), jnp.array([3, 1]))
    Array([ True, False,  True], dtype=bool)
    """
    if method not in _METHODS:
        raise ValueError(f"isin: method {method!r} is none of {', '.join(_METHODS)}")
    return _is_in(element, test_elements, invert=bool(invert), method=method)


_METHODS = ("auto", "compare_all", "binary_search", "sort")
_ALL_PAIRS = 2**16


@composed
def _is_in(element: Any, test_elements: Any, *, invert: bool, method: str) -> Any:
    dtype, weak = meet("isin", (type_of(element, "isin"), type_of(test_elements, "isin")))
    x, tests = (astype_weak(as_operand(z), dtype, weak) for z in (element, test_elements))
    row = Reshape((tests.type.size,))(tests)
    if not row.type.size:
        found = full(x.type.shape, False, np.bool_)
    elif method == "compare_all" or (method == "auto" and row.type.size * x.type.size <= _ALL_PAIRS):
        shape = (*x.type.shape, row.type.size)
        pairs = Broadcast(shape, tuple(range(x.type.ndim)))(x), Broadcast(shape, (x.type.ndim,))(row)
        found = ReduceOr((x.type.ndim,))(Compare("EQ")(*pairs))
    else:
        (ordered,) = Sort(0)(row)
        found = _is_at(ordered, x, searchsorted(ordered, x))
    return Not()(found) if invert else found


def _is_at(ordered: Any, x: Any, place: Any) -> Any:
    """Whether elements are those of a row at places; one past its end is none."""
    inside = Clamp()(like(place, 0), place, like(place, ordered.type.size - 1))
    return Compare("EQ")(row_at(ordered, inside), x)


def intersect1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The elements that both arrays have, in order; where told, also where each occurs first in both.

    With `size`, the first follows where there are too few (0 where there is none), and for places the sizes of arrays.

    >>> jnp.intersect1d(jnp.array([3, 1, 1]), jnp.array([1, 7, 3]))
    Array([1, 3], dtype=int32)
    """
    kinds = type_of(ar1, "intersect1d"), type_of(ar2, "intersect1d")
    ordered, mask, order, other, other_order = _common(ar1, ar2, assume_unique=bool(assume_unique))
    count = _count("intersect1d", mask, size)
    values = _picked(ordered, mask, *_given(fill_value), size=count, first=True)
    if not return_indices:
        return values
    left = _picked(order, mask, kinds[0].size, size=count, first=False)
    right = _picked(_found_in(ordered, other, other_order), mask, kinds[1].size, size=count, first=False)
    return values, left, right


def _given(fill_value: Any) -> tuple[Any, ...]:
    return () if fill_value is None else (fill_value,)


@composed_list
def _common(ar1: Any, ar2: Any, *, assume_unique: bool) -> list[Any]:
    """The first array in order, which of its elements to take, where they came from; and the second in order."""
    x, y = _two_rows("intersect1d", ar1, ar2)
    ordered, is_first, order = _in_order(x, assume_unique)
    other, _, other_order = _in_order(y, True)
    mask = And()(is_first, _is_in(ordered, other, invert=False, method="auto"))
    return [ordered, mask, order, other, other_order]


def _in_order(x: Any, assume_unique: bool) -> list[Any]:
    if not x.type.size:
        return [x, full((0,), False, np.bool_), full((0,), 0, _INT)]
    ordered, is_first, order = _runs(x, dim=None, equal_nan=True)
    return [ordered, full(is_first.type.shape, True, np.bool_) if assume_unique else is_first, order]


@composed
def _found_in(x: Any, ordered: Any, order: Any) -> Any:
    """Where each element occurs first in an array that was put in order."""
    if not ordered.type.size:
        return full(x.type.shape, 0, _INT)
    place = searchsorted(ordered, x)
    return _rows_at(order, Clamp()(like(place, 0), place, like(place, order.type.size - 1)))


@composed
def _picked(row: Any, mask: Any, *fill: Any, size: int, first: bool) -> Any:
    """The elements of a row that a mask says; then `fill`, or with `first` the first of them, else 0."""
    dtype = row.type.dtype if row.type.dtype != _INT or first else default_dtype("int*")
    rows = row.type.size
    if not rows or not size:
        other = as_operand(fill[0]) if fill else full((), 0, dtype)
        return stretch(astype_weak(other, dtype, False), (size,))
    (here,) = nonzero(mask, size=size, fill_value=rows)
    is_there = Compare("LT")(here, like(here, rows))
    found = astype_weak(_rows_at(row, Select()(is_there, here, like(here, 0))), dtype, False)
    if fill:
        other = stretch(astype_weak(as_operand(fill[0]), dtype, False), (size,))
    elif first:
        lead = Select()(along(is_there, 0, 0, 1), along(found, 0, 0, 1), full((1,), 0, dtype))
        other = stretch(Reshape(())(lead), (size,))
    else:
        other = full((size,), 0, dtype)
    return Select()(is_there, found, other)


def setdiff1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """The different elements of `ar1` that `ar2` has not, in order; with `assume_unique`, as they come.

    With `size`, zeros follow where there are too few.

    >>> jnp.setdiff1d(jnp.array([5, 3, 1, 1]), jnp.array([1, 7]))
    Array([3, 5], dtype=int32)
    """
    row, mask = _left_over(ar1, ar2, assume_unique=bool(assume_unique))
    fill = _given(fill_value) or (0,)
    return _picked(row, mask, *fill, size=_count("setdiff1d", mask, size), first=True)


@composed_list
def _left_over(ar1: Any, ar2: Any, *, assume_unique: bool) -> list[Any]:
    x = as_operand(ar1, "setdiff1d")
    row = Reshape((x.type.size,))(x)
    if assume_unique:
        return [row, _is_in(row, ar2, invert=True, method="auto")]
    ordered, is_first, _ = _in_order(row, False)
    return [ordered, And()(is_first, _is_in(ordered, ar2, invert=True, method="auto"))]


def setxor1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """The different elements that one of two arrays has and the other has not, in order.

    With `size`, the first follows where there are too few.

    >>> jnp.setxor1d(jnp.array([3, 1, 1]), jnp.array([1, 7]))
    Array([3, 7], dtype=int32)
    """
    row, mask = _in_one(ar1, ar2, assume_unique=bool(assume_unique))
    return _picked(row, mask, *_given(fill_value), size=_count("setxor1d", mask, size), first=True)


@composed_list
def _in_one(ar1: Any, ar2: Any, *, assume_unique: bool) -> list[Any]:
    x, y = _two_rows("setxor1d", ar1, ar2)
    rows, masks = [], []
    for mine, others in ((x, y), (y, x)):
        ordered, is_first, _ = _in_order(mine, assume_unique)
        rows.append(ordered)
        masks.append(And()(is_first, _is_in(ordered, others, invert=True, method="auto")))
    both, taken = Sort(0)(Concatenate(0)(*rows), Concatenate(0)(*masks))
    return [both, taken]
