"""Ring attention: keys and values travel around the ring of devices, and every device attends to all of them.

Device i starts with block i of the keys and values, and in step s it has block i - s. It merges the attention to each
block by the log-sum-exp of the scores (online softmax), while the next block is sent. The backward pass is a ring
too: blocks travel again, each with the sum of its cotangents so far, which goes home in the last step.

    step      0        1        2        3
    device 0  block 0  block 3  block 2  block 1
    device 1  block 1  block 0  block 3  block 2
    device 2  block 2  block 1  block 0  block 3
    device 3  block 3  block 2  block 1  block 0

Causal attention does not compute blocks that are fully masked. In contiguous order, device i attends to i + 1 blocks.
In zigzag order (see `zigzag.py`), every device computes half of each block after its own: all queries attend to the
first half of the keys of a device before it, and the second half of the queries to all keys of a device after it.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax, tree
from shardwise.api.control import cond
from shardwise.api.transformations.custom import custom_vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import StrategyError
from shardwise.nn.attention import prefers_fused
from shardwise.nn.blockwise_attention import AttentionOptions
from shardwise.parallel.attention_operands import SequenceAttention, run_attention
from shardwise.parallel.axis_region import MeshAxes
from shardwise.parallel.partial_attention import Partial, attend_part, attend_part_gradients
from shardwise.parallel.ring import Ring, repeat_steps
from shardwise.parallel.zigzag_exchange import exchange_from_zigzag, exchange_to_zigzag
from shardwise.typing import ArrayLike

_T = TypeVar("_T")
_Block: TypeAlias = tuple[Array, ...]  # keys and values, stacked along dim 2, and the segment ids of the keys if any
_Residuals: TypeAlias = tuple[Array, Array, Array, tuple[Array, ...], Array, Array]
_F32 = np.dtype(np.float32)


def ring_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    axis: MeshAxes,
    causal: bool = False,
    segment_ids: ArrayLike | None = None,
    scale: float | None = None,
    layout: str = "contiguous",
    balanced: bool = False,
    mesh: Mesh | AbstractMesh | None = None,
) -> Array:
    """Compute attention over a sequence that is sharded along a mesh axis: keys and values travel around a ring.

    The result is that of `nn.dot_product_attention`. No device holds more than two blocks of the keys and values, nor
    scores of more than 512 keys at a time. The backward pass saves the operands, the output and the log-sum-exp of the
    scores. Other mesh axes may shard the batch and the heads.

    Inside a `shard_map` over `axis`, the operands and the result are shards.

    Args:
        query: an array [B, T, N, H], or [T, N, H].
        key: an array [B, S, K, H]; N is a multiple of K.
        value: an array with the shape and dtype of `key`.
        axis: the mesh axis that shards the sequence, or a tuple of axes.
        causal: whether a query is masked from the keys after it.
        segment_ids: an integer array [B, T]; a query attends only to keys with its own id. It needs T = S.
        scale: the factor of the scores; by default `1 / sqrt(H)`.
        layout: "contiguous", or "zigzag" if the sequence has the order of `zigzag`, in which causal attention gives
            every device the same work.
        balanced: with `causal` and contiguous order, whether the operands are exchanged for shards in zigzag order, and
            the result back. All devices then have the same work, and send queries, keys, values and results once more.
        mesh: the mesh; by default the current one.

    Returns:
        An array with the shape and dtype of `query`.

    Raises:
        StrategyError: if the mesh has no such axis, if the shapes or dtypes do not match, if the devices do not divide
            the sequence, if `layout` is unknown, or if `balanced` is passed without `causal`, or with a zigzag order.
        TypeError: if an operand is not an array.

    Example:
        >>> mesh = jax.make_mesh((4,), ("sequence",))
        >>> x = jnp.ones((1, 8, 2, 4))
        >>> jax.parallel.ring_attention(x, x, x, axis="sequence", causal=True, mesh=mesh).sharding.spec
        P(None, 'sequence')
    """
    if balanced and (not causal or layout == "zigzag"):
        raise StrategyError("ring_attention: balanced=True needs causal=True and layout='contiguous'")
    attend, order = (_attend_exchanged, "zigzag") if balanced else (_attend_shards, layout)
    options = (axis, causal, segment_ids, scale, order, mesh)
    return run_attention("ring_attention", attend, _check_nothing, query, key, value, *options)


def _check_nothing(attention: SequenceAttention, query: ArrayType, key: ArrayType) -> None:
    """Accept any number of heads."""


@partial(custom_vjp, nondiff_argnums=(0,))
def _attend_shards(attention: SequenceAttention, q: Array, k: Array, v: Array, segments: tuple[Array, ...]) -> Array:
    """Return the result of one device's queries."""
    return _forward(attention, q, k, v, segments)[0]


