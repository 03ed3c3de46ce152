"""ds: a slice of static size with a start that may be traced, as an entry of an index: `x[ds(i, 4)]`.

A read is a dynamic slice: a negative start counts from the end, and is clamped so that the window is in bounds. An
update scatters to the indices of the window. As in JAX, it is dropped if the window is not in bounds, or if its start
is negative.
"""

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from shardwise import tree_util
from shardwise.compiler.arrays.indexing import wrap_negative_index
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike, Index
    from shardwise.compiler.arrays.methods import Array

_INT = np.dtype(np.int32)


@final
@dataclass(frozen=True, eq=False)
class Slice:
    """`size` elements from `start`, every `stride`-th. `start` may be traced; as a pytree, it is the only leaf."""

    start: Any
    size: int
    stride: int = 1


tree_util.register_pytree_node(
    Slice, lambda node: ((node.start,), (node.size, node.stride)), lambda static, start: Slice(start[0], *static)
)


def ds(start: "ArrayLike | None", size: int | None = None, stride: int | None = None) -> Any:
    """Create a slice with a dynamic start, as an entry of an index.

    `x[ds(i, n)]` is `x[i : i + n]`, where `i` may be traced. A start that is too large is clamped, so that the result
    always has `n` elements.

    Args:
        start: the index of the first element, an integer scalar that may be traced. With a single argument, it is the
            size, and the slice starts at 0; None selects everything.
        size: the number of elements.
        stride: the distance between elements; by default 1.

    Returns:
        An entry for an index.

    Raises:
        TypeError: if `size` or `stride` is not an integer that is known while tracing.
        ValueError: if `size` is negative, or `stride` is less than 1.

    Example:
        >>> jax.jit(lambda x, i: x[jax.ds(i, 2)])(jnp.arange(10), 4)
        Array([4, 5], dtype=int32)
    """
    if start is None:
        return slice(None)
    if size is None:
        start, size = 0, start
    count, step = operator.index(size), 1 if stride is None else operator.index(stride)
    if count < 0 or step < 1:
        raise ValueError(f"ds: size must not be negative and stride must be positive, not {size} and {stride}")
    return Slice(start, count, step)


def has_dynamic_slices(index: "Index") -> bool:
    """Return whether an index has an entry that `ds` created."""
    return isinstance(index, Slice) or (isinstance(index, tuple) and any(isinstance(entry, Slice) for entry in index))


def read_dynamic_slices(x: "Array", index: "Index") -> tuple[Any, Any]:
    """Apply the dynamic slices of an index. Return the result, and the remaining index into it.

    A slice with a stride remains in the index, as an array of indices.
    """
    starts, sizes, rest = [0] * x.type.ndim, list(x.type.shape), []
    for entry, dim in _entries_with_dims(index, x.type):
        if not isinstance(entry, Slice):
            rest.append(entry)
        elif entry.stride > 1:
            rest.append(_window_of(entry, x.type.shape[dim], drop=False))
        else:
            _check_window(entry, dim, x.type)
            starts[dim], sizes[dim] = entry.start, entry.size
            rest.append(slice(None))
    if tuple(sizes) != x.type.shape:
        x = _dynamic_slice(x, *starts, sizes=tuple(sizes))
    return x, tuple(rest)


def replace_dynamic_slices(index: "Index", type: ArrayType) -> tuple[Any, ...]:
    """Replace the dynamic slice in the index of an update by an array of indices."""
    entries = _entries_with_dims(index, type)
    arrays = [e for e, _ in entries if not (e is None or e is Ellipsis or isinstance(e, (slice, int)))]
    if len(arrays) > 1:
        raise NotImplementedError("index: an update supports one `ds` in an index, and no other arrays")
    for entry, dim in entries:
        if isinstance(entry, Slice):
            _check_window(entry, dim, type)
    return tuple(
        _window_of(entry, type.shape[dim], drop=True) if isinstance(entry, Slice) else entry for entry, dim in entries
    )


def _window_of(entry: Slice, length: int, drop: bool) -> Any:
    return _window(entry.start, size=entry.size, stride=entry.stride, length=length, drop=drop)


def _check_window(entry: Slice, dim: int, type: ArrayType) -> None:
    start = type_of(entry.start, "ds")
    if start.ndim or not is_integer(start.dtype):
        raise TypeError(f"ds: the start must be an integer scalar, not {start}")
    if (entry.size - 1) * entry.stride >= type.shape[dim]:
        raise IndexError(
            f"ds: {entry.size} elements with stride {entry.stride} do not fit dim {dim} of {type}, of size "
            f"{type.shape[dim]}"
        )


def _entries_with_dims(index: "Index", type: ArrayType) -> list[tuple[Any, int]]:
    """Return the entries of an index, each with the first dim that it indexes."""
    entries = index if isinstance(index, tuple) else (index,)
    used = sum(map(_dims_of, entries))
    out, dim = [], 0
    for entry in entries:
        out.append((entry, dim))
        dim += type.ndim - used if entry is Ellipsis else _dims_of(entry)
    if dim > type.ndim:
        raise IndexError(f"index: {dim} entries are too many for {type}, which has rank {type.ndim}")
    return out


def _dims_of(entry: Any) -> int:
    """Return the number of dims that an entry indexes."""
    if entry is None or entry is Ellipsis:
        return 0
    is_mask = getattr(entry, "dtype", None) == np.bool_
    return int(entry.ndim) if is_mask else 1


@compiled_function
def _dynamic_slice(x: "Array", *starts: "ArrayLike", sizes: tuple[int, ...]) -> Any:
    x = as_operand(x)
    return DynamicSlice(sizes)(
        x, *(wrap_negative_index(_as_int(start), size) for start, size in zip(starts, x.type.shape, strict=True))
    )


@compiled_function
def _window(start: "ArrayLike", *, size: int, stride: int, length: int, drop: bool) -> Any:
    """Return the indices of a window; with `drop`, out-of-bounds indices unless the window fits a dim of `length`."""
    first = _as_int(start)
    steps = Mul()(Iota((size,), 0, _INT)(), full((size,), stride, _INT))
    indices = Add()(Broadcast((size,), ())(first), steps)
    if not drop:
        return indices
    last = full((), length - 1 - (size - 1) * stride, _INT)
    inside = And()(Compare("GE")(first, zeros_like(first)), Compare("LE")(first, last))
    return Select()(Broadcast((size,), ())(inside), indices, full((size,), length, _INT))


def _as_int(x: "ArrayLike") -> Any:
    operand = as_operand(x, "ds")
    return operand if operand.type.dtype == _INT and not operand.type.weak else Convert(_INT)(operand)
