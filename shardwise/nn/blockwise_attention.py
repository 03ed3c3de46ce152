"""Attention by a loop over blocks of keys, with a running maximum and sum (online softmax).

The score matrix is never materialized: the backward pass recomputes the scores of each block. Queries are
[B, T, K, G, H], where a group of G query heads shares one of K key heads; keys and values are [B, S, K, H], and scores
[B, K, T, G, S].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import ml_dtypes
import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.control import scan
from shardwise.api.transformations.custom import custom_vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import astype_weak
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, permute

BLOCK_SIZE = 512  # number of keys per block: enough for a matrix product that keeps a device busy

_F32 = np.dtype(np.float32)
# The dim of each optional array that counts keys.
_KEY_DIMS = {"bias": 4, "mask": 4, "key_segment_ids": 1}


@final
@dataclass(frozen=True)
class AttentionOptions:
    """The static options of one call, and the names of the optional arrays that it has besides q, k and v.

    The optional arrays are `bias` and `mask`, which broadcast to the scores, `query_seq_lengths` and
    `key_value_seq_lengths` [B], and `query_segment_ids` [B, T] and `key_segment_ids` [B, S]: a query attends only to
    keys of its own segment.
    """

    scale: float
    is_causal: bool
    window: tuple[int, int] | None = None
    optional_names: tuple[str, ...] = ()
    fused: bool = False  # whether cuDNN's kernel is used

    def by_name(self, arrays: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.optional_names, arrays, strict=True))


def attention_scores(
    options: AttentionOptions, q: Array, k: Array, optional: dict[str, Any], first_key: Array | int
) -> tuple[Any, Any]:
    """Return the masked scores of all queries with the keys `k`, and the mask (None if there is none).

    `first_key` is the index of the first of these keys. A masked score is a large negative number and not -inf, so that
    the softmax of a fully masked row is finite.
    """
    wide = np.dtype(np.float64) if q.type.dtype == np.float64 else _F32
    scores = Dot(((4,), (3,)), ((0, 2), (0, 2)), None if wide == q.type.dtype else wide)(q, k)
    scores = scores * wide.type(options.scale)
    if (bias := optional.get("bias")) is not None:
        scores = (scores + bias).astype(wide)
    mask = _score_mask(options, scores.type, optional, first_key)
    if mask is not None:
        largest = min(float(ml_dtypes.finfo(wide).max), float(np.finfo(_F32).max))  # type: ignore[no-untyped-call]
        scores = jnp.where(mask, scores, wide.type(-0.7 * largest))
    return astype_weak(scores, _F32, False), mask


def _score_mask(options: AttentionOptions, scores: ArrayType, optional: dict[str, Any], first_key: Array | int) -> Any:
    """Return the conjunction of all masks, which broadcasts to [B, K, T, G, S]; None if there are none."""
    user_mask = optional.get("mask")
    rows = Iota((1, 1, scores.shape[2], 1, 1), 2, np.dtype(np.int32))()
    columns = Iota((1, 1, 1, 1, scores.shape[4]), 4, np.dtype(np.int32))() + first_key
    masks = [] if user_mask is None else [user_mask]
    if options.is_causal:
        masks.append(columns <= rows)
    if options.window is not None:
        before, after = options.window
        masks += [rows <= columns + before, rows >= columns - after]
    for argument, positions in (("query_seq_lengths", rows), ("key_value_seq_lengths", columns)):
        if argument in optional:
            masks.append(positions < optional[argument].reshape(-1, 1, 1, 1, 1))
    if "query_segment_ids" in optional:
        query_ids, key_ids = optional["query_segment_ids"], optional["key_segment_ids"]
        masks.append(query_ids[:, None, :, None, None] == key_ids[:, None, None, None, :])
    combined = None
    for mask in masks:
        combined = mask if combined is None else combined & mask
    return combined


def attend_blocks(
    options: AttentionOptions, q: Array, k: Array, v: Array, optional: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """Return the result in f32 [B, K, T, G, H]; and per row the maximum, and the sum of `exp(score - maximum)`."""
    size, block_count, keys, values = _blocks_of(k, v)

    def step(carry: tuple[Array, Array, Array], number: Array) -> Any:
        out, row_max, row_sum = carry
        start = number * size
        scores, _ = _block_scores(options, q, keys, optional, start, k.type.shape[1], size)
        new_max = jnp.maximum(row_max, scores.max(4))
        # A bias may make all scores of a row -inf so far; subtracting a maximum of -inf would be NaN.
        shift = jnp.where(new_max == -np.inf, 0.0, new_max)
        exps, correction = jnp.exp(scores - shift[..., None]), jnp.exp(row_max - shift)
        accumulate = Dot(((4,), (1,)), ((0, 1), (0, 2)), _accumulation_dtype(v.type.dtype))
        block_out = accumulate(exps.astype(v.dtype), _block(values, start, 1, size))
        return (out * correction[..., None] + block_out, new_max, row_sum * correction + exps.sum(4)), None

    zeros = _zeros_of_queries(q)
    start = (zeros, jnp.full_like(zeros[..., 0], -np.inf), zeros[..., 0])
    (out, row_max, row_sum), _ = scan(step, start, jnp.arange(block_count))
    return out / row_sum[..., None], row_max, row_sum


def attend_blocks_gradients(
    options: AttentionOptions,
    q: Array,
    k: Array,
    v: Array,
    optional: dict[str, Any],
    ct_out: Array,
    mean: Array,
    row_max: Array,
    row_sum: Array,
) -> tuple[Any, Any, Any, Any]:
    """Recompute the scores block by block, and return the cotangents of q, k, v and the bias, the first three in f32.

    The weights are `exp(scores - row_max) / row_sum`, and `mean` is the weighted mean of their cotangents along each
    row; all three are [B, K, T, G], and may belong to more keys than `k` has. The cotangent of q is [B, K, T, G, H].
    """
    size, block_count, keys, values = _blocks_of(k, v)
    key_count = k.type.shape[1]

    def step(ct_q: Array, number: Array) -> Any:
        start = number * size
        scores, mask = _block_scores(options, q, keys, optional, start, key_count, size)
        weights = jnp.exp(scores - row_max[..., None]) / row_sum[..., None]
        wide = _accumulation_dtype(v.type.dtype)
        ct_v = Dot(((2, 3), (1, 3)), ((0, 1), (0, 2)), wide)(weights.astype(v.dtype), ct_out)
        ct_weights = Dot(((4,), (3,)), ((0, 2), (0, 2)), wide)(ct_out, _block(values, start, 1, size))
        ct_scores = weights * (ct_weights - mean[..., None])
        if mask is not None:
            ct_scores = jnp.where(mask, ct_scores, 0)
        ct_bias = _sum_to_shape(ct_scores, optional["bias"].type) if "bias" in optional else None
        scaled = (ct_scores * np.float32(options.scale)).astype(k.dtype)
        ct_k = Dot(((2, 3), (1, 3)), ((0, 1), (0, 2)), wide)(scaled, q)
        block_ct_q = Dot(((4,), (1,)), ((0, 1), (0, 2)), wide)(scaled, _block(keys, start, 1, size))
        return ct_q + block_ct_q, (ct_k, ct_v, ct_bias)

    ct_q, (ct_k, ct_v, ct_bias) = scan(step, _zeros_of_queries(q), jnp.arange(block_count))
    # `scan` stacks the blocks along a new first dim: [block_count, B, K, block, H].
    ct_k, ct_v = (_concatenate_blocks(x, (1, 0, 3, 2, 4), 1, key_count) for x in (ct_k, ct_v))
    if ct_bias is not None and optional["bias"].type.shape[4] == 1:
        ct_bias = ct_bias.sum(0)
    elif ct_bias is not None:
        ct_bias = _concatenate_blocks(ct_bias, (1, 2, 3, 4, 0, 5), 4, key_count)
    return ct_q, ct_k, ct_v, ct_bias


@partial(custom_vjp, nondiff_argnums=(0,))
def blockwise_attention(
    options: AttentionOptions, q: Array, k: Array, v: Array, arrays: tuple[Array, ...]
) -> tuple[Any, Any, Any]:
    """Return the result [B, T, K, G, H]; and per row of scores the maximum, and the sum of `exp(score - maximum)`."""
    out, row_max, row_sum = attend_blocks(options, q, k, v, options.by_name(arrays))
    return permute(out.astype(v.dtype), (0, 2, 1, 3, 4)), row_max, row_sum


def _blockwise_forward(options: AttentionOptions, q: Array, k: Array, v: Array, arrays: tuple[Array, ...]) -> Any:
    out, row_max, row_sum = blockwise_attention(options, q, k, v, arrays)
    return (out, row_max, row_sum), (q, k, v, arrays, out, row_max, row_sum)


def _blockwise_backward(options: AttentionOptions, residuals: Any, cotangents: Any) -> Any:
    """Return the cotangents of the operands.

    `row_sum` has a cotangent under a second derivative. The cotangent of `row_max` is ignored: a shift of the maximum
    cancels between the exponentials and their sum.
    """
    q, k, v, arrays, out, row_max, row_sum = residuals
    optional = options.by_name(arrays)
    ct_out, _, ct_sum = cotangents
    mean = weights_mean(out, ct_out) - row_sum * ct_sum
    ct_q, ct_k, ct_v, ct_bias = attend_blocks_gradients(options, q, k, v, optional, ct_out, mean, row_max, row_sum)
    ct_q = permute(ct_q, (0, 2, 1, 3, 4)).astype(q.dtype)
    ct_arrays = tuple(ct_bias.astype(x.dtype) if name == "bias" else None for name, x in optional.items())
    return ct_q, ct_k.astype(k.dtype), ct_v.astype(v.dtype), ct_arrays


blockwise_attention.defvjp(_blockwise_forward, _blockwise_backward)


def weights_mean(out: Array, ct_out: Array) -> Any:
    """Return the weighted mean of the weights' cotangents along each row, [B, K, T, G], of arrays [B, T, K, G, H]."""
    return permute((ct_out.astype(_F32) * out.astype(_F32)).sum(4), (0, 2, 1, 3))


