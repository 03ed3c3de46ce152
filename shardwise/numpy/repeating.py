"""Elements moved along dims and repeated: roll, rot90, fliplr, flipud, repeat, tile."""

import operator
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import Typed, is_integer
from shardwise.compiler.ops import methods
from shardwise.compiler.ops.dynamic import DynamicSlice
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.numeric import minimum, remainder
from shardwise.compiler.ops.operands import as_operand, composed, known, type_of
from shardwise.compiler.ops.promote import default_dtype
from shardwise.compiler.ops.roll import Roll
from shardwise.compiler.ops.shape import Broadcast, Iota, Reshape, full
from shardwise.compiler.ops.slicing import Concatenate
from shardwise.lax import shape as lax_shape
from shardwise.lax.shape import laid_out
from shardwise.numpy.indexing import take
from shardwise.numpy.joining import flip
from shardwise.numpy.ordering import cumsum, searchsorted
from shardwise.numpy.shapes import swapaxes


def roll(a: Any, shift: Any, axis: int | Sequence[int] | None = None) -> Any:
    """The elements moved by `shift` places along `axis`, those that leave one end coming in at the other.

    Without an axis, the elements in a row are moved. Several shifts are for several axes, or add up along one. A shift
    may be an array of the program. Along a cut dim, devices send their neighbours what passes the cuts.

    >>> jnp.roll(jnp.arange(5), 2)
    Array([3, 4, 0, 1, 2], dtype=int32)
    """
    kind = type_of(a, "roll")
    if axis is None:
        row = methods.reshape(a, shape=-1)
        return methods.reshape(roll(row, shift, 0), shape=kind.shape) if kind.ndim else row.reshape(())
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    shifts = _parts(shift)
    if 1 not in (len(axes), len(shifts)) and len(axes) != len(shifts):
        raise ValueError(f"roll: {len(shifts)} shifts are not for {len(axes)} axes: {shift} and {axis}")
    pairs = zip_longest(axes, shifts, fillvalue=axes[0] if len(axes) < len(shifts) else shifts[0])
    known: dict[int, int] = {}
    moved = as_operand(a, "roll")
    for one, by in pairs:
        dim = dim_of("roll", one, kind.ndim)
        if not is_integer(type_of(by, "roll").dtype):
            raise TypeError(f"roll: shift must be integers, not {shift!r}")
        if isinstance(by, Typed):
            moved = _rolled_by(moved, by, dim=dim)
        else:
            known[dim] = known.get(dim, 0) + int(by)
    steps = tuple((dim, by % kind.shape[dim]) for dim, by in known.items() if kind.shape[dim] and by % kind.shape[dim])
    return _rolled(moved, steps=steps) if steps else moved


def _parts(shift: Any) -> list[Any]:
    """The shifts, one by one."""
    if isinstance(shift, (list, tuple)):
        return list(shift)
    return list(shift) if type_of(shift, "roll").ndim else [shift]


@composed
def _rolled(x: Any, *, steps: tuple[tuple[int, int], ...]) -> Any:
    """One exchange with the neighbours for each dim."""
    x = as_operand(x)
    for dim, by in steps:
        x = Roll(dim, by)(x)
    return x


@composed
def _rolled_by(x: Any, shift: Any, *, dim: int) -> Any:
    """By a shift of the program: a slice of the array put after itself, that begins where the shift says."""
    x, by = as_operand(x), as_operand(shift, "roll")
    size = x.type.shape[dim]
    if not size:
        return x
    index = default_dtype("int*")
    start = remainder(-methods.astype(remainder(by, full((), size, by.type.dtype)), dtype=index), size)
    zero = full((), 0, index)
    starts = [start if d == dim else zero for d in range(x.type.ndim)]
    return DynamicSlice(x.type.shape)(Concatenate(dim)(x, x), *starts)


def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """Turned `k` times by a right angle in the plane of two axes, from the first towards the second.

    >>> jnp.rot90(jnp.array([[1, 2], [3, 4]]))
    Array([[2, 4],
           [1, 3]], dtype=int32)
    """
    kind = type_of(m, "rot90")
    if kind.ndim < 2:
        raise ValueError(f"rot90: needs an array of 2 or more dims, not {kind}")
    one, two = (dim_of("rot90", axis, kind.ndim) for axis in axes)
    if one == two:
        raise ValueError(f"rot90: the axes of a plane differ, unlike {axes}")
    quarter = operator.index(k) % 4
    if quarter == 0:
        return as_operand(m)
    if quarter == 2:
        return flip(m, (one, two))
    return flip(swapaxes(m, one, two), one) if quarter == 1 else swapaxes(flip(m, one), one, two)


