"""Segment reductions of `jax.ops`: segment_sum, segment_prod, segment_max and segment_min.

On a mesh each device reduces the rows of its own shard, and the `num_segments` partial results are all-reduced.
"""

import operator
from typing import Any

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by, unreduced_axes
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays import reductions
from shardwise.compiler.arrays.indexing import clip_indices, index_mode
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.reduction import MAX, MIN, PROD, SUM, Reduction
from shardwise.errors import ConcretizationTypeError
from shardwise.lax.indexing import GatherScatterMode
from shardwise.typing import ArrayLike, OutSharding

_SEGMENT = Family(
    {
        "data": "the array. Its rows, the slices along dim 0, are reduced.",
        "segment_ids": "the segment of each row, a 1-d array of integers.",
        "num_segments": "the number of segments. By default, the largest id plus 1. Required under `jit`.",
        "indices_are_sorted": "a promise that `segment_ids` are sorted.",
        "unique_indices": "a promise that `segment_ids` are unique.",
        "bucket_size": "accepted for compatibility; it must be positive and has no other effect.",
        "mode": 'the treatment of ids that are negative or not less than `num_segments`: "drop" (the\n'
        'default) ignores their rows, "clip" moves them to the nearest segment.',
        "out_sharding": "the sharding of the result.",
    },
    raises=[
        "ValueError: if there is not one id per row, `num_segments` is negative, or `bucket_size` or\n"
        "`mode` is invalid.",
        "ConcretizationTypeError: if `segment_ids` is traced and `num_segments` is not given.",
        "TypeError: if `segment_ids` are not integral.",
    ],
)


@documented(_SEGMENT)
def segment_sum(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | GatherScatterMode | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Sum the rows of an array by segment: row `i` of the result is the sum of the rows with id `i`.

    Returns:
        An array with one row per segment. Rows of empty segments are 0.

    Raises:
        TypeError: if `segment_ids` are not integral, or `data` is boolean.

    Example:
        >>> jax.ops.segment_sum(jnp.array([1, 2, 3]), jnp.array([0, 0, 2]))
        Array([3, 0, 3], dtype=int32)
    """
    options = (indices_are_sorted, unique_indices, bucket_size, mode, out_sharding)
    return _segment_reduce("segment_sum", SUM, data, segment_ids, num_segments, *options)


@documented(_SEGMENT)
def segment_prod(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | GatherScatterMode | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Multiply the rows of an array by segment: row `i` of the result is the product of the rows with id `i`.

    Returns:
        An array with one row per segment. Rows of empty segments are 1.

    Example:
        >>> jax.ops.segment_prod(jnp.array([2, 3, 4]), jnp.array([0, 0, 2]))
        Array([6, 1, 4], dtype=int32)
    """
    options = (indices_are_sorted, unique_indices, bucket_size, mode, out_sharding)
    return _segment_reduce("segment_prod", PROD, data, segment_ids, num_segments, *options)


@documented(_SEGMENT)
def segment_max(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | GatherScatterMode | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Compute the maximum of the rows of an array by segment: row `i` of the result is that of the rows with id `i`.

    Returns:
        An array with one row per segment. Rows of empty segments are the lowest value of the dtype.

    Example:
        >>> jax.ops.segment_max(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 0, 2]))
        Array([  2., -inf,   3.], dtype=float32)
    """
    options = (indices_are_sorted, unique_indices, bucket_size, mode, out_sharding)
    return _segment_reduce("segment_max", MAX, data, segment_ids, num_segments, *options)


@documented(_SEGMENT)
def segment_min(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: str | GatherScatterMode | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Compute the minimum of the rows of an array by segment: row `i` of the result is that of the rows with id `i`.

    Returns:
        An array with one row per segment. Rows of empty segments are the highest value of the dtype.

    Example:
        >>> jax.ops.segment_min(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 0, 2]))
        Array([ 1., inf,  3.], dtype=float32)
    """
    options = (indices_are_sorted, unique_indices, bucket_size, mode, out_sharding)
    return _segment_reduce("segment_min", MIN, data, segment_ids, num_segments, *options)


def _segment_reduce(
    name: str,
    reduction: Reduction,
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None,
    is_sorted: bool,
    unique: bool,
    bucket_size: int | None,
    mode: str | GatherScatterMode | None,
    out_sharding: OutSharding,
) -> Any:
    rows, ids = type_of(data, name), type_of(segment_ids, name)
    if not is_integer(ids.dtype):
        raise TypeError(f"{name}: segment_ids must be integers, not {ids}")
    if ids.ndim != 1 or ids.shape != rows.shape[:1]:
        raise ValueError(f"{name}: segment_ids must have one id for each row of {rows}, not {ids}")
    if reduction is SUM and rows.dtype == np.bool_:
        raise TypeError(f"{name}: cannot sum booleans; convert {rows} to integers")
    if bucket_size is not None and operator.index(bucket_size) < 1:
        raise ValueError(f"{name}: bucket_size must be at least 1, not {bucket_size}")
    if num_segments is None:
        try:
            count = int(reductions.amax(segment_ids)) + 1 if ids.size else 0
        except ConcretizationTypeError:
            raise ConcretizationTypeError(
                f"{name}: segment_ids are traced, so the shape of the result is unknown. "
                f"Pass the number of segments: `{name}(data, segment_ids, num_segments=...)`"
            ) from None
        count = max(count, 0)
    else:
        count = operator.index(num_segments)
        if count < 0:
            raise ValueError(f"{name}: num_segments cannot be negative: {count}")
    clips = index_mode(name, mode, "drop") == "clip"
    if reduction is not SUM and unreduced_axes(out_sharding):
        raise NotImplementedError(
            f"{name}: out_sharding is {out_sharding}, and an unreduced array is a sum over devices, which {name} is "
            "not: use another out_sharding"
        )
    with decided_by(out_sharding):
        result = _scatter_reduce(
            data, segment_ids, reduction=reduction, count=count, sorted=is_sorted, unique=unique, clips=clips
        )
    return constrain_sharding(result, out_sharding)


@compiled_function
def _scatter_reduce(
    data: ArrayLike,
    segment_ids: ArrayLike,
    *,
    reduction: Reduction,
    count: int,
    sorted: bool,
    unique: bool,
    clips: bool,
) -> Any:
    x, ids = as_operand(data), as_operand(segment_ids)
    row_shape = x.type.shape[1:]
    dtype = x.type.dtype
    window = tuple(range(1, x.type.ndim))
    scatter = Scatter(window, (0,), (), (), (0,), combine=reduction, sorted=sorted, unique=unique)
    indices = Reshape((ids.type.size, 1))(ids)
    shape = (count, *row_shape)
    if clips and count:
        indices = clip_indices(scatter, shape, (1, *row_shape), indices)
    return scatter(full(shape, reduction.neutral(dtype), dtype), indices, x)


publish(__name__)
