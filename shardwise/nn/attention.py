"""dot_product_attention: with a full score matrix, blockwise over the keys, or by cuDNN's fused kernel.

Arrays are BTNH: batch, sequence, heads, head dim. With grouped-query attention, a group of G query heads shares one of
K key heads: internally the heads are two dims, K and G, and the scores are [B, K, T, G, S]. The batch dim, the heads
and the query sequence pass through, so sharding along these needs no communication.

For long sequences the score matrix is never materialized (`blockwise_attention.py`): the size of the residuals grows
with T, not with T · S. On GPUs, cuDNN's flash attention kernel is used where it supports the arguments.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

import ml_dtypes
import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.attention_calls import attention_calls
from shardwise.api.transformations.custom import custom_vjp
from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_list_function, type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.fused_attention import FusedAttention, FusedAttentionGrad
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.nn import blockwise_attention as blockwise
from shardwise.nn.blockwise_attention import AttentionOptions, attention_scores, blockwise_attention
from shardwise.nn.normalization import softmax
from shardwise.runtime.client import default_lowering_platform
from shardwise.typing import ArrayLike

# Number of scores per head from which on they are computed blockwise: 4 MiB of f32. Below it, the loop costs more.
MIN_BLOCKWISE_SCORES = 2**20

_F32 = np.dtype(np.float32)


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[False] = False,
) -> Array: ...


@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any: ...


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """Compute scaled dot-product attention: `softmax(query · keyᵀ · scale + bias) · value`.

    Multi-head, multi-query and grouped-query attention are chosen by the numbers of heads N and K. The batch dim B may
    be missing from all of `query`, `key` and `value`. A query for which all keys are masked returns the mean of all
    values.

    Args:
        query: an array [B, T, N, H].
        key: an array [B, S, K, H]; N is a multiple of K.
        value: an array with the shape and dtype of `key`.
        bias: an array that broadcasts to [B, N, T, S] and is added to the scores.
        mask: a boolean array that broadcasts to [B, N, T, S], True where a query attends to a key.
        scale: the factor of the scores; by default `1 / sqrt(H)`.
        is_causal: whether a query is masked from the keys after it.
        query_seq_lengths: i32[B], the number of valid queries per sequence; the result is 0 for the others.
        key_value_seq_lengths: i32[B], the number of valid keys per sequence; the others are masked.
        local_window_size: the numbers of keys before and after the query that it attends to, as a tuple or as one
            number for both.
        implementation: "xla", "cudnn", or None to choose the faster one that supports the arguments.
        return_residual: whether to return the log-sum-exp of the scores too.

    Returns:
        An array with the shape of `query`; with `return_residual`, a tuple of it and the log-sum-exp of the scores,
        [B, T, N].

    Raises:
        TypeError: if an argument is not an array.
        ValueError: if the shapes or dtypes of the arrays do not match, or if `implementation` is unknown.
        NotImplementedError: if `implementation` is "cudnn" and cuDNN does not support the platform or the arguments.

    Example:
        >>> x = jnp.ones((1, 2, 1, 4))
        >>> jax.nn.dot_product_attention(x, x, x, is_causal=True).shape
        (1, 2, 1, 4)
    """
    name = "dot_product_attention"
    if implementation not in (None, "xla", "cudnn"):
        raise ValueError(f"{name}: implementation must be None, 'xla' or 'cudnn', not {implementation!r}")
    window = (local_window_size, local_window_size) if isinstance(local_window_size, int) else local_window_size
    optional = {
        "bias": bias,
        "mask": mask,
        "query_seq_lengths": query_seq_lengths,
        "key_value_seq_lengths": key_value_seq_lengths,
    }
    passed = {argument: array for argument, array in optional.items() if array is not None}
    optional_types = {argument: type_of(array, name) for argument, array in passed.items()}
    query_type, key_type, value_type = (type_of(x, name) for x in (query, key, value))
    _check_types(query_type, key_type, value_type, optional_types)
    head_dim = query_type.shape[-1]
    factor = 1.0 / math.sqrt(head_dim) if scale is None else float(scale)
    options = AttentionOptions(factor, bool(is_causal), window, tuple(passed))
    obstacle = _cudnn_obstacle(options, query_type)
    if implementation == "cudnn" and obstacle:
        raise NotImplementedError(f"{name}: cuDNN's kernel cannot be used: {obstacle}. Leave out `implementation`.")
    if implementation == "cudnn" or (implementation is None and prefers_fused(options, query_type)):
        options = replace(options, fused=True)
    if attention_calls.value is not None and not return_residual:
        result = attention_calls.value(query, key, value, options)
        if result is not None:
            return result
    results = compiled_attention(query, key, value, *passed.values(), options=options, residual=return_residual)
    return tuple(results) if return_residual else results[0]


def _check_types(query: ArrayType, key: ArrayType, value: ArrayType, optional: dict[str, ArrayType]) -> None:
    name = "dot_product_attention"
    if query.ndim not in (3, 4) or key.ndim != query.ndim:
        raise ValueError(
            f"{name}: query and key must be [B,T,N,H] and [B,S,K,H], or both without B, not {query} and {key}"
        )
    if value.plain != key.plain:
        raise ValueError(f"{name}: value must have the type of key, {key}, not {value}")
    lead = query.shape[: query.ndim - 3]
    if query.dtype != key.dtype or lead != key.shape[: key.ndim - 3] or query.shape[-1] != key.shape[-1]:
        raise ValueError(f"{name}: query {query} must have the dtype, the batch dim and the last dim of key {key}")
    if not key.shape[-2] or query.shape[-2] % key.shape[-2]:
        raise ValueError(f"{name}: the number of heads of query {query} must be a multiple of that of key {key}")
    batch = lead or (1,)
    score_shape = (*batch, query.shape[-2], query.shape[-3], key.shape[-3])
    for argument, type in optional.items():
        if argument in ("bias", "mask"):
            padded = (1,) * (4 - type.ndim) + type.shape
            if len(padded) != 4 or any(size not in (1, full) for size, full in zip(padded, score_shape, strict=True)):
                raise ValueError(f"{name}: {argument} must broadcast to [B,N,T,S], {score_shape}, not {type}")
            if argument == "mask" and type.dtype != np.bool_:
                raise ValueError(f"{name}: mask must have dtype bool, not {type}")
        elif type != ArrayType(batch, np.int32):
            raise ValueError(f"{name}: {argument} must be i32 of shape {batch}, not {type}")


def prefers_fused(options: AttentionOptions, query: ArrayType) -> bool:
    """Return whether a fused kernel supports a call and is faster: cuDNN's, or on simulated TPUs one of the same kind.

    The kernel needs a mask as an array of all scores, which the blockwise computation does not materialize.
    """
    if options.optional_names:
        return False
    if config.target_platform == "tpu":  # programs for TPUs use a kernel of their own, such as splash attention
        return not _window_obstacle(options)
    return not _cudnn_obstacle(options, query)


def _cudnn_obstacle(options: AttentionOptions, query: ArrayType) -> str:
    """Return why cuDNN's kernel does not support a call; the empty string if it does."""
    if (platform := default_lowering_platform()) != "cuda":
        return f"the platform is {platform!r}"
    if query.dtype not in (np.float16, ml_dtypes.bfloat16):
        return f"it computes in bf16 and f16, not in {query}"
    # cuDNN has kernels for heads of up to 256 on Hopper. They are used where programs are planned for GPUs, as in
    # `simulate`, and not where they run: they have not been tested there.
    widest = 256 if config.target_platform == "gpu" else 128
    if query.shape[-1] % 8 or query.shape[-1] > widest:
        return f"the last dim must be a multiple of 8 up to {widest}, not {query.shape[-1]}"
    if others := [argument for argument in options.optional_names if argument != "mask"]:
        return f"{others[0]} is not supported"
    return _window_obstacle(options)


