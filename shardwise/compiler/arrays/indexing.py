"""Indexing `x[...]`: translate an index and a type to ops.

x[5:1:-2]     a slice, reversed
x[..., None]  a reshape
x[i]          with `i` an integer, static or traced: a dynamic slice and a reshape
x[i]          with `i` an array of integers: a gather
x[b]          with `b` a concrete array of booleans: a gather at its true elements
x[True]       a new dim of size 1, indexed by an array of one zero; for False, by an empty array

Static integers become operands, like traced ones. Outside every frame one program then serves all indices, and on a
mesh the device that holds the element sends it.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, SupportsIndex, final

import numpy as np

from shardwise import tree
from shardwise.compiler.arrays.operands import (
    as_operand,
    broadcast_to_shape,
    compiled_function,
    resolve_array,
    static_integer,
    type_of,
)
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DType, integer_range, is_inexact, is_integer
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, Scalar, Typed
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Min
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.index_vectors import INDICES, Indexed, WindowDims, clamp_index, join_columns
from shardwise.compiler.ops.placement.retype import with_sums_of, with_varying_of
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Reverse, Slice
from shardwise.errors import ConcretizationTypeError, NonConcreteBooleanIndexError, TracerIntegerConversionError

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike, Index
    from shardwise.compiler.arrays.methods import Array

_SUPPORTED = "an index consists of integers, slices, None, `...` and arrays of integers or booleans"
_FULL_SLICE = slice(None)


def _resolve_slice(entry: slice, size: int) -> tuple[tuple[int, int, int], bool]:
    """Return a slice of a dim of this size as (start, limit, stride), and whether it is reversed."""
    try:
        start, stop, step = entry.indices(size)
    except TracerIntegerConversionError:
        raise IndexError(
            f"index: a bound or the step of {entry} is traced, so the shape of the result is unknown. "
            "State the size: `x[ds(start, size)]`, or `lax.dynamic_slice_in_dim(x, start, size)`"
        ) from None
    count = len(range(start, stop, step))
    if not count:
        return (0, 0, 1), False
    if step < 0:
        return (start + (count - 1) * step, start + 1, -step), True
    return (start, stop, step), False


def _count(part: tuple[int, int, int]) -> int:
    start, limit, stride = part
    return len(range(start, limit, stride))


def _slice_ops(slices: Sequence[tuple[int, int, int]], reversed_dims: Sequence[int], type: ArrayType) -> tuple[Op, ...]:
    ops: list[Op] = []
    if tuple(map(_count, slices)) != type.shape:
        ops.append(Slice(*(tuple(part[i] for part in slices) for i in range(3))))
    if reversed_dims:
        ops.append(Reverse(tuple(reversed_dims)))
    return tuple(ops)


def _expand_index(index: "Index", type: ArrayType) -> tuple[list[Any], ArrayType]:
    """Return one entry per dim and None for each new dim, and the type that they index.

    Boolean arrays become the indices of their true elements. A boolean scalar indexes a new dim of size 1. An ellipsis
    that expands to no dims is kept, because arrays before and after it are not adjacent.
    """
    entries: list[Any] = []
    for entry in map(_list_to_array, index) if isinstance(index, tuple) else (index,):
        entries += _normalize_entry(entry, type)
    used = _count_dims(entries)
    if used > type.ndim:
        raise IndexError(f"index: {used} entries are too many for {type}, which has rank {type.ndim}")
    ellipses = [number for number, entry in enumerate(entries) if entry is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("index: only one entry can be `...`")
    at = ellipses[0] if ellipses else len(entries)
    expanded: list[Any] = []
    shape: list[int] = []
    dim = 0
    between = [_FULL_SLICE] * (type.ndim - used) or entries[at : at + 1]
    for entry in [*entries[:at], *between, *entries[at + 1 :]]:
        consumed = _count_dims([entry])
        sizes = type.shape[dim : dim + consumed]
        if isinstance(entry, _Mask):
            if any(size not in (0, expected) for size, expected in zip(entry.shape, sizes, strict=True)):
                raise IndexError(
                    f"index: a boolean array of shape {entry.shape} does not match the dims of {type} from dim {dim} on"
                )
            expanded += entry.indices
            shape += sizes if entry.shape else (1,)
        else:
            expanded.append(entry)
            shape += sizes
        dim += consumed
    return expanded, type.with_shape(tuple(shape))


@dataclass(frozen=True, eq=False)
class _Mask:
    """A boolean array: its shape, and the indices of its true elements along each of its dims.

    A boolean scalar has one array of indices, for a new dim of size 1.
    """

    shape: tuple[int, ...]
    indices: list[Any]


def _count_dims(entries: Sequence[Any]) -> int:
    """Return the number of dims that the entries index."""
    return sum(
        len(entry.shape) if isinstance(entry, _Mask) else entry is not None and entry is not Ellipsis
        for entry in entries
    )


def _list_to_array(entry: Any) -> Any:
    """Convert a list of numbers in a tuple to an array. `x[[0, 2]]` alone is ambiguous, and is not converted."""
    if not isinstance(entry, (list, tuple)):
        return entry
    try:
        array = np.asarray(entry)
    except ConcretizationTypeError:  # traced elements
        return _first_array(entry).__array_namespace__().array(entry)
    except ValueError:  # a ragged list
        return entry
    if not array.size:
        return array.astype(INDICES[0])
    return array if array.dtype.kind in "biuf" else entry


def _first_array(entry: Sequence[Any]) -> Any:
    """Return the first array in nested lists that contain an array."""
    leaves = map(resolve_array, tree.leaves(entry, lambda leaf: hasattr(leaf, "__jax_array__")))
    return next(leaf for leaf in leaves if isinstance(leaf, Typed))


def _normalize_entry(entry: Any, type: ArrayType) -> list[Any]:
    """Convert an entry to None, `...`, a slice, a Python integer, an array of integers or a mask."""
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return [entry]
    entry_type = type_of(entry) if isinstance(entry, (Typed, np.ndarray, np.generic, bool)) else None
    if entry_type is not None and entry_type.dtype == np.bool_:
        nonzero = np.nonzero(np.atleast_1d(_concrete(entry, entry_type)))
        return [_Mask(entry_type.shape, [np.asarray(indices, np.int32) for indices in nonzero])]
    if entry_type is not None and not is_integer(entry_type.dtype):
        raise TypeError(f"index: {type} cannot be indexed by {entry_type}: {_SUPPORTED}")
    if isinstance(entry, Typed) or (isinstance(entry, np.ndarray) and entry.ndim):
        return [entry]
    try:
        return [operator.index(entry)]
    except TypeError:
        hint = "; convert it to an array, `x[array(...)]`" if isinstance(entry, (list, tuple)) else ""
        raise TypeError(f"index: {type} cannot be indexed by {entry!r}: {_SUPPORTED}{hint}") from None


def _concrete(entry: "ArrayLike", type: ArrayType) -> Any:
    """Return a boolean index as a numpy array; raise if it is traced."""
    try:
        return np.asarray(entry)
    except ConcretizationTypeError:
        raise NonConcreteBooleanIndexError(
            f"index: {type} is traced, so the shape of the result is unknown. Use `numpy.where(mask, x, y)`, which "
            "keeps the shape, or state the number of true elements: `x[numpy.nonzero(mask, size=...)]`"
        ) from None


@final
@record
class Indexer:
    """The static part of an index, without its arrays.

    Attributes:
        type: the type of the indexed array, with a dim of size 1 for each boolean scalar of the index.
        slices: (start, limit, stride) of each dim; dims that integers and arrays index have the full range.
        reversed_dims: the dims that are reversed after slicing.
        dims: the dims that integers and arrays index.
        index_shape: the shape that the integers and arrays broadcast to.
        lead: the number of dims of the array before the dims of `index_shape` in the result.
        shape: the shape of the result, with new dims.
        new_dims: the dims of the result that None adds.
        wrap_negative: whether negative integers count from the end. Otherwise they are out of bounds.
    """

    type: ArrayType
    slices: tuple[tuple[int, int, int], ...]
    reversed_dims: tuple[int, ...]
    dims: tuple[int, ...]
    index_shape: tuple[int, ...]
    lead: int
    shape: tuple[int, ...]
    new_dims: tuple[int, ...]
    wrap_negative: bool

    @property
    def slice_ops(self) -> tuple[Op, ...]:
        """The ops that apply the slices, before the integers and arrays."""
        return _slice_ops(self.slices, self.reversed_dims, self.type)

    @property
    def is_identity(self) -> bool:
        """Whether `x[index]` is `x`."""
        return not (self.slice_ops or self.dims or self.new_dims)

    @property
    def sliced_type(self) -> ArrayType:
        """The type after the slices are applied."""
        return self.type.with_shape(tuple(map(_count, self.slices)))

    @property
    def gathered_shape(self) -> tuple[int, ...]:
        """The shape of the result without new dims."""
        rest = [size for dim, size in enumerate(self.sliced_type.shape) if dim not in self.dims]
        return (*rest[: self.lead], *self.index_shape, *rest[self.lead :])

    @property
    def windows(self) -> WindowDims:
        """The dimension numbers of the gather or scatter."""
        last = self.lead + len(self.index_shape)
        window = tuple(dim for dim in range(len(self.gathered_shape)) if not self.lead <= dim < last)
        return window, self.dims, (), (), self.dims

    @property
    def sizes(self) -> tuple[int, ...]:
        """The window sizes of the gather."""
        return tuple(1 if dim in self.dims else size for dim, size in enumerate(self.sliced_type.shape))

    def with_scalar_dims(self, x: "Array") -> "Array":
        """Add a dim of size 1 to the indexed array for each boolean scalar of the index."""
        return x if x.type.shape == self.type.shape else Reshape(self.type.shape)(x)

    def with_static_indices(self, indices: Sequence[int]) -> "Indexer":
        """Replace static integers that are in bounds by slices of one element."""
        static = dict(zip(self.dims, indices, strict=True))
        slices = [(static[d], static[d] + 1, 1) if d in static else part for d, part in enumerate(self.slices)]
        return replace(self, slices=tuple(slices))

    def starts(self, indices: Sequence[Any]) -> list[Any]:
        """Return the arrays and integers in one dtype, with negative indices of arrays wrapped."""
        promoted = promote_indices(indices)
        if not self.wrap_negative:
            return promoted
        sizes = [self.type.shape[dim] for dim in self.dims]
        columns = zip(indices, promoted, sizes, strict=True)
        return [x if isinstance(index, int) else wrap_negative_index(x, size) for index, x, size in columns]

    def vectors(self, indices: Sequence[Any]) -> Any:
        """Return the arrays and integers as index vectors of a gather or scatter."""
        shape = self.index_shape
        columns = []
        for index in self.starts(indices):
            columns.append(Reshape((*shape, 1))(broadcast_to_shape(index, shape)))
        return join_columns(columns, columns[0])


def parse_index(
    index: "Index",
    type: ArrayType,
    wrap_negative: bool = True,
    reads: bool = True,
    check_bounds: bool = False,
) -> tuple[Indexer, list[Any]]:
    """Return the static part of an index, and its arrays and integers, one for each of `dims`.

    As in JAX, an index out of bounds is not an error, because a compiled program cannot raise; static and traced
    integers behave the same.

    Args:
        index: the index.
        type: the type of the indexed array.
        wrap_negative: whether negative indices count from the end.
        reads: whether elements are read, which is an error for an empty dim. An update of an empty array does nothing.
        check_bounds: whether a static integer out of bounds is an error.

    Returns:
        The indexer, and its arrays and integers.

    Raises:
        IndexError: if the index does not match the rank, or reads from an empty dim; with `check_bounds`, if a static
            integer is out of bounds.
        TypeError: if an entry is not supported.
    """
    entries, type = _expand_index(index, type)
    slices: list[tuple[int, int, int]] = []
    reversed_dims: list[int] = []
    arrays: list[Any] = []
    dims: list[int] = []
    positions: list[int] = []  # the positions of array and integer entries
    for number, entry in enumerate(entries):
        dim = len(slices)
        if entry is None or entry is Ellipsis:
            continue
        if isinstance(entry, slice):
            part, is_reversed = _resolve_slice(entry, type.shape[dim])
            slices.append(part)
            reversed_dims += [dim] * is_reversed
            continue
        entry_type = type_of(entry)
        if type.shape[dim] == 0 and entry_type.size and (reads or not entry_type.ndim):
            raise IndexError(f"index: dim {dim} of {type} is empty and cannot be indexed by integers")
        slices.append((0, type.shape[dim], 1))
        if isinstance(entry, int):
            position = _position(entry, type.shape[dim], wrap_negative)
            if check_bounds and position is None:
                raise IndexError(
                    f"index: {entry} is out of bounds for dim {dim} of {type}, and the setting check_static_indices is "
                    "on"
                )
            # An integer out of bounds is like a traced index: `checkify` must see its value.
            arrays.append(as_index(entry) if position is None else position)
        else:
            arrays.append(entry)
        dims.append(dim)
        positions.append(number)
    index_shape = _broadcast([type_of(array).shape for array in arrays])
    adjacent = bool(positions) and positions == list(range(positions[0], positions[-1] + 1))
    others = [entry for number, entry in enumerate(entries) if number not in positions and entry is not Ellipsis]
    first = len([entry for entry in entries[: positions[0]] if entry is not Ellipsis]) if adjacent else 0
    counts = iter([_count(part) for dim, part in enumerate(slices) if dim not in dims])
    rest = [1 if entry is None else next(counts) for entry in others]
    is_new = [entry is None for entry in others]
    shape = (*rest[:first], *index_shape, *rest[first:])
    new_dims = tuple(dim + len(index_shape) * (dim >= first) for dim, new in enumerate(is_new) if new)
    lead = is_new[:first].count(False)
    indexer = Indexer(
        type, tuple(slices), tuple(reversed_dims), tuple(dims), index_shape, lead, shape, new_dims, wrap_negative
    )
    return indexer, arrays


def _position(index: int, size: int, wrap_negative: bool) -> int | None:
    """Return the position that a static index means; None if it is out of bounds."""
    index = index + size if index < 0 and wrap_negative else index
    return index if 0 <= index < size else None


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that index arrays broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise IndexError(f"index: index arrays of shapes {', '.join(map(str, shapes))} do not broadcast") from None


@compiled_function
def gather_by_index(
    x: "ArrayLike",
    *indices: "ArrayLike",
    indexer: Indexer,
    fill: Scalar | None = None,
    sorted: bool = False,
    unique: bool = False,
) -> Any:
    """Compute `x[index]`. Elements out of bounds are `fill`, or the nearest element if `fill` is None."""
    operand = as_operand(x)
    if 0 in indexer.shape and (indices or operand.type.explicit is None):  # slices keep the sharding of a type
        empty = full(indexer.shape, 0, operand.type.dtype, operand.type.weak)
        return with_varying_of(with_sums_of(empty, operand.type), operand.type)
    sliced = indexer.with_scalar_dims(operand)
    for op in indexer.slice_ops:
        sliced = op(sliced)
    if indices and not indexer.index_shape and fill is None:
        result = _dynamic_slice(sliced, indexer, indices)
    elif indices:
        op = Gather(*indexer.windows, sizes=indexer.sizes, sorted=sorted, unique=unique)
        result = gather_with_fill(op, indexer.sizes, sliced, indexer.vectors(indices), fill)
    else:
        result = sliced
    return result if result.type.shape == indexer.shape else Reshape(indexer.shape)(result)


def _dynamic_slice(x: "Array", indexer: Indexer, indices: Sequence[Any]) -> Any:
    """Slice one element along each of the indexed dims."""
    starts = dict(zip(indexer.dims, indexer.starts(indices), strict=True))
    zero = full((), 0, starts[indexer.dims[0]].type.dtype)
    return DynamicSlice(indexer.sizes)(x, *(starts.get(dim, zero) for dim in range(x.type.ndim)))


def gather_with_fill(op: Indexed, sizes: Sequence[int], x: "Array", indices: "Array", fill: Scalar | None) -> Any:
    """Gather, with `fill` for windows that are out of bounds."""
    gathered = op(x, indices)
    inside = None if fill is None else op.in_bounds(x.type.shape, sizes, indices)
    if inside is None or fill is None:
        return gathered
    shape = gathered.type.shape
    filled = with_sums_of(full(shape, fill.array, x.type.dtype, x.type.weak), gathered.type)
    return Select()(op.broadcast_per_index(inside, shape), gathered, filled)


def index_mode(name: str, mode: str | Enum | None, default: str, more: tuple[str, ...] = ()) -> str:
    """Return the name of a mode for indices out of bounds. `mode` is a name or a member of an enum."""
    resolved = default if mode is None else getattr(mode, "value", mode)
    supported = ("clip", "fill", "drop", "promise_in_bounds", *more)
    if resolved not in supported:
        raise ValueError(f"{name}: unknown mode {mode!r}; supported: {', '.join(supported)}")
    return str(resolved)


def out_of_bounds_fill(value: "ArrayLike | None", dtype: DType) -> Scalar:
    """Return the fill of elements out of bounds.

    This is `value`. If `value` is None, it is NaN, the lowest signed or the highest unsigned integer, or True.
    """
    if value is None:
        if is_inexact(dtype):
            value = np.nan
        elif is_integer(dtype):
            low, high = integer_range(dtype)
            value = low or high
        else:
            value = True
    return Scalar.from_value(value, dtype)


def as_index(x: "ArrayLike") -> "Array":
    """Convert indices to i32 or i64. Unsigned integers that do not fit saturate, which keeps them out of bounds."""
    if isinstance(x, int) and not isinstance(x, bool):
        low, high = integer_range(INDICES[0])
        return full((), min(max(x, low), high), INDICES[0])
    type = type_of(x, "index")
    if not is_integer(type.dtype):
        raise TypeError(f"index: needs integers, not {type}")
    index = as_operand(x)
    dtype = canonical_dtype(np.int64) if type.dtype.itemsize == 8 else INDICES[0]
    if type.dtype.kind == "u" and type.dtype.itemsize >= dtype.itemsize:
        index = Min()(index, full(index.type.shape, integer_range(dtype)[1], type.dtype))
    return index if index.type.dtype == dtype and not index.type.weak else Convert(dtype)(index)


def promote_indices(indices: Sequence[Any]) -> list[Any]:
    """Convert indices to a common dtype."""
    converted = [as_index(index) for index in indices]
    widest = max((index.type.dtype for index in converted), key=lambda dtype: dtype.itemsize, default=INDICES[0])
    return [index if index.type.dtype == widest else Convert(widest)(index) for index in converted]


def wrap_negative_index(index: "Array", size: int) -> Any:
    """Add `size` to negative indices."""
    shape, dtype = index.type.shape, index.type.dtype
    return Select()(Compare("LT")(index, zeros_like(index)), Add()(index, full(shape, size, dtype)), index)


def clip_indices(op: Indexed, shape: tuple[int, ...], sizes: Sequence[int], indices: "Array") -> Any:
    """Clamp index vectors so that windows are inside an array of this shape."""
    limits = [shape[dim] - sizes[dim] for dim in op.mapped]
    columns = [clamp_index(column, limit) for column, limit in zip(op.columns(indices), limits, strict=True)]
    return join_columns(columns, indices)


def canonical_axis(name: str, axis: SupportsIndex, ndim: int) -> int:
    """Convert an axis of an array of rank `ndim` to a nonnegative dim; raise if it is out of bounds."""
    index = static_integer(name, "axis", axis)
    if not -ndim <= index < ndim:
        raise ValueError(f"{name}: axis {index} does not exist in an array of rank {ndim}")
    return index % ndim