def _forward(
    attention: SequenceAttention, q: Array, k: Array, v: Array, segments: tuple[Array, ...]
) -> tuple[Array, _Residuals]:
    """Return the result, and the residuals: the operands, the result and the log-sum-exp of the scores."""
    ring, size = Ring(attention.axes, attention.size), attention.size
    own = (jnp.stack([k, v], 2), *segments)  # keys and values travel together
    result = _attend(attention, q, own, segments, attention.causal)

    def step(carry: tuple[Partial, _Block], number: int | Array) -> tuple[Partial, _Block]:
        result, block = carry
        following = ring.rotate(block)
        return _attend_block(attention, number, result, q, block, segments), following

    if size > 1:
        carry = result, ring.rotate(own)
        result, block = repeat_steps(step, carry, 1, size - 1)
        result = _attend_block(attention, size - 1, result, q, block, segments)
    out = result.out.astype(q.dtype)
    return out, (q, k, v, segments, out, result.log_sum)


def _backward(
    attention: SequenceAttention, residuals: _Residuals, ct_out: Array
) -> tuple[Array, Array, Array, tuple[None, ...]]:
    """Return the cotangents of the operands."""
    q, k, v, segments, out, log_sum = residuals
    ring, size = Ring(attention.axes, attention.size), attention.size
    rows = _Rows(q, out, log_sum, ct_out, segments)
    own = (jnp.stack([k, v], 2), *segments)
    ct_q, ct_own = _gradients(attention, rows, own, attention.causal)

    def add_terms(number: int | Array, ct_q: Array, ct_block: Array, block: _Block) -> tuple[Array, Array]:
        """Add this device's terms to the cotangents of a block, which arrive while the terms are computed."""
        arriving = ring.rotate(ct_block)
        ct_q_term, term = _block_gradients(attention, number, rows, block)
        return ct_q + ct_q_term, arriving + term

    def step(carry: tuple[Array, Array, _Block], number: int | Array) -> tuple[Array, Array, _Block]:
        ct_q, ct_block, block = carry
        following = ring.rotate(block)
        return *add_terms(number, ct_q, ct_block, block), following

    if size > 1:
        block = ring.rotate(own)
        ct_q_term, ct_block = _block_gradients(attention, 1, rows, block)
        ct_q = ct_q + ct_q_term
        if size > 2:
            carry = ct_q, ct_block, ring.rotate(block)
            ct_q, ct_block, block = repeat_steps(step, carry, 2, size - 1)
            ct_q, ct_block = add_terms(size - 1, ct_q, ct_block, block)
        ct_own = ct_own + ring.rotate(ct_block)
    ct_own = ct_own.astype(k.dtype)
    return ct_q.astype(q.dtype), ct_own[:, :, 0], ct_own[:, :, 1], (None,) * len(segments)


_attend_shards.defvjp(_forward, _backward)


def _attend_exchanged(attention: SequenceAttention, q: Array, k: Array, v: Array, segments: tuple[Array, ...]) -> Array:
    """Return the result of one device's queries in contiguous order, by attention in zigzag order."""
    ring = Ring(attention.axes, attention.size)
    pair = exchange_to_zigzag(jnp.stack([k, v], 2), ring)
    q, *ids = (exchange_to_zigzag(x, ring) for x in (q, *segments))
    out = _attend_shards(attention, q, pair[:, :, 0], pair[:, :, 1], tuple(ids))
    return exchange_from_zigzag(out, ring)


class _Rows(NamedTuple):
    """Queries, their outputs with log-sum-exp and cotangents, and their segment ids; the sequence is dim 1 of all."""

    q: Array
    out: Array
    log_sum: Array
    ct_out: Array
    segments: tuple[Array, ...]


