"""All-to-all attention (Ulysses): every device gets the whole sequence of some of the heads.

    [B, T/n, N, H]  ──all-to-all──▶  [B, T, N/n, H]  ──attention──▶  [B, T, N/n, H]  ──all-to-all──▶  [B, T/n, N, H]

Queries, keys and values travel in one all-to-all: the G query heads of a group, its key head and its value head are
beside each other. Device d gets the key heads d, n + d, 2n + d, …: other mesh axes may then shard the heads in
contiguous blocks, without further communication.
"""

from dataclasses import replace

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import StrategyError
from shardwise.nn.attention import compiled_attention, prefers_fused
from shardwise.nn.blockwise_attention import AttentionOptions
from shardwise.parallel.attention_operands import SequenceAttention, run_attention
from shardwise.parallel.axis_region import MeshAxes, axis_text
from shardwise.parallel.zigzag import unzigzag, zigzag
from shardwise.typing import ArrayLike


def ulysses_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    axis: MeshAxes,
    causal: bool = False,
    segment_ids: ArrayLike | None = None,
    scale: float | None = None,
    layout: str = "contiguous",
    mesh: Mesh | AbstractMesh | None = None,
) -> Array:
    """Compute attention over a sequence that is sharded along a mesh axis: all-to-alls shard the heads instead.

    The result is that of `nn.dot_product_attention`. Every device attends with all queries of its heads to all keys of
    these heads. Other mesh axes may shard the batch and the heads.

    Inside a `shard_map` over `axis`, the operands and the result are shards.

    Args:
        query: an array [B, T, N, H], or [T, N, H].
        key: an array [B, T, K, H]; N is a multiple of K, and K a multiple of the number of devices along `axis`.
        value: an array with the shape and dtype of `key`.
        axis: the mesh axis that shards the sequence, or a tuple of axes.
        causal: whether a query is masked from the keys after it.
        segment_ids: an integer array [B, T]; a query attends only to keys with its own id.
        scale: the factor of the scores; by default `1 / sqrt(H)`.
        layout: "contiguous", or "zigzag" if the sequence has the order of `zigzag`.
        mesh: the mesh; by default the current one.

    Returns:
        An array with the shape and dtype of `query`.

    Raises:
        StrategyError: if the mesh has no such axis, if the shapes or dtypes do not match, if the devices do not divide
            the sequence or the heads, or if `layout` is unknown.
        TypeError: if an operand is not an array.

    Example:
        >>> mesh = jax.make_mesh((4,), ("sequence",))
        >>> x = jnp.ones((1, 8, 4, 2))
        >>> jax.parallel.ulysses_attention(x, x, x, axis="sequence", causal=True, mesh=mesh).sharding.spec
        P(None, 'sequence')
    """
    options = (axis, causal, segment_ids, scale, layout, mesh)
    return run_attention("ulysses_attention", _attend_shards, _check_heads, query, key, value, *options)


def _check_heads(attention: SequenceAttention, query: ArrayType, key: ArrayType) -> None:
    """Check that the devices divide the key heads, and that there are as many queries as keys."""
    if key.shape[2] % attention.size:
        raise StrategyError(
            f"ulysses_attention: key has {key.shape[2]} heads, which the {attention.size} devices along "
            f"{axis_text(attention.axes)} do not divide. Use ring_attention, which needs no heads to divide."
        )
    if query.shape[1] != key.shape[1]:
        raise StrategyError(
            f"ulysses_attention: query and key must have the same sequence length, not {query.shape[1]} and "
            f"{key.shape[1]} per device. Use ring_attention."
        )


def _attend_shards(attention: SequenceAttention, q: Array, k: Array, v: Array, segments: tuple[Array, ...]) -> Array:
    """Return the result of one device's queries."""
    axes, size = attention.axes, attention.size
    batch, rows, heads, head_dim = q.shape
    key_heads = k.shape[2]
    group = heads // key_heads
    # [B, T/n, K/n, n, G + 2, H]: the dim of size n is the device that gets a head.
    parts = [x.reshape(batch, rows, key_heads // size, size, -1, head_dim) for x in (q, k, v)]
    joined = lax.all_to_all(jnp.concatenate(parts, 4), axes, split_axis=3, concat_axis=1, tiled=True)
    joined = joined.reshape(batch, rows * size, key_heads // size, group + 2, head_dim)
    if segments:
        gathered = lax.all_gather(segments[0], axes, axis=1, tiled=True)
        segments = (gathered, gathered)
    if attention.zigzag:
        joined, segments = unzigzag(joined, size), tuple(unzigzag(ids, size) for ids in segments)
    q, k, v = joined[:, :, :, :group], joined[:, :, :, group], joined[:, :, :, group + 1]
    names = ("query_segment_ids", "key_segment_ids") if segments else ()
    options = AttentionOptions(attention.scale, attention.causal, optional_names=names)
    q = q.reshape(batch, rows * size, heads // size, head_dim)
    options = replace(options, fused=prefers_fused(options, q.type))
    (out,) = compiled_attention(q, k, v, *segments, options=options)
    if attention.zigzag:
        out = zigzag(out, size)
    out = out.reshape(batch, rows * size, key_heads // size, 1, group, head_dim)
    return lax.all_to_all(out, axes, split_axis=1, concat_axis=3, tiled=True).reshape(batch, rows, heads, head_dim)
