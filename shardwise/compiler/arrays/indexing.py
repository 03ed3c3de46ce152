"""`x[...]`: an index and a type come in, ops that take those elements come out.

x[5:1:-2]     a slice, reversed
x[..., None]  a reshape
x[i]          with `i` an integer, known or of the program: a slice that begins there, and a reshape
x[i]          with `i` an array of integers: a gather
x[b]          with `b` an array of booleans that is known: a gather at its true elements

Integers that are known are operands like others: outside every frame one program takes any element, and on a mesh the
device that has it gives it.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.arrays.operands import as_operand, broadcast_to_shape, compiled_function, type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import integer_range, is_inexact, is_integer
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
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Reverse, Slice
from shardwise.errors import ConcretizationTypeError, NonConcreteBooleanIndexError

_MADE_OF = "an index is made of integers, slices, None, `...` and arrays of integers or booleans"
_WHOLE = slice(None)


def _part(entry: slice, size: int) -> tuple[tuple[int, int, int], bool]:
    """A slice of a dim of this size as start, limit and stride; and whether it goes backwards."""
    start, stop, step = entry.indices(size)
    count = len(range(start, stop, step))
    if not count:
        return (0, 0, 1), False
    if step < 0:
        return (start + (count - 1) * step, start + 1, -step), True
    return (start, stop, step), False


def _count(part: tuple[int, int, int]) -> int:
    start, limit, stride = part
    return len(range(start, limit, stride))


def _cutting(parts: Sequence[tuple[int, int, int]], backwards: Sequence[int], type: ArrayType) -> tuple[Op, ...]:
    steps: list[Op] = []
    if tuple(map(_count, parts)) != type.shape:
        steps.append(Slice(*(tuple(part[i] for part in parts) for i in range(3))))
    if backwards:
        steps.append(Reverse(tuple(backwards)))
    return tuple(steps)


def _expanded(index: Any, type: ArrayType) -> list[Any]:
    """The entries of an index, one for each dim and None for each new one; arrays of booleans as their true places."""
    entries: list[Any] = []
    for entry in map(_listed, index) if isinstance(index, tuple) else (index,):
        entries += _resolved(entry, type)
    used = _dims_before(entries)
    if used > type.ndim:
        raise IndexError(f"index: {used} entries are too many for {type}, which has rank {type.ndim}")
    places = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    if len(places) > 1:
        raise IndexError("index: only one entry can be `...`")
    at = places[0] if places else len(entries)
    found = [*entries[:at], *[_WHOLE] * (type.ndim - used), *entries[at + 1 :]]
    for place, entry in enumerate(found):
        if isinstance(entry, _Mask):
            dim = _dims_before(found[:place])
            if entry.shape != type.shape[dim : dim + len(entry.shape)]:
                raise IndexError(
                    f"index: an array of booleans of shape {entry.shape} does not fit the dims from {dim} on of {type}"
                )
    return [part for entry in found for part in (entry.places if isinstance(entry, _Mask) else [entry])]


@dataclass(frozen=True, eq=False)
class _Mask:
    """An array of booleans, and where it is true: an index for each of its dims."""

    shape: tuple[int, ...]
    places: list[Any]


def _dims_before(entries: Sequence[Any]) -> int:
    """How many dims these entries are for."""
    return sum(
        len(entry.shape) if isinstance(entry, _Mask) else entry is not None and entry is not Ellipsis
        for entry in entries
    )


def _listed(entry: Any) -> Any:
    """A list of what is known as an array. It is one entry of several: `x[[0, 2]]` alone could be `x[0, 2]`."""
    if not isinstance(entry, (list, tuple)):
        return entry
    try:
        found = np.asarray(entry)
    except (ConcretizationTypeError, ValueError):  # elements that are traced, or rows of several lengths
        return entry
    if not found.size:
        return found.astype(INDICES[0])
    return found if found.dtype.kind in "biuf" else entry


def _resolved(entry: Any, type: ArrayType) -> list[Any]:
    """An entry as None, `...`, a slice, a Python integer, an array of integers or a mask."""
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return [entry]
    kind = type_of(entry) if isinstance(entry, (Typed, np.ndarray, np.generic, bool)) else None
    if kind is not None and kind.dtype == np.bool_:
        if not kind.ndim:
            if _concrete(entry, kind):  # the only element there is, in a new dim
                return [None]
            raise NotImplementedError(f"index: {type} cannot be indexed by False yet; take `x[None][:0]`")
        where = np.nonzero(_concrete(entry, kind))
        return [_Mask(kind.shape, [np.asarray(places, np.int32) for places in where])]
    if kind is not None and not is_integer(kind.dtype):
        raise TypeError(f"index: {type} cannot be indexed by {kind}: {_MADE_OF}")
    if isinstance(entry, Typed) or (isinstance(entry, np.ndarray) and entry.ndim):
        return [entry]
    try:
        return [operator.index(entry)]
    except TypeError:
        hint = "; make an array of it, `x[array(...)]`" if isinstance(entry, (list, tuple)) else ""
        raise TypeError(f"index: {type} cannot be indexed by {entry!r}: {_MADE_OF}{hint}") from None


def _concrete(entry: Any, kind: ArrayType) -> Any:
    try:
        return np.asarray(entry)
    except ConcretizationTypeError:
        raise NonConcreteBooleanIndexError(
            f"index: {kind} is traced, so nobody knows how many elements it takes, and the shape of the result. "
            "Choose with `numpy.where(mask, x, y)`, which keeps the shape, or say how many places there are: "
            "`x[numpy.nonzero(mask, size=...)]`"
        ) from None


@final
@record
class Indexer:
    """An index without its arrays: what it cuts out by slices, which dims its integers are for, and what comes out.

    `parts` has a start, a limit and a stride for each dim, `backwards` the dims that are then reversed, `dims` those
    that integers and arrays index, `places` the shape to which these broadcast. `lead` dims of the array come before
    the places in what is taken; `shape` has new dims too, which are `new`. `from_end`: negative integers count from
    there, or else lie outside.
    """

    type: ArrayType
    parts: tuple[tuple[int, int, int], ...]
    backwards: tuple[int, ...]
    dims: tuple[int, ...]
    places: tuple[int, ...]
    lead: int
    shape: tuple[int, ...]
    new: tuple[int, ...]
    from_end: bool

    @property
    def cutting(self) -> tuple[Op, ...]:
        """What takes the slices, before the integers."""
        return _cutting(self.parts, self.backwards, self.type)

    @property
    def is_everything(self) -> bool:
        """Whether `x[index]` is `x`."""
        return not (self.cutting or self.dims or self.new)

    @property
    def cut(self) -> ArrayType:
        """What the slices leave."""
        return self.type.with_shape(tuple(map(_count, self.parts)))

    @property
    def taken(self) -> tuple[int, ...]:
        """The shape of what is taken, without new dims."""
        rest = [size for dim, size in enumerate(self.cut.shape) if dim not in self.dims]
        return (*rest[: self.lead], *self.places, *rest[self.lead :])

    @property
    def windows(self) -> WindowDims:
        """The dims of the gather or scatter at the places."""
        last = self.lead + len(self.places)
        window = tuple(dim for dim in range(len(self.taken)) if not self.lead <= dim < last)
        return window, self.dims, (), (), self.dims

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those of the gather's windows."""
        return tuple(1 if dim in self.dims else size for dim, size in enumerate(self.cut.shape))

    def sliced(self, at: Sequence[int]) -> "Indexer":
        """The same places where all integers are known and inside: slices of one element."""
        known = dict(zip(self.dims, at, strict=True))
        parts = [(known[d], known[d] + 1, 1) if d in known else part for d, part in enumerate(self.parts)]
        return replace(self, parts=tuple(parts))

    def starts(self, indices: Sequence[Any]) -> list[Any]:
        """The arrays and integers in one dtype; negative ones of arrays may count from the end."""
        found = promote_indices(indices)
        if not self.from_end:
            return found
        sizes = [self.type.shape[dim] for dim in self.dims]
        parts = zip(indices, found, sizes, strict=True)
        return [x if isinstance(given, int) else wrap_negative_index(x, size) for given, x, size in parts]

    def vectors(self, indices: Sequence[Any]) -> Any:
        """Index vectors of the arrays and integers."""
        shape = self.places
        columns = []
        for index in self.starts(indices):
            columns.append(Reshape((*shape, 1))(broadcast_to_shape(index, shape)))
        return join_columns(columns, columns[0])


