"""The operands of attention over a sharded sequence: checks, and how they enter and leave the region over the axis."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import StrategyError
from shardwise.parallel.axis_region import AxisRegion, MeshAxes, vary_alike
from shardwise.parallel.ring import ring_region, shard_spec
from shardwise.typing import ArrayLike

LAYOUTS = ("contiguous", "zigzag")


@final
@dataclass(frozen=True)
class SequenceAttention:
    """The static description of one call.

    Attributes:
        axes: the names of the mesh axes that shard the sequence.
        size: the number of devices along them.
        scale: the factor of the scores.
        causal: whether a query is masked from the keys after it.
        zigzag: whether the sequence has the zigzag order.
        has_segments: whether there are segment ids.
    """

    axes: tuple[str, ...]
    size: int
    scale: float
    causal: bool
    zigzag: bool
    has_segments: bool


# The attention of one device: its shards of query, key and value [B, T, N, H], and its segment ids [B, T] if any.
ShardFunction = Callable[[SequenceAttention, Array, Array, Array, tuple[Array, ...]], Array]


def run_attention(
    name: str,
    shard_function: ShardFunction,
    check: Callable[[SequenceAttention, ArrayType, ArrayType], None],
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    axis: MeshAxes,
    causal: bool,
    segment_ids: ArrayLike | None,
    scale: float | None,
    layout: str,
    mesh: Mesh | AbstractMesh | None,
) -> Array:
    """Check the arguments of the public function `name`, and run `shard_function` on every device's shards.

    `check` raises errors that only this function has, given the types of the shards of query and key.
    """
    if layout not in LAYOUTS:
        raise StrategyError(f"{name}: layout must be 'contiguous' or 'zigzag', not {layout!r}")
    region = ring_region(name, axis, mesh)
    arrays = [query, key, value, *([] if segment_ids is None else [segment_ids])]
    types = [type_of(x, name) for x in arrays]
    _check_types(name, types, causal)
    attention = SequenceAttention(
        axes=region.axes,
        size=region.size,
        scale=1.0 / math.sqrt(types[0].shape[-1]) if scale is None else float(scale),
        causal=bool(causal),
        zigzag=layout == "zigzag",
        has_segments=segment_ids is not None,
    )
    query_shard, key_shard = (
        _shard_type(name, region, type, what, attention.zigzag)
        for type, what in ((types[0], "the sequence of the queries"), (types[1], "the sequence of the keys"))
    )
    check(attention, query_shard, key_shard)
    is_batched = types[0].ndim == 4
    arrays = [jnp.asarray(x) if is_batched else jnp.asarray(x)[None] for x in arrays]

    def on_shards(*shards: Array) -> Array:
        q, k, v, *segments = vary_alike(*lax.pcast(shards, region.axes, to="varying"))
        return shard_function(attention, q, k, v, tuple(segments))

    spec = shard_spec(region, 1)
    out = region.run(on_shards, (spec,) * len(arrays), spec, *arrays)
    return out if is_batched else out[0]


def _check_types(name: str, types: list[ArrayType], causal: bool) -> None:
    """Check the ranks, dtypes and sizes of query, key, value and the optional segment ids."""
    query, key, value = types[:3]
    if query.ndim not in (3, 4) or key.ndim != query.ndim:
        raise StrategyError(
            f"{name}: query and key must be [B,T,N,H] and [B,S,K,H], or both without B, not {query} and {key}"
        )
    if (value.shape, value.dtype) != (key.shape, key.dtype):
        raise StrategyError(f"{name}: value must have the shape and dtype of key, {key}, not {value}")
    if not jnp.issubdtype(query.dtype, jnp.floating):
        raise StrategyError(f"{name}: query, key and value must be floating-point arrays, not {query}")
    lead = query.shape[:-3]
    if query.dtype != key.dtype or lead != key.shape[:-3] or query.shape[-1] != key.shape[-1]:
        raise StrategyError(f"{name}: query {query} must have the dtype, the batch dim and the last dim of key {key}")
    if not key.shape[-2] or query.shape[-2] % key.shape[-2]:
        raise StrategyError(f"{name}: the number of heads of query {query} must be a multiple of that of key {key}")
    if (causal or types[3:]) and query.shape[-3] != key.shape[-3]:
        needs = "causal attention needs" if causal else "segment ids need"
        raise StrategyError(f"{name}: {needs} as many queries as keys, not {query.shape[-3]} and {key.shape[-3]}")
    if types[3:]:
        segments, expected = types[3], (*lead, query.shape[-3])
        if segments.shape != expected or not jnp.issubdtype(segments.dtype, jnp.integer):
            raise StrategyError(f"{name}: segment_ids must be integers of shape {expected}, not {segments}")


def _shard_type(name: str, region: AxisRegion, type: ArrayType, what: str, zigzag: bool) -> ArrayType:
    """Return the type of a shard, with the batch dim."""
    length = type.shape[-3]
    size = region.shard_size(name, what, length)
    if zigzag and size % 2:
        raise StrategyError(
            f"{name}: {what} is {region.global_size(length)}, which is not divisible by {2 * region.size}, the number "
            "of chunks in zigzag order"
        )
    lead = type.shape[:-3] or (1,)
    return type.with_shape((*lead, size, *type.shape[-2:]))
