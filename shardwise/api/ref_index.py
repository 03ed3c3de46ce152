"""Reads and writes of a part of an array by the index of a Ref, and the shape of the part.

An index of a Ref is one of an array, whose slices may also have a traced start (`ds`). A part that is a window, of
scalars and slices, is read by a dynamic slice and written by a dynamic update slice, so both clamp its start alike.
Arrays in an index select elements inside the window.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.arrays.dynamic_index import Slice
from shardwise.compiler.arrays.indexing import wrap_negative_index
from shardwise.compiler.arrays.methods import broadcast_to
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.shape.movement import Reshape

_INT = np.dtype(np.int32)


@final
@dataclass(frozen=True)
class Window:
    """The window of an array that an index selects, and the index of the elements inside of it.

    Attributes:
        starts: the first index of each dim, which may be traced.
        sizes: the number of elements of each dim from the first to the last, those between strides included.
        inner: the index into the window: 0 for dims that a scalar removes, slices, and arrays.
    """

    starts: tuple[Any, ...]
    sizes: tuple[int, ...]
    inner: tuple[Any, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the index selects all elements of the window."""
        return all(isinstance(entry, int) or _is_full(entry) for entry in self.inner)

    @property
    def kept_sizes(self) -> tuple[int, ...]:
        """The sizes of the dims that the index does not remove, of a plain window."""
        return tuple(size for size, entry in zip(self.sizes, self.inner, strict=True) if isinstance(entry, slice))


def read_elements(x: Any, index: Any) -> Any:
    """Return the elements of an array at an index of a Ref. Raises IndexError if a static index is out of bounds."""
    window = _dynamic_window(x.type.shape, index)
    if window is None:
        return x[index]
    part = x if window.sizes == x.type.shape else _window(x, *window.starts, sizes=window.sizes)
    return part.reshape(window.kept_sizes) if window.is_plain else part[window.inner]


def write_elements(x: Any, index: Any, value: Any) -> Any:
    """Return the array with new elements at an index of a Ref. Raises IndexError as `read_elements`."""
    window = _dynamic_window(x.type.shape, index)
    if window is None:
        return x.at[index].set(value)
    if not window.is_plain:
        value = _window(x, *window.starts, sizes=window.sizes).at[window.inner].set(value)
        return _updated(x, value, *window.starts, kept=window.sizes, sizes=window.sizes)
    return _updated(x, value, *window.starts, kept=window.kept_sizes, sizes=window.sizes)


def indexed_shape(shape: tuple[int, ...], index: Any) -> tuple[int, ...]:
    """Return the shape of the elements at an index of a Ref, of an array of this shape."""
    entries = _entries(index)
    sizes = list(shape)
    if any(isinstance(entry, Slice) for entry in entries) and all(e is not None for e in entries):
        for dim, entry in enumerate(expanded_index(shape, entries)):
            if isinstance(entry, Slice):  # a masked access may exceed the array
                sizes[dim] = max(sizes[dim], entry.size)
    return np.broadcast_to(np.zeros((), np.bool_), sizes)[tuple(map(_example, entries))].shape


def _example(entry: Any) -> Any:
    """Return an entry that selects as many elements, from the start of a dim."""
    if isinstance(entry, Slice):
        return slice(0, entry.size)
    if entry is None or entry is Ellipsis or isinstance(entry, (slice, int)):
        return entry
    shape = np.shape(entry)
    if getattr(entry, "dtype", np.asarray(0).dtype) == np.bool_:
        return np.asarray(entry)  # its elements decide about the shape
    return np.zeros(shape, np.int32) if shape else 0


def _is_full(entry: Any) -> bool:
    """Return whether an entry of an index is `:`."""
    return isinstance(entry, slice) and entry == slice(None)


