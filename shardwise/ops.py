"""Sums of parts of an array whose elements say to which part they belong, as `jax.ops` has them.

On a mesh each device makes the sums of its own elements, and these are joined: `num_segments` rows move, no element.
"""

import operator
from typing import Any, NoReturn

import numpy as np

from shardwise.compiler.ir.types import highest, is_integer, lowest
from shardwise.compiler.ops import along_axes
from shardwise.compiler.ops.indexing import mode_of, moved_inside
from shardwise.compiler.ops.operands import as_operand, composed, type_of
from shardwise.compiler.ops.scatter import Scatter
from shardwise.compiler.ops.shape import Reshape, full
from shardwise.errors import ConcretizationTypeError, not_here
from shardwise.lax.shape import laid_out

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]


def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The sums of the rows of `data` that have one number: row i of the result is that of rows whose id is i.

    There is a row for each id up to the largest; of ids of the program nobody knows the largest: there give
    `num_segments`. An id outside of it, also a negative one, is left out, or with mode "clip" means the nearest. The
    other rows are 0. `bucket_size` says how many are added up at once; it changes nothing here but roundings.

    >>> jax.ops.segment_sum(jnp.array([1, 2, 3]), jnp.array([0, 0, 2]))
    Array([3, 0, 3], dtype=int32)
    """
    given = (indices_are_sorted, unique_indices, bucket_size, mode, out_sharding)
    return _segments("segment_sum", "add", data, segment_ids, num_segments, *given)


def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The products of the rows of `data` that have one number, as `segment_sum` makes sums; of none it is 1.

    >>> jax.ops.segment_prod(jnp.array([2, 3, 4]), jnp.array([0, 0, 2]))
    Array([6, 1, 4], dtype=int32)
    """
    given = (indices_are_sorted, unique_indices, bucket_size, mode, out_sharding)
    return _segments("segment_prod", "mul", data, segment_ids, num_segments, *given)


def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The largest of the rows of `data` that have one number, as `segment_sum`; of none the least that there is.

    >>> jax.ops.segment_max(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 0, 2]))
    Array([  2., -inf,   3.], dtype=float32)
    """
    given = (indices_are_sorted, unique_indices, bucket_size, mode, out_sharding)
    return _segments("segment_max", "max", data, segment_ids, num_segments, *given)


def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The smallest of the rows of `data` that have one number, as `segment_sum`; of none the largest that there is.

    >>> jax.ops.segment_min(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 0, 2]))
    Array([ 1., inf,  3.], dtype=float32)
    """
    given = (indices_are_sorted, unique_indices, bucket_size, mode, out_sharding)
    return _segments("segment_min", "min", data, segment_ids, num_segments, *given)


def _segments(
    name: str,
    how: str,
    data: Any,
    segment_ids: Any,
    num_segments: int | None,
    is_sorted: bool,
    unique: bool,
    bucket_size: int | None,
    mode: Any,
    out_sharding: Any,
) -> Any:
    rows, ids = type_of(data, name), type_of(segment_ids, name)
    if not is_integer(ids.dtype):
        raise TypeError(f"{name}: segment_ids must be integers, not {ids}")
    if ids.ndim != 1 or ids.shape != rows.shape[:1]:
        raise ValueError(f"{name}: segment_ids {ids} are not one for each row of {rows}")
    if how == "add" and rows.dtype == np.bool_:
        raise TypeError(f"{name}: booleans have no sum; convert {rows} to integers")
    if bucket_size is not None and operator.index(bucket_size) < 1:
        raise ValueError(f"{name}: bucket_size is at least 1, not {bucket_size}")
    if num_segments is None:
        try:
            count = int(along_axes.amax(segment_ids)) + 1 if ids.size else 0
        except ConcretizationTypeError:
            raise ConcretizationTypeError(
                f"{name}: segment_ids are traced, so nobody knows the largest, and the shape of the result. "
                f"Say how many segments there are: `{name}(data, segment_ids, num_segments=...)`"
            ) from None
        count = max(count, 0)
    else:
        count = operator.index(num_segments)
        if count < 0:
            raise ValueError(f"{name}: num_segments cannot be negative: {count}")
    clips = mode_of(name, mode, "drop") == "clip"
    found = _met(data, segment_ids, how=how, count=count, sorted=is_sorted, unique=unique, clips=clips)
    return laid_out(found, out_sharding)


@composed
def _met(data: Any, segment_ids: Any, *, how: str, count: int, sorted: bool, unique: bool, clips: bool) -> Any:
    x, ids = as_operand(data), as_operand(segment_ids)
    rest = x.type.shape[1:]
    dtype = x.type.dtype
    start = {"add": 0, "mul": 1, "max": lowest(dtype), "min": highest(dtype)}[how]
    window = tuple(range(1, x.type.ndim))
    op = Scatter(window, (0,), (), (), (0,), how=how, sorted=sorted, unique=unique)
    places = Reshape((ids.type.size, 1))(ids)
    shape = (count, *rest)
    if clips and count:
        places = moved_inside(op, shape, (1, *rest), places)
    return op(full(shape, start, dtype), places, x)


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.ops", name, __all__)