def _window_obstacle(options: AttentionOptions) -> str:
    """Return why fused kernels do not support the window of a call; the empty string if they do."""
    if options.window is not None and not (options.is_causal and options.window[1] == 0):
        return "a window must be causal, with no keys after the query"
    return ""


@compiled_list_function
def compiled_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *arrays: ArrayLike,
    options: AttentionOptions,
    residual: bool = False,
) -> list[Any]:
    """Return the result, and with `residual` the log-sum-exp of the scores. `arrays` are the optional arrays."""
    q, k, v = (_with_batch(as_operand(x)) for x in (query, key, value))
    shape = type_of(query).shape
    if options.fused:
        out, log_sums = _fused_attention(options, q, k, v, tuple(_mask_to_bias(as_operand(x), q, k) for x in arrays))
        log_sums = lax.stop_gradient(permute(log_sums, (0, 2, 1))).astype(k.dtype)
        return [out.reshape(shape), *([log_sums.reshape(shape[:-1])] if residual else [])]
    batch, rows, heads, head_dim = q.type.shape
    key_heads = k.type.shape[2]
    q = Reshape((batch, rows, key_heads, heads // key_heads, head_dim))(q)
    optional = {
        argument: _group_heads(as_operand(x), q.type) if argument in ("bias", "mask") else as_operand(x)
        for argument, x in options.by_name(arrays).items()
    }
    is_long = k.type.shape[1] > blockwise.BLOCK_SIZE and rows * k.type.shape[1] >= MIN_BLOCKWISE_SCORES
    attend = blockwise_attention if is_long else _full_attention
    out, row_max, row_sum = attend(options, q, k, v, tuple(optional.values()))
    if (lengths := optional.get("query_seq_lengths")) is not None:
        is_valid = jnp.arange(rows)[None, :] < lengths[:, None]
        out = out * is_valid[:, :, None, None, None].astype(out.dtype)
    results = [out.reshape(shape)]
    if residual:
        log_sums = lax.stop_gradient(row_max + jnp.log(row_sum)).astype(k.dtype)  # [B, K, T, G]
        results.append(permute(log_sums, (0, 2, 1, 3)).reshape(shape[:-1]))
    return results


def _mask_to_bias(mask: Array, q: Array, k: Array) -> Any:
    """Return a bias that masks scores: 0 or a large negative number. Batch and head dims of size 1 stay 1."""
    mask = Reshape((1,) * (4 - mask.type.ndim) + mask.type.shape)(mask)
    mask = jnp.broadcast_to(mask, (*mask.type.shape[:2], q.type.shape[1], k.type.shape[1]))
    return jnp.where(
        mask, q.type.dtype.type(0), q.type.dtype.type(-(2.0**41) if q.type.dtype.name == "bfloat16" else -6e4)
    )


@partial(custom_vjp, nondiff_argnums=(0,))
def _fused_attention(options: AttentionOptions, q: Array, k: Array, v: Array, bias: tuple[Any, ...]) -> Any:
    """Return the result [B, T, N, H] and the log-sum-exp of the scores [B, N, T], by one kernel."""
    return FusedAttention(options.scale, options.is_causal, _window_length(options))(q, k, v, *bias)


def _fused_forward(options: AttentionOptions, q: Array, k: Array, v: Array, bias: tuple[Any, ...]) -> Any:
    out, log_sums = _fused_attention(options, q, k, v, bias)
    return (out, log_sums), (q, k, v, bias, out, log_sums)


def _fused_backward(options: AttentionOptions, residuals: Any, cotangents: Any) -> Any:
    q, k, v, bias, out, log_sums = residuals
    op = FusedAttentionGrad(options.scale, options.is_causal, _window_length(options))
    # The bias comes from a boolean mask, and the gradient of the sums is stopped: neither has a cotangent.
    return *op(q, k, v, log_sums, out, cotangents[0], *bias), (None,) * len(bias)


_fused_attention.defvjp(_fused_forward, _fused_backward)


def _window_length(options: AttentionOptions) -> int:
    """Return the maximum number of keys per query, including the one at its own position; 0 for no limit."""
    return 0 if options.window is None else options.window[0] + 1


def _with_batch(x: Array) -> Any:
    return x if x.type.ndim == 4 else Reshape((1, *x.type.shape))(x)


def _group_heads(x: Array, query: ArrayType) -> Any:
    """Reshape a bias or mask that broadcasts to [B, N, T, S] so that it broadcasts to [B, K, T, G, S]."""
    sizes = (1,) * (4 - x.type.ndim) + x.type.shape
    heads = (1, 1) if sizes[1] == 1 else query.shape[2:4]
    return permute(x.reshape(sizes[0], *heads, *sizes[2:]), (0, 1, 3, 2, 4))


def _full_attention(
    options: AttentionOptions, q: Array, k: Array, v: Array, arrays: tuple[Array, ...]
) -> tuple[Any, Any, Any]:
    """Return the result [B, T, K, G, H]; and per row of scores the maximum, and the sum of `exp(score - maximum)`."""
    scores, _ = attention_scores(options, q, k, options.by_name(arrays), 0)
    weights = softmax(scores, axis=4).astype(k.dtype)  # the only residual of this size
    out = Dot(((4,), (1,)), ((0, 1), (0, 2)))(weights, v)
    fixed = lax.stop_gradient(scores)
    row_max = jnp.max(fixed, axis=4, initial=-np.inf)
    return permute(out, (0, 2, 1, 3, 4)), row_max, jnp.exp(fixed - row_max[..., None]).sum(4)
