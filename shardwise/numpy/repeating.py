"""Functions that move or repeat elements along dims: roll, rot90, fliplr, flipud, repeat, tile."""

import operator
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.base.docstrings import Parameter, documented
from shardwise.compiler.arrays import methods
from shardwise.compiler.arrays.arithmetic import minimum, remainder
from shardwise.compiler.arrays.exact_operands import needs_out_sharding
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function, concrete_value, integer_tuple, type_of
from shardwise.compiler.arrays.promotion import default_dtype
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ir.jax_checks import is_sharded
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.roll import Roll
from shardwise.compiler.ops.shape.slicing import Concatenate
from shardwise.errors import ShardingError
from shardwise.lax import shape as lax_shape
from shardwise.numpy.families import ARRAYS, NOT_AN_INTEGER
from shardwise.numpy.indexing import take
from shardwise.numpy.joining import flip
from shardwise.numpy.ordering import cumsum, searchsorted
from shardwise.numpy.shapes import swapaxes
from shardwise.typing import ArrayLike, OutSharding

_MATRICES = ARRAYS.extended(
    {
        "m": Parameter("the array, with at least 2 dims.", "TypeError: if {} is not an array."),
        "k": Parameter("the number of rotations by 90 degrees. Negative numbers rotate the other way.", NOT_AN_INTEGER),
    },
    "The reversed array.",
    ["ValueError: if `m` has fewer than 2 dims."],
)


@documented(ARRAYS, returns="The shifted array, with the shape and dtype of `a`.")
def roll(a: ArrayLike, shift: ArrayLike | Sequence[ArrayLike], axis: int | Sequence[int] | None = None) -> Array:
    """Shift the elements of an array cyclically along one or several axes.

    Elements that leave one end re-enter at the other. Along a sharded dim, a static shift exchanges only the elements
    that cross a shard boundary.

    Args:
        shift: the number of positions, or one number per axis. It may be traced.
        axis: the axis or axes to shift along. Several shifts along one axis add up. With None, the flattened array is
            shifted, and the result has the shape of `a`.

    Raises:
        TypeError: if `shift` is not integral.
        ValueError: if an axis does not exist, or the numbers of shifts and axes differ and neither is 1.

    Example:
        >>> jnp.roll(jnp.arange(5), 2)
        Array([3, 4, 0, 1, 2], dtype=int32)
    """
    a_type = type_of(a, "roll")
    if axis is None:
        flat = methods.reshape(a, shape=-1)
        return methods.reshape(roll(flat, shift, 0), shape=a_type.shape) if a_type.ndim else flat.reshape(())
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    shifts = _shift_list(shift)
    if 1 not in (len(axes), len(shifts)) and len(axes) != len(shifts):
        raise ValueError(
            f"roll: got {len(shifts)} shifts for {len(axes)} axes: shift {shift}, axis {axis}; pass one shift per axis"
        )
    pairs = zip_longest(axes, shifts, fillvalue=axes[0] if len(axes) < len(shifts) else shifts[0])
    static_shifts: dict[int, int] = {}
    rolled = as_operand(a, "roll")
    for one_axis, one_shift in pairs:
        dim = canonical_axis("roll", one_axis, a_type.ndim)
        if not is_integer(type_of(one_shift, "roll").dtype):
            raise TypeError(f"roll: shift must be integers, not {shift!r}")
        if isinstance(one_shift, Array):
            rolled = _roll_dynamic(rolled, one_shift, dim=dim)
        else:
            static_shifts[dim] = static_shifts.get(dim, 0) + int(one_shift)
    sizes = a_type.shape
    steps = tuple((dim, by % sizes[dim]) for dim, by in static_shifts.items() if sizes[dim] and by % sizes[dim])
    return _roll_static(rolled, steps=steps) if steps else rolled


def _shift_list(shift: ArrayLike | Sequence[ArrayLike]) -> list[Any]:
    if isinstance(shift, (list, tuple)):
        return list(shift)
    return list(as_operand(shift)) if type_of(shift, "roll").ndim else [shift]