def _zeros_of_queries(q: Array) -> Any:
    """Return f32 zeros [B, K, T, G, H] with the sharding that the type of `q` has along Explicit axes."""
    return jnp.zeros_like(permute(q, (0, 2, 1, 3, 4)), dtype=_F32)


def _accumulation_dtype(dtype: DType) -> DType | None:
    """Return the dtype in which products are accumulated; None for their own dtype."""
    return None if dtype.itemsize >= _F32.itemsize else _F32


def _blocks_of(k: Array, v: Array) -> tuple[int, int, Any, Any]:
    """Return the size of a block, the number of blocks, and the keys and values padded to a multiple of the size."""
    size = min(BLOCK_SIZE, k.type.shape[1])
    return size, -(-k.type.shape[1] // size), _pad_to_blocks(k, 1, size), _pad_to_blocks(v, 1, size)


def _pad_to_blocks(x: Array, dim: int, size: int) -> Any:
    """Pad `dim` with zeros at the end to a multiple of the block size."""
    padding = -x.type.shape[dim] % size
    config = [(0, padding if d == dim else 0, 0) for d in range(x.type.ndim)]
    return lax.pad(x, x.type.dtype.type(0), config) if padding else x


def _block(x: Array, start: Array, dim: int, size: int) -> Any:
    return lax.dynamic_slice_in_dim(x, start, size, dim)


def _block_scores(
    options: AttentionOptions, q: Array, keys: Array, optional: dict[str, Any], start: Array, key_count: int, size: int
) -> tuple[Any, Any]:
    """Return the scores of one block of keys, -inf in the padding after the last key; and their mask."""
    block_optional = {
        argument: _block(_pad_to_blocks(x, dim, size), start, dim, size)
        if (dim := _KEY_DIMS.get(argument)) is not None and x.type.shape[dim] > 1
        else x
        for argument, x in optional.items()
    }
    scores, mask = attention_scores(options, q, _block(keys, start, 1, size), block_optional, start)
    if not key_count % size:
        return scores, mask
    is_valid = Iota((1, 1, 1, 1, size), 4, np.dtype(np.int32))() + start < key_count
    return jnp.where(is_valid, scores, -np.inf), mask


def _sum_to_shape(x: Array, type: ArrayType) -> Any:
    """Sum `x` along the dims that have size 1 in `type`."""
    dims = tuple(dim for dim in range(x.type.ndim) if type.shape[dim] == 1 and x.type.shape[dim] > 1)
    return x.sum(dims, keepdims=True) if dims else x


def _concatenate_blocks(blocks: Array, order: tuple[int, ...], dim: int, size: int) -> Any:
    """Concatenate blocks, stacked along dim 0, along `dim`, and drop the padding.

    `order` is a permutation of the dims that puts dim 0 right before the blocks' own dim.
    """
    x = permute(blocks, order)
    shape = (*x.type.shape[:dim], x.type.shape[dim] * x.type.shape[dim + 1], *x.type.shape[dim + 2 :])
    return lax.slice_in_dim(Reshape(shape)(x), 0, size, axis=dim)