def parse_index(
    index: Any, type: ArrayType, clips: bool = True, from_end: bool = True, takes: bool = True
) -> tuple[Indexer, list[Any]]:
    """The index, and its arrays and integers, one for each of its dims `dims`.

    As in JAX an integer beyond either end is no error: an array cannot fail while it is computed, and integers that are
    known now mean what others will. `clips`: the element at that end is meant. `from_end`: negative ones count from the
    end. `takes`: there must be an element to take; an update of places in an array without elements is none.
    """
    entries = _expanded(index, type)
    parts: list[tuple[int, int, int]] = []
    backwards: list[int] = []
    arrays: list[Any] = []
    dims: list[int] = []
    at: list[int] = []  # which entries are arrays or integers
    for number, entry in enumerate(entries):
        dim = len(parts)
        if entry is None:
            continue
        if isinstance(entry, slice):
            part, back = _part(entry, type.shape[dim])
            parts.append(part)
            backwards += [dim] * back
            continue
        kind = type_of(entry)
        if type.shape[dim] == 0 and kind.size and (takes or not kind.ndim):
            raise IndexError(f"index: there is nothing to take along dim {dim} of {type}, which has no elements")
        parts.append((0, type.shape[dim], 1))
        arrays.append(_settled(entry, type.shape[dim], clips, from_end) if isinstance(entry, int) else entry)
        dims.append(dim)
        at.append(number)
    places = _broadcast([type_of(array).shape for array in arrays])
    together = bool(at) and at == list(range(at[0], at[-1] + 1))
    first = at[0] if together else 0
    counts = iter([_count(part) for dim, part in enumerate(parts) if dim not in dims])
    rest = [1 if entry is None else next(counts) for number, entry in enumerate(entries) if number not in at]
    is_new = [entry is None for number, entry in enumerate(entries) if number not in at]
    shape = (*rest[:first], *places, *rest[first:])
    new = tuple(dim + len(places) * (dim >= first) for dim, newly in enumerate(is_new) if newly)
    lead = is_new[:first].count(False)
    return Indexer(type, tuple(parts), tuple(backwards), tuple(dims), places, lead, shape, new, from_end), arrays