@compiled_function
def _roll_static(x: ArrayLike, *, steps: tuple[tuple[int, int], ...]) -> Any:
    """Roll by static `(dim, shift)` pairs; each is one halo exchange along a sharded dim."""
    x = as_operand(x)
    for dim, shift in steps:
        x = Roll(dim, shift)(x)
    return x


@compiled_function
def _roll_dynamic(x: ArrayLike, shift: ArrayLike, *, dim: int) -> Any:
    """Roll by a traced shift: a dynamic slice of the array concatenated with itself."""
    x, by = as_operand(x), as_operand(shift, "roll")
    size = x.type.shape[dim]
    if not size:
        return x
    index = default_dtype("int*")
    start = remainder(-methods.astype(remainder(by, full((), size, by.type.dtype)), dtype=index), size)
    zero = full((), 0, index)
    starts = [start if d == dim else zero for d in range(x.type.ndim)]
    return DynamicSlice(x.type.shape)(Concatenate(dim)(x, x), *starts)


@documented(_MATRICES, returns="The rotated array.")
def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Rotate an array by multiples of 90 degrees in the plane of two axes.

    Args:
        axes: the two axes of the plane. The rotation goes from the first towards the second.

    Raises:
        ValueError: if `m` has fewer than 2 dims, or `axes` are not two different dims of it.

    Example:
        >>> jnp.rot90(jnp.array([[1, 2], [3, 4]]))
        Array([[2, 4],
               [1, 3]], dtype=int32)
    """
    m_type = type_of(m, "rot90")
    if m_type.ndim < 2:
        raise ValueError(f"rot90: needs an array of 2 or more dims, not {m_type}")
    first, second = (canonical_axis("rot90", axis, m_type.ndim) for axis in axes)
    if first == second:
        raise ValueError(f"rot90: axes must be two different dims, not {axes}")
    turns = operator.index(k) % 4
    if turns == 0:
        return as_operand(m)
    if turns == 2:
        return flip(m, (first, second))
    return flip(swapaxes(m, first, second), first) if turns == 1 else swapaxes(flip(m, first), first, second)


@documented(_MATRICES)
def fliplr(m: ArrayLike) -> Array:
    """Reverse the order of elements along dim 1.

    Example:
        >>> jnp.fliplr(jnp.array([[1, 2], [3, 4]]))
        Array([[2, 1],
               [4, 3]], dtype=int32)
    """
    return flip(m, 1)


@documented(_MATRICES, raises=["ValueError: if `m` has no dims."])
def flipud(m: ArrayLike) -> Array:
    """Reverse the order of elements along dim 0.

    Args:
        m: the array, with at least 1 dim.

    Example:
        >>> jnp.flipud(jnp.array([[1, 2], [3, 4]]))
        Array([[3, 4],
               [1, 2]], dtype=int32)
    """
    return flip(m, 0)


def tile(A: ArrayLike, reps: int | Sequence[int]) -> Array:
    """Concatenate copies of an array along each dim.

    Args:
        A: the array. Dims of size 1 are prepended if `reps` has more entries than it has dims.
        reps: the number of copies along each dim, aligned with the last dims.

    Returns:
        The tiled array.

    Raises:
        TypeError: if `A` is not an array or a scalar, or `reps` are not integers.
        ValueError: if an entry of `reps` is negative.

    Example:
        >>> jnp.tile(jnp.array([1, 2]), (2, 2))
        Array([[1, 2, 1, 2],
               [1, 2, 1, 2]], dtype=int32)
    """
    sizes = type_of(A, "tile").shape
    counts = integer_tuple(reps)
    rank = max(len(counts), len(sizes))
    operand = methods.reshape(A, shape=(1,) * (rank - len(sizes)) + sizes)
    return lax_shape.tile(operand, (1,) * (rank - len(counts)) + counts)


@documented(ARRAYS, returns="The array with repeated elements.")
def repeat(
    a: ArrayLike,
    repeats: ArrayLike,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Repeat each element of an array along an axis.

    Args:
        repeats: the number of copies: one integer, or one for each element along `axis`.
        axis: the axis to repeat along. With None, the flattened array is used.
        total_repeat_length: the size of the result along `axis`. Longer results are truncated, shorter ones are padded
            with the last element. Required if `repeats` is traced.

    Raises:
        TypeError: if `repeats` is not integral.
        ValueError: if `repeats` has the wrong size, or negative entries without `total_repeat_length`, or `axis` does
            not exist.
        ConcretizationTypeError: if `repeats` is traced and `total_repeat_length` is not given.

    Example:
        >>> jnp.repeat(jnp.array([1, 2, 3]), jnp.array([2, 0, 1]))
        Array([1, 1, 3], dtype=int32)
    """
    x = as_operand(a, "repeat")
    if out_sharding is None and needs_out_sharding(x) and (axis is None or is_sharded(x.type, (axis,))):
        raise ShardingError(
            f"repeat: JAX infers no sharding of the result for {x.type}: pass `out_sharding=P(...)`. The setting "
            "jax_compatibility is 'exact'."
        )
    if axis is None:
        x, axis = methods.reshape(x, shape=-1), 0
    dim = canonical_axis("repeat", axis, x.type.ndim)
    repeats_type = type_of(repeats, "repeat")
    if not is_integer(repeats_type.dtype):
        raise TypeError(f"repeat: repeats must be integers, not {repeats_type}")
    size = x.type.shape[dim]
    if repeats_type.ndim > 1 or (repeats_type.size not in (1, size)):
        raise ValueError(
            f"repeat: repeats must be one count, or one for each of the {size} elements along dim {dim} of {x.type}, "
            f"not {repeats_type}"
        )
    if total_repeat_length is None:
        unknown = "the shape of the result is unknown. Pass it: `repeat(a, repeats, total_repeat_length=...)`"
        with decided_by(out_sharding):
            repeated = _repeat_static(x, dim, concrete_value("repeat", repeats, unknown))
        return constrain_sharding(repeated, out_sharding)
    if not size:
        return constrain_sharding(x, out_sharding)
    counts = methods.broadcast_to(repeats, shape=(size,))
    length = operator.index(total_repeat_length)
    with decided_by(out_sharding):
        repeated = take(x, _source_indices(counts, size=size, length=length), dim)
    return constrain_sharding(repeated, out_sharding)