def _options(attention: SequenceAttention, q: Array, is_causal: bool) -> AttentionOptions:
    names = ("query_segment_ids", "key_segment_ids") if attention.has_segments else ()
    options = AttentionOptions(attention.scale, is_causal, optional_names=names)
    return replace(options, fused=prefers_fused(options, q.type))


def _attend(
    attention: SequenceAttention, q: Array, block: _Block, segments: tuple[Array, ...], is_causal: bool
) -> Partial:
    """Return the attention of the queries `q`, with the segment ids `segments`, to one block."""
    pair, *key_segments = block
    options = _options(attention, q, is_causal)
    return attend_part(options, q, pair[:, :, 0], pair[:, :, 1], (*segments, *key_segments))


def _gradients(attention: SequenceAttention, rows: _Rows, block: _Block, is_causal: bool) -> tuple[Array, Array]:
    """Return the terms of one block in the cotangent of the queries, and those of `rows` in that of the block."""
    pair, *key_segments = block
    arrays = (*rows.segments, *key_segments)
    ct_q, ct_k, ct_v = attend_part_gradients(
        _options(attention, rows.q, is_causal),
        rows.q,
        pair[:, :, 0],
        pair[:, :, 1],
        arrays,
        rows.out,
        rows.log_sum,
        rows.ct_out,
    )
    return ct_q, jnp.stack([ct_k, ct_v], 2)


def _attend_block(
    attention: SequenceAttention,
    number: int | Array,
    result: Partial,
    q: Array,
    block: _Block,
    segments: tuple[Array, ...],
) -> Partial:
    """Merge the attention to the block of step `number` with the result so far."""

    def attend_all(result: Partial) -> Partial:
        return result.merge(_attend(attention, q, block, segments, False))

    def attend_first_keys(result: Partial) -> Partial:
        return result.merge(_attend(attention, q, _half(block, 0), segments, False))

    def attend_last_queries(result: Partial) -> Partial:
        last = _half(result, 1).merge(_attend(attention, _half(q, 1), block, _half(segments, 1), False))
        return Partial(*(jnp.concatenate(halves, 1) for halves in zip(_half(result, 0), last, strict=True)))

    if not attention.causal:
        return attend_all(result)
    if attention.zigzag:
        return cond(_comes_from_before(attention, number), attend_first_keys, attend_last_queries, result)
    return cond(_comes_from_before(attention, number), attend_all, lambda result: result, result)


def _block_gradients(
    attention: SequenceAttention, number: int | Array, rows: _Rows, block: _Block
) -> tuple[Array, Array]:
    """Return the terms of the block of step `number`, as `_gradients` does."""

    def of_all(rows: _Rows, block: _Block) -> tuple[Array, Array]:
        return _gradients(attention, rows, block, False)

    def of_nothing(rows: _Rows, block: _Block) -> tuple[Array, Array]:
        return jnp.zeros_like(rows.q, dtype=_F32), jnp.zeros_like(block[0], dtype=_F32)

    def of_first_keys(rows: _Rows, block: _Block) -> tuple[Array, Array]:
        ct_q, first = _gradients(attention, rows, _half(block, 0), False)
        return ct_q, jnp.concatenate([first, jnp.zeros_like(first)], 1)

    def of_last_queries(rows: _Rows, block: _Block) -> tuple[Array, Array]:
        last, ct_block = _gradients(attention, _half(rows, 1), block, False)
        return jnp.concatenate([jnp.zeros_like(last), last], 1), ct_block

    if not attention.causal:
        return of_all(rows, block)
    if attention.zigzag:
        return cond(_comes_from_before(attention, number), of_first_keys, of_last_queries, rows, block)
    return cond(_comes_from_before(attention, number), of_all, of_nothing, rows, block)


def _comes_from_before(attention: SequenceAttention, number: int | Array) -> Array:
    """Return whether the block of step `number` is that of a device before this one."""
    return number <= lax.axis_index(attention.axes)


def _half(x: _T, which: int) -> _T:
    """Return the first or second half of the sequence, dim 1, of the arrays of a pytree."""
    return tree.map(lambda leaf: jnp.split(leaf, 2, 1)[which], x)
