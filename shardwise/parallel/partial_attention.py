"""Attention of queries to a part of the keys: partial results, how to merge them, and the gradients of a part.

A partial result is the attention to some keys, in f32 [B, T, N, H], and the log-sum-exp of the scores of these keys,
f32 [B, T, N]. The results of all parts merge to the attention to all keys. The gradients of a part need the output and
the log-sum-exp over all keys, and nothing else of the other parts.
"""

from typing import NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.contract.fused_attention import FusedAttention, FusedAttentionGrad
from shardwise.compiler.ops.shape.movement import permute
from shardwise.nn.blockwise_attention import (
    AttentionOptions,
    attend_blocks,
    attend_blocks_gradients,
    weights_mean,
)

_F32 = np.dtype(np.float32)


class Partial(NamedTuple):
    """The attention to some keys, and the log-sum-exp of their scores."""

    out: Array
    log_sum: Array

    def merge(self, other: "Partial") -> "Partial":
        """Return the attention to the keys of both; at least one of them is not masked."""
        log_sum = jnp.logaddexp(self.log_sum, other.log_sum)
        terms = [part.out * jnp.exp(part.log_sum - log_sum)[..., None] for part in (self, other)]
        return Partial(terms[0] + terms[1], log_sum)


def attend_part(options: AttentionOptions, q: Array, k: Array, v: Array, arrays: tuple[Array, ...]) -> Partial:
    """Return the attention of `q` [B, T, N, H] to the keys `k` and values `v` [B, S, K, H]."""
    if options.fused:
        out, log_sum = FusedAttention(options.scale, options.is_causal)(q, k, v)
        return Partial(out.astype(_F32), permute(log_sum, (0, 2, 1)).astype(_F32))
    out, row_max, row_sum = attend_blocks(options, _group_heads(q, k), k, v, options.by_name(arrays))
    log_sum = permute(row_max + jnp.log(row_sum), (0, 2, 1, 3))
    return Partial(permute(out, (0, 2, 1, 3, 4)).reshape(q.shape), log_sum.reshape(q.shape[:-1]))


def attend_part_gradients(
    options: AttentionOptions,
    q: Array,
    k: Array,
    v: Array,
    arrays: tuple[Array, ...],
    out: Array,
    log_sum: Array,
    ct_out: Array,
) -> tuple[Array, Array, Array]:
    """Return the terms of a part of the keys in the cotangents of q, k and v, in f32.

    `out`, `log_sum` and `ct_out` are the output, the log-sum-exp and the cotangent of the attention to all keys.
    """
    if options.fused:
        op = FusedAttentionGrad(options.scale, options.is_causal)
        ct_q, ct_k, ct_v = op(q, k, v, permute(log_sum, (0, 2, 1)), out, ct_out)
        return ct_q.astype(_F32), ct_k.astype(_F32), ct_v.astype(_F32)
    grouped_q, grouped_out, grouped_ct = (_group_heads(x, k) for x in (q, out, ct_out))
    row_max = permute(log_sum.reshape(grouped_q.shape[:-1]), (0, 2, 1, 3))
    ct_q, ct_k, ct_v, _ = attend_blocks_gradients(
        options,
        grouped_q,
        k,
        v,
        options.by_name(arrays),
        grouped_ct,
        weights_mean(grouped_out, grouped_ct),
        row_max,
        jnp.ones((1, 1, 1, 1), _F32),  # the log-sum-exp normalizes the weights
    )
    return permute(ct_q, (0, 2, 1, 3, 4)).reshape(q.shape), ct_k, ct_v


def _group_heads(x: Array, k: Array) -> Array:
    """Reshape [B, T, N, H] to [B, T, K, G, H]."""
    key_heads = k.shape[2]
    return x.reshape(*x.shape[:2], key_heads, x.shape[2] // key_heads, x.shape[3])