def _settled(at: int, size: int, clips: bool, from_end: bool) -> int:
    """An integer that is known, from 0 to the size of its dim, which lies outside."""
    at = at + size if at < 0 and from_end else at
    return min(max(at, 0), size - 1) if clips else at if 0 <= at < size else size


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise IndexError(f"index: arrays of shapes {', '.join(map(str, shapes))} do not broadcast together") from None


@compiled_function
def gather_by_index(
    x: Any,
    *indices: Any,
    by: Indexer,
    fill: Scalar | None = None,
    sorted: bool = False,
    unique: bool = False,
) -> Any:
    """`x[index]`. A place outside means `fill`; where there is none, the nearest element."""
    x = as_operand(x)
    if 0 in by.shape:
        return full(by.shape, 0, x.type.dtype, x.type.weak)
    for op in by.cutting:
        x = op(x)
    if indices and not by.places and fill is None:
        found = _sliced_at(x, by, indices)
    elif indices:
        op = Gather(*by.windows, sizes=by.sizes, sorted=sorted, unique=unique)
        found = gather_with_fill(op, by.sizes, x, by.vectors(indices), fill)
    else:
        found = x
    return found if found.type.shape == by.shape else Reshape(by.shape)(found)


def _sliced_at(x: Any, by: Indexer, indices: Sequence[Any]) -> Any:
    """One element along each of the indexed dims."""
    starts = dict(zip(by.dims, by.starts(indices), strict=True))
    zero = full((), 0, starts[by.dims[0]].type.dtype)
    return DynamicSlice(by.sizes)(x, *(starts.get(dim, zero) for dim in range(x.type.ndim)))


