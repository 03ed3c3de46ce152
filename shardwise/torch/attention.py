"""PyTorch's scaled_dot_product_attention by `dot_product_attention`: blockwise for long sequences, cuDNN's on GPUs."""

import torch

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.nn.attention import dot_product_attention
from shardwise.torch._torchax import Tensor, environment

_FUNCTION = torch.nn.functional.scaled_dot_product_attention
_TORCHAX = environment()._ops[_FUNCTION].func  # by a full matrix of scores; it drops weights too


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention of tensors [..., heads, rows, head dim] as PyTorch does.

    Dropout of the weights, values of another head dim, and batch dims that broadcast are computed by torchax.
    """
    heads = key.shape[-3:-2] if enable_gqa else query.shape[-3:-2]
    regular = (
        query.ndim >= 3
        and tuple(key.shape) == (*query.shape[:-3], *heads, key.shape[-2], query.shape[-1])
        and key.shape == value.shape
        and query.dtype == key.dtype == value.dtype
    )
    if dropout_p or not regular:
        return _TORCHAX(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, env=environment())
    bias = mask = None
    if attn_mask is not None:
        array = attn_mask.jax().reshape((1,) * (query.ndim - attn_mask.ndim) + tuple(attn_mask.shape))
        if any(size != 1 for size in array.shape[:-3]):
            array = jnp.broadcast_to(array, (*query.shape[:-3], *array.shape[-3:]))
        array = _merge_batch(array)
        has_key = (array if array.dtype == bool else array > -jnp.inf).any(-1, keepdims=True)
        bias, mask = (None, array) if array.dtype == bool else (jnp.where(has_key, array, 0), None)
    q, k, v = (_merge_batch(x.jax()).transpose(0, 2, 1, 3) for x in (query, key, value))
    attended = dot_product_attention(q, k, v, bias, mask, scale=scale, is_causal=is_causal).transpose(0, 2, 1, 3)
    if attn_mask is not None:  # PyTorch returns 0 for a query without keys
        attended = jnp.where(has_key, attended, 0)
    return Tensor(attended.reshape(query.shape), environment())


def _merge_batch(x: Array) -> Array:
    """Reshape [..., heads, rows, columns] to four dims."""
    return x.reshape(-1, *x.shape[-3:])