def _repeat_static(x: Array, dim: int, counts: np.ndarray) -> Any:
    """Repeat by concrete counts. A single count is a broadcast, which needs no gather."""
    if counts.min(initial=0) < 0:
        raise ValueError(f"repeat: a count cannot be negative: {counts.min()}")
    if counts.size == 1:
        return _repeat_uniform(x, dim=dim, count=int(counts.reshape(())))
    return take(x, np.repeat(np.arange(x.type.shape[dim], dtype=np.int32), counts), dim, mode="clip")


@compiled_function
def _repeat_uniform(x: Array, *, dim: int, count: int) -> Any:
    shape = x.type.shape
    broadcast_dims = tuple(d + (d > dim) for d in range(len(shape)))
    copies = Broadcast((*shape[: dim + 1], count, *shape[dim + 1 :]), broadcast_dims)(x)
    return Reshape((*shape[:dim], shape[dim] * count, *shape[dim + 1 :]))(copies)


@compiled_function
def _source_indices(counts: ArrayLike, *, size: int, length: int) -> Any:
    """Return the index of the source element for each of `length` results: the first whose last copy comes after it."""
    ends = cumsum(as_operand(counts), dtype=default_dtype("int*"))
    sources = searchsorted(ends, Iota((length,), 0, default_dtype("int*"))(), side="right")
    return minimum(sources, size - 1)