def gather_with_fill(op: Indexed, sizes: Sequence[int], x: Any, indices: Any, fill: Scalar | None) -> Any:
    """A gather; where a window does not lie inside, `fill`."""
    found = op(x, indices)
    inside = None if fill is None else op.in_bounds(x.type.shape, sizes, indices)
    if inside is None or fill is None:
        return found
    shape = found.type.shape
    return Select()(op.broadcast_per_index(inside, shape), found, full(shape, fill.array, x.type.dtype, x.type.weak))


def index_mode(name: str, mode: Any, default: str, more: tuple[str, ...] = ()) -> str:
    """What is done about places outside, by its name; a mode may be an enum's."""
    found = default if mode is None else getattr(mode, "value", mode)
    known = ("clip", "fill", "drop", "promise_in_bounds", *more)
    if found not in known:
        raise ValueError(f"{name}: there is no mode {mode!r}; modes: {', '.join(known)}")
    return str(found)


def out_of_bounds_fill(value: Any, dtype: Any) -> Scalar:
    """What stands for an element outside: `value`; else NaN, the least integer (unsigned: the greatest), or True."""
    if value is None:
        if is_inexact(dtype):
            value = np.nan
        elif is_integer(dtype):
            low, high = integer_range(dtype)
            value = low or high
        else:
            value = True
    return Scalar.of(value, dtype)


def as_index(x: Any) -> Any:
    """Integers as i32 or i64. Those without a sign that do not fit are as good as the largest: outside."""
    if isinstance(x, int) and not isinstance(x, bool):
        low, high = integer_range(INDICES[0])
        return full((), min(max(x, low), high), INDICES[0])
    kind = type_of(x, "index")
    if not is_integer(kind.dtype):
        raise TypeError(f"index: needs integers, not {kind}")
    x = as_operand(x)
    wanted = canonical_dtype(np.int64) if kind.dtype.itemsize == 8 else INDICES[0]
    if kind.dtype.kind == "u" and kind.dtype.itemsize >= wanted.itemsize:
        x = Min()(x, full(x.type.shape, integer_range(wanted)[1], kind.dtype))
    return x if x.type.dtype == wanted and not x.type.weak else Convert(wanted)(x)


def promote_indices(indices: Sequence[Any]) -> list[Any]:
    """Indices in one dtype."""
    found = [as_index(index) for index in indices]
    widest = max((index.type.dtype for index in found), key=lambda dtype: dtype.itemsize, default=INDICES[0])
    return [index if index.type.dtype == widest else Convert(widest)(index) for index in found]


def wrap_negative_index(index: Any, size: int) -> Any:
    """Negative indices count from the end of a dim of this size."""
    shape, dtype = index.type.shape, index.type.dtype
    return Select()(Compare("LT")(index, zeros_like(index)), Add()(index, full(shape, size, dtype)), index)


def clip_indices(op: Indexed, whole: tuple[int, ...], sizes: Sequence[int], indices: Any) -> Any:
    """Index vectors, clamped so that windows lie inside of an array of this shape."""
    limits = [whole[dim] - sizes[dim] for dim in op.mapped]
    columns = [clamp_index(column, limit) for column, limit in zip(op.columns(indices), limits, strict=True)]
    return join_columns(columns, indices)


def canonical_axis(name: str, axis: Any, ndim: int) -> int:
    """An axis of an array of this rank as a dim from 0; one that does not exist is an error of `name`."""
    at = operator.index(axis)
    if not -ndim <= at < ndim:
        raise ValueError(f"{name}: axis {at} does not exist in an array of rank {ndim}")
    return at % ndim