def fliplr(m: Any) -> Any:
    """The elements in opposite order along dim 1.

    >>> jnp.fliplr(jnp.array([[1, 2], [3, 4]]))
    Array([[2, 1],
           [4, 3]], dtype=int32)
    """
    return flip(m, 1)


def flipud(m: Any) -> Any:
    """The elements in opposite order along dim 0.

    >>> jnp.flipud(jnp.array([[1, 2], [3, 4]]))
    Array([[3, 4],
           [1, 2]], dtype=int32)
    """
    return flip(m, 0)


def tile(A: Any, reps: int | Sequence[int]) -> Any:
    """`A` one after the other, `reps[i]` times along each dim i; the last counts are for the last dims.

    >>> jnp.tile(jnp.array([1, 2]), (2, 2))
    Array([[1, 2, 1, 2],
           [1, 2, 1, 2]], dtype=int32)
    """
    sizes = type_of(A, "tile").shape
    counts = tuple(map(operator.index, reps)) if isinstance(reps, Sequence) else (operator.index(reps),)
    rank = max(len(counts), len(sizes))
    raised = methods.reshape(A, shape=(1,) * (rank - len(sizes)) + sizes)
    return lax_shape.tile(raised, (1,) * (rank - len(counts)) + counts)


def repeat(
    a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None, out_sharding: Any = None
) -> Any:
    """Each element along `axis` several times; without an axis, of all elements in a row.

    `repeats` is one count, or one for each element. Counts of the program need `total_repeat_length`, the size of the
    result: what is too long is cut off, and the last element follows where it is too short.

    >>> jnp.repeat(jnp.array([1, 2, 3]), jnp.array([2, 0, 1]))
    Array([1, 1, 3], dtype=int32)
    """
    x = as_operand(a, "repeat")
    if axis is None:
        x, axis = methods.reshape(x, shape=-1), 0
    dim = dim_of("repeat", axis, x.type.ndim)
    counts = type_of(repeats, "repeat")
    if not is_integer(counts.dtype):
        raise TypeError(f"repeat: repeats must be integers, not {counts}")
    size = x.type.shape[dim]
    if counts.ndim > 1 or (counts.size not in (1, size)):
        raise ValueError(f"repeat: needs one count, or one for each of the {size} elements of {x.type}, not {counts}")
    if total_repeat_length is None:
        unknown = "nobody knows how long the result is. Say how long: `repeat(a, repeats, total_repeat_length=...)`"
        return laid_out(_repeated(x, dim, known("repeat", repeats, unknown)), out_sharding)
    if not size:
        return laid_out(x, out_sharding)
    spread = methods.broadcast_to(repeats, shape=(size,))
    length = operator.index(total_repeat_length)
    return laid_out(take(x, _sources(spread, size=size, length=length), dim), out_sharding)


def _repeated(x: Any, dim: int, counts: Any) -> Any:
    """By counts that are known: one for all is a broadcast, which needs no places."""
    if counts.min(initial=0) < 0:
        raise ValueError(f"repeat: a count cannot be negative: {counts.min()}")
    if counts.size == 1:
        return _evenly(x, dim=dim, count=int(counts.reshape(())))
    return take(x, np.repeat(np.arange(x.type.shape[dim], dtype=np.int32), counts), dim, mode="clip")


@composed
def _evenly(x: Any, *, dim: int, count: int) -> Any:
    shape = x.type.shape
    after = tuple(d + (d > dim) for d in range(len(shape)))
    spread = Broadcast((*shape[: dim + 1], count, *shape[dim + 1 :]), after)(x)
    return Reshape((*shape[:dim], shape[dim] * count, *shape[dim + 1 :]))(spread)


@composed
def _sources(counts: Any, *, size: int, length: int) -> Any:
    """Which element each of the result is: the first whose last copy comes after it."""
    ends = cumsum(as_operand(counts), dtype=default_dtype("int*"))
    found = searchsorted(ends, Iota((length,), 0, default_dtype("int*"))(), side="right")
    return minimum(found, size - 1)