def _entries(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _dynamic_window(shape: tuple[int, ...], index: Any) -> Window | None:
    """Return the window of an index with traced entries; None if the index is one of arrays."""
    entries = _entries(index)
    if not any(isinstance(entry, Slice) or _is_scalar_array(entry) for entry in entries):
        _check_static(shape, entries)
        return None
    if any(entry is None or getattr(entry, "dtype", None) == np.bool_ for entry in entries):
        return None
    starts: list[Any] = []
    sizes: list[int] = []
    inner: list[Any] = []
    for dim, (entry, size) in enumerate(zip(expanded_index(shape, entries), shape, strict=True)):
        if isinstance(entry, Slice):
            count, stride = entry.size, entry.stride
            span = (count - 1) * stride + 1 if count else 0
            _check_slice(shape, dim, entry, span)
            starts, sizes = [*starts, entry.start], [*sizes, span]
            inner.append(slice(None) if stride == 1 else slice(None, None, stride))
        elif isinstance(entry, slice):
            first, stop, step = entry.indices(size)
            if step != 1:
                starts, sizes, inner = [*starts, 0], [*sizes, size], [*inner, entry]
            else:
                starts, sizes, inner = [*starts, first], [*sizes, max(0, stop - first)], [*inner, slice(None)]
        elif isinstance(entry, (int, np.integer)) or _is_scalar_array(entry):
            if isinstance(entry, (int, np.integer)):
                _check_integer(shape, dim, int(entry))
            starts, sizes, inner = [*starts, entry], [*sizes, 1], [*inner, 0]
        else:
            starts, sizes, inner = [*starts, 0], [*sizes, size], [*inner, entry]
    return Window(tuple(starts), tuple(sizes), tuple(inner))


def _is_scalar_array(entry: Any) -> bool:
    """Return whether an entry is an integer that may be traced."""
    is_array = not isinstance(entry, (int, np.generic)) and getattr(entry, "shape", None) == ()
    return is_array and is_integer(entry.dtype)


def expanded_index(shape: tuple[int, ...], entries: Sequence[Any]) -> list[Any]:
    """Return one entry per dim."""
    missing = len(shape) - sum(entry is not Ellipsis for entry in entries)
    if missing < 0:
        raise IndexError(f"index: {len(entries)} entries are too many for a Ref of shape {shape}: remove {-missing}")
    place = next((number for number, entry in enumerate(entries) if entry is Ellipsis), len(entries))
    return [*entries[:place], *[slice(None)] * missing, *entries[place + 1 :]]


def _check_static(shape: tuple[int, ...], entries: Sequence[Any]) -> None:
    if any(isinstance(entry, int) for entry in entries) and not any(
        entry is None or hasattr(entry, "shape") or isinstance(entry, list) for entry in entries
    ):
        for dim, entry in enumerate(expanded_index(shape, entries)):
            if isinstance(entry, int):
                _check_integer(shape, dim, entry)


def _check_integer(shape: tuple[int, ...], dim: int, index: int) -> None:
    if not -shape[dim] <= index < shape[dim]:
        raise IndexError(
            f"index: {index} is out of bounds for dim {dim}, of size {shape[dim]}, of a Ref of shape {shape}: use an "
            f"index from 0 to {shape[dim] - 1}"
        )


def _check_slice(shape: tuple[int, ...], dim: int, entry: Slice, span: int) -> None:
    size = shape[dim]
    start = operator.index(entry.start) if isinstance(entry.start, (int, np.integer)) else 0
    if span > size or not -size <= start <= size - span:
        raise IndexError(
            f"index: ds({entry.start}, {entry.size}, stride={entry.stride}) is out of bounds for dim {dim}, of size "
            f"{size}, of a Ref of shape {shape}. A slice must be inside the dim: use a smaller size, or pad the array."
        )


@compiled_function
def _window(x: Any, *starts: Any, sizes: tuple[int, ...]) -> Any:
    x = as_operand(x)
    return DynamicSlice(sizes)(x, *_as_starts(x, starts))


@compiled_function
def _updated(x: Any, value: Any, *starts: Any, kept: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """Return `x` with a window replaced by a value that broadcasts to its kept dims."""
    x = as_operand(x)
    part = broadcast_to(astype_weak(as_operand(value, "set"), x.type.dtype, False), shape=kept)
    part = part if kept == sizes else Reshape(sizes)(part)
    return part if sizes == x.type.shape else DynamicUpdateSlice()(x, part, *_as_starts(x, starts))


def _as_starts(x: Any, starts: Sequence[Any]) -> list[Any]:
    return [wrap_negative_index(_as_int(start), size) for start, size in zip(starts, x.type.shape, strict=True)]


def _as_int(x: Any) -> Any:
    operand = as_operand(x, "index")
    return operand if operand.type.dtype == _INT and not operand.type.weak else Convert(_INT)(operand)
