"""dot_product_attention: each query's mean of the values, weighted by the softmax of its products with the keys.

Arrays are BTNH: batch, sequence, heads, and what is multiplied. Where there are fewer heads of keys than of queries,
several heads of queries, a group, share one: inside, heads are two dims, K of keys and G of a group, and scores are
[B, K, T, G, S]. Batch, heads and the queries' sequence pass through: cut along these, it needs no communication.

The scores of long sequences are never there as a whole: keys are taken in blocks, with a running maximum and sum, and
the backward pass makes each block's scores again. What is kept for it grows with T, not with T · S. On GPUs cuDNN's
kernel does all of this at once, for what it can.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import ml_dtypes
import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.control import scan
from shardwise.api.custom import custom_vjp
from shardwise.compiler.ir.types import ArrayType, DType
from shardwise.compiler.ops.dot import Dot
from shardwise.compiler.ops.fused_attention import FusedAttention, FusedAttentionGrad
from shardwise.compiler.ops.operands import as_operand, astype_weak, composed_list, type_of
from shardwise.compiler.ops.shape import Iota, Reshape, permuted
from shardwise.runtime.client import default_backend

BLOCK = 512  # keys in a block: enough for a product that keeps a device busy
# Scores of one head from which on they are made in blocks: 4 MiB of f32. Fewer cost less than the loop does.
LONG = 2**20

_F32 = np.dtype(np.float32)


@final
@dataclass(frozen=True)
class _Rules:
    """How scores are made: what users say in numbers, and which arrays there are besides q, k and v."""

    scale: float
    is_causal: bool
    window: tuple[int, int] | None
    names: tuple[str, ...]
    fused: bool = False  # by one kernel

    def given(self, arrays: Any) -> dict[str, Any]:
        return dict(zip(self.names, arrays, strict=True))


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """softmax(query · keyᵀ · scale + bias) · value, along the keys that `mask` and its kin let a query see.

    `query` is [B,T,N,H], `key` and `value` are [B,S,K,H], N a multiple of K; or all lack B. `bias` and `mask`, true
    where a key is seen, are [B,N,T,S], or have 1 in place of any. `is_causal`: no key later than the query.
    `query_seq_lengths` and `key_value_seq_lengths`, i32[B]: no key past the end, and zeros for queries past theirs.
    `local_window_size`: at most so many keys before and after. `scale` is 1/√H unless told. A query that sees no key
    gets the mean of all values. With `return_residual`, also the logarithms of the sums of powers, [B,T,N].

    >>> x = jnp.ones((1, 2, 1, 4))
    >>> jax.nn.dot_product_attention(x, x, x, is_causal=True).shape
    (1, 2, 1, 4)
    """
    name = "dot_product_attention"
    if implementation not in (None, "xla", "cudnn"):
        raise ValueError(f"{name}: implementation is None, 'xla' or 'cudnn', not {implementation!r}")
    window = (local_window_size, local_window_size) if isinstance(local_window_size, int) else local_window_size
    given = {
        "bias": bias,
        "mask": mask,
        "query_seq_lengths": query_seq_lengths,
        "key_value_seq_lengths": key_value_seq_lengths,
    }
    given = {what: array for what, array in given.items() if array is not None}
    types = {what: type_of(array, name) for what, array in given.items()}
    queries, keys, values = (type_of(x, name) for x in (query, key, value))
    _check(queries, keys, values, types)
    width = queries.shape[-1]
    factor = 1.0 / math.sqrt(width) if scale is None else float(scale)
    rules = _Rules(factor, bool(is_causal), window, tuple(given))
    hindrance = _hindrance(rules, queries)
    if implementation == "cudnn" and hindrance:
        raise NotImplementedError(f"{name}: cuDNN's kernel cannot be used: {hindrance}. Leave implementation out.")
    # A mask is an array of all scores for the kernel, which blocks do without.
    if implementation == "cudnn" or (implementation is None and not hindrance and not given):
        rules = replace(rules, fused=True)
    found = _attended(query, key, value, *given.values(), rules=rules, residual=return_residual)
    return tuple(found) if return_residual else found[0]


def _check(query: ArrayType, key: ArrayType, value: ArrayType, given: dict[str, ArrayType]) -> None:
    name = "dot_product_attention"
    if query.ndim not in (3, 4) or key.ndim != query.ndim:
        raise ValueError(f"{name}: query and key are [B,T,N,H] and [B,S,K,H], or both lack B, not {query} and {key}")
    if value != key:
        raise ValueError(f"{name}: value must have the type of key, {key}, not {value}")
    lead = query.shape[: query.ndim - 3]
    if query.dtype != key.dtype or lead != key.shape[: key.ndim - 3] or query.shape[-1] != key.shape[-1]:
        raise ValueError(f"{name}: query {query} must have the dtype, the batch and the last dim of key {key}")
    if not key.shape[-2] or query.shape[-2] % key.shape[-2]:
        raise ValueError(f"{name}: the heads of query {query} must be a multiple of those of key {key}")
    batch = lead or (1,)
    scores = (*batch, query.shape[-2], query.shape[-3], key.shape[-3])
    for what, type in given.items():
        if what in ("bias", "mask"):
            padded = (1,) * (4 - type.ndim) + type.shape
            if len(padded) != 4 or any(size not in (1, full) for size, full in zip(padded, scores, strict=True)):
                raise ValueError(f"{name}: {what} must be repeatable to [B,N,T,S], {scores}, not {type}")
            if what == "mask" and type.dtype != np.bool_:
                raise ValueError(f"{name}: mask must be booleans, not {type}")
        elif type != ArrayType(batch, np.int32):
            raise ValueError(f"{name}: {what} must be i32 of shape {batch}, not {type}")


def _hindrance(rules: _Rules, query: ArrayType) -> str:
    """Why cuDNN's kernel cannot do it; empty where it can."""
    if default_backend() != "gpu":
        return f"the platform is {default_backend()!r}"
    if query.dtype not in (np.float16, ml_dtypes.bfloat16):
        return f"it computes in bf16 and f16, not in {query}"
    if query.shape[-1] % 8 or query.shape[-1] > 128:
        return f"the last dim must be a multiple of 8 up to 128, not {query.shape[-1]}"
    if others := [what for what in rules.names if what != "mask"]:
        return f"it takes no {others[0]} here"
    if rules.window is not None and not (rules.is_causal and rules.window[1] == 0):
        return "a window must be causal, with no keys after the query"
    return ""


@composed_list
def _attended(query: Any, key: Any, value: Any, *arrays: Any, rules: _Rules, residual: bool) -> list[Any]:
    q, k, v = (_with_batch(as_operand(x)) for x in (query, key, value))
    shape = type_of(query).shape
    if rules.fused:
        found, sums = _fused(rules, q, k, v, tuple(_as_bias(as_operand(x), q, k) for x in arrays))
        logarithms = lax.stop_gradient(permuted(sums, (0, 2, 1))).astype(k.dtype)
        return [found.reshape(shape), *([logarithms.reshape(shape[:-1])] if residual else [])]
    batch, rows, heads, width = q.type.shape
    shared = k.type.shape[2]
    q = Reshape((batch, rows, shared, heads // shared, width))(q)
    given = {
        what: _grouped(as_operand(x), q.type) if x.ndim > 1 else as_operand(x)
        for what, x in rules.given(arrays).items()
    }
    is_long = k.type.shape[1] > BLOCK and rows * k.type.shape[1] >= LONG
    attend = _in_blocks if is_long else _at_once
    found, largest, total = attend(rules, q, k, v, tuple(given.values()))
    if (lengths := given.get("query_seq_lengths")) is not None:
        inside = jnp.arange(rows)[None, :] < lengths[:, None]
        found = found * inside[:, :, None, None, None].astype(found.dtype)
    results = [found.reshape(shape)]
    if residual:
        sums = lax.stop_gradient(largest + jnp.log(total)).astype(k.dtype)  # [B, K, T, G]
        results.append(permuted(sums, (0, 2, 1, 3)).reshape(shape[:-1]))
    return results


def _as_bias(mask: Any, q: Any, k: Any) -> Any:
    """A mask as what is added to scores: of all queries and keys, and perhaps of all heads and the batch alike."""
    seen = Reshape((1,) * (4 - mask.type.ndim) + mask.type.shape)(mask)
    seen = jnp.broadcast_to(seen, (*seen.type.shape[:2], q.type.shape[1], k.type.shape[1]))
    return jnp.where(
        seen, q.type.dtype.type(0), q.type.dtype.type(-(2.0**41) if q.type.dtype.name == "bfloat16" else -6e4)
    )


@partial(custom_vjp, nondiff_argnums=(0,))
def _fused(rules: _Rules, q: Any, k: Any, v: Any, bias: tuple[Any, ...]) -> Any:
    """The result [B,T,N,H], and the logarithms of the sums of powers, [B,N,T], by one kernel."""
    return FusedAttention(rules.scale, rules.is_causal, _reach(rules))(q, k, v, *bias)


def _fused_forward(rules: _Rules, q: Any, k: Any, v: Any, bias: tuple[Any, ...]) -> Any:
    found, sums = _fused(rules, q, k, v, bias)
    return (found, sums), (q, k, v, bias, found, sums)


def _fused_backward(rules: _Rules, residuals: Any, cotangents: Any) -> Any:
    q, k, v, bias, found, sums = residuals
    op = FusedAttentionGrad(rules.scale, rules.is_causal, _reach(rules))
    # The bias is made of a mask, and the sums leave only without a derivative.
    return *op(q, k, v, sums, found, cotangents[0], *bias), (None,) * len(bias)


_fused.defvjp(_fused_forward, _fused_backward)


def _reach(rules: _Rules) -> int:
    """How many keys a query sees at most, itself among them; 0 for all."""
    return 0 if rules.window is None else rules.window[0] + 1


def _with_batch(x: Any) -> Any:
    return x if x.type.ndim == 4 else Reshape((1, *x.type.shape))(x)


def _grouped(x: Any, query: ArrayType) -> Any:
    """A bias or mask [B,N,T,S], with 1 for any, as [B,K,T,G,S]."""
    sizes = (1,) * (4 - x.type.ndim) + x.type.shape
    heads = (1, 1) if sizes[1] == 1 else query.shape[2:4]
    return permuted(x.reshape(sizes[0], *heads, *sizes[2:]), (0, 1, 3, 2, 4))


def _scores(rules: _Rules, q: Any, k: Any, given: dict[str, Any], first: Any) -> tuple[Any, Any]:
    """The scores of all queries with keys that begin with number `first`, and which of them count: None for all.

    A score that does not count is the same large negative number for all keys, and not -inf: so a query that sees no
    key has a softmax.
    """
    wide = np.dtype(np.float64) if q.type.dtype == np.float64 else _F32
    scores = Dot(((4,), (3,)), ((0, 2), (0, 2)), None if wide == q.type.dtype else wide)(q, k)
    scores = scores * wide.type(rules.scale)
    if (bias := given.get("bias")) is not None:
        scores = (scores + bias).astype(wide)
    seen = _seen(rules, scores.type, given, first)
    if seen is not None:
        largest = min(float(ml_dtypes.finfo(wide).max), float(np.finfo(_F32).max))  # type: ignore[no-untyped-call]
        scores = jnp.where(seen, scores, wide.type(-0.7 * largest))
    return astype_weak(scores, _F32, False), seen


def _seen(rules: _Rules, scores: ArrayType, given: dict[str, Any], first: Any) -> Any:
    """Where a key counts, repeatable to [B, K, T, G, S]; None where all do."""
    seen = given.get("mask")
    rows = Iota((1, 1, scores.shape[2], 1, 1), 2, np.dtype(np.int32))()
    columns = Iota((1, 1, 1, 1, scores.shape[4]), 4, np.dtype(np.int32))() + first
    parts = [] if seen is None else [seen]
    if rules.is_causal:
        parts.append(columns <= rows)
    if rules.window is not None:
        before, after = rules.window
        parts += [rows <= columns + before, rows >= columns - after]
    for what, numbers in (("query_seq_lengths", rows), ("key_value_seq_lengths", columns)):
        if what in given:
            parts.append(numbers < given[what].reshape(-1, 1, 1, 1, 1))
    found = None
    for part in parts:
        found = part if found is None else found & part
    return found


def _at_once(rules: _Rules, q: Any, k: Any, v: Any, arrays: Any) -> tuple[Any, Any, Any]:
    """The result [B, T, K, G, H]; and of each row of scores the largest, and the sum of powers less that."""
    scores, _ = _scores(rules, q, k, rules.given(arrays), 0)
    largest = lax.stop_gradient(jnp.max(scores, axis=4, keepdims=True, initial=-np.inf))
    powers = jnp.exp(scores - largest)
    total = powers.sum(4, keepdims=True)
    weights = (powers / total).astype(k.dtype)
    found = Dot(((4,), (1,)), ((0, 1), (0, 2)))(weights, v)
    return permuted(found, (0, 2, 1, 3, 4)), largest[..., 0], total[..., 0]


@partial(custom_vjp, nondiff_argnums=(0,))
def _in_blocks(rules: _Rules, q: Any, k: Any, v: Any, arrays: Any) -> tuple[Any, Any, Any]:
    """What `_at_once` gives, block by block of keys."""
    given = rules.given(arrays)
    batch, rows, shared, group, width = q.type.shape
    count = -(-k.type.shape[1] // BLOCK)
    keys, values = _padded(k, 1), _padded(v, 1)

    def step(carry: Any, number: Any) -> Any:
        found, largest, total = carry
        start = number * BLOCK
        scores, _ = _block_scores(rules, q, keys, given, start, k.type.shape[1])
        above = jnp.maximum(largest, scores.max(4))
        # A row of nothing but -inf, which a bias may have, is no reason for NaN in later blocks.
        level = jnp.where(above == -np.inf, 0.0, above)
        powers, shrunk = jnp.exp(scores - level[..., None]), jnp.exp(largest - level)
        part = Dot(((4,), (1,)), ((0, 1), (0, 2)), _wide(v.type.dtype))(powers.astype(v.dtype), _cut(values, start, 1))
        return (found * shrunk[..., None] + part, above, total * shrunk + powers.sum(4)), None

    rest = (batch, shared, rows, group)
    start = (jnp.zeros((*rest, width), _F32), jnp.full(rest, -np.inf, _F32), jnp.zeros(rest, _F32))
    (found, largest, total), _ = scan(step, start, jnp.arange(count))
    found = permuted((found / total[..., None]).astype(v.dtype), (0, 2, 1, 3, 4))
    return found, largest, total


def _forward(rules: _Rules, q: Any, k: Any, v: Any, arrays: Any) -> Any:
    found, largest, total = _in_blocks(rules, q, k, v, arrays)
    return (found, largest, total), (q, k, v, arrays, found, largest, total)


def _backward(rules: _Rules, residuals: Any, cotangents: Any) -> Any:
    """Each block's scores are made again.

    The sums have a cotangent where this is differentiated once more. The largest scores do not: what is taken out of
    the powers is taken out of their sum too.
    """
    q, k, v, arrays, found, largest, total = residuals
    given = rules.given(arrays)
    ct, _, to_total = cotangents
    count, size = -(-k.type.shape[1] // BLOCK), k.type.shape[1]
    keys, values = _padded(k, 1), _padded(v, 1)
    # Along each row, the weighted mean of the weights' cotangents: [B, K, T, G].
    mean = permuted((ct.astype(_F32) * found.astype(_F32)).sum(4), (0, 2, 1, 3)) - total * to_total

    def step(to_q: Any, number: Any) -> Any:
        start = number * BLOCK
        scores, seen = _block_scores(rules, q, keys, given, start, size)
        weights = jnp.exp(scores - largest[..., None]) / total[..., None]
        wide = _wide(v.type.dtype)
        to_v = Dot(((2, 3), (1, 3)), ((0, 1), (0, 2)), wide)(weights.astype(v.dtype), ct)
        pushed = Dot(((4,), (3,)), ((0, 2), (0, 2)), wide)(ct, _cut(values, start, 1))
        to_scores = weights * (pushed - mean[..., None])
        if seen is not None:
            to_scores = jnp.where(seen, to_scores, 0)
        to_bias = _reduced(to_scores, given["bias"].type) if "bias" in given else None
        scaled = (to_scores * np.float32(rules.scale)).astype(k.dtype)
        to_k = Dot(((2, 3), (1, 3)), ((0, 1), (0, 2)), wide)(scaled, q)
        more = Dot(((4,), (1,)), ((0, 1), (0, 2)), wide)(scaled, _cut(keys, start, 1))
        return to_q + more, (to_k, to_v, to_bias)

    batch, rows, shared, group, width = q.type.shape
    to_q, (to_k, to_v, to_bias) = scan(step, jnp.zeros((batch, shared, rows, group, width), _F32), jnp.arange(count))
    to_q = permuted(to_q, (0, 2, 1, 3, 4)).astype(q.dtype)
    # Blocks lie along a new first dim, [count, B, K, block, H].
    to_k, to_v = (_joined(x, (1, 0, 3, 2, 4), 1, size).astype(k.dtype) for x in (to_k, to_v))
    others: list[Any] = []
    for what, array in given.items():
        if what != "bias":
            others.append(None)
        elif array.type.shape[4] == 1:
            others.append(to_bias.sum(0).astype(array.dtype))
        else:
            others.append(_joined(to_bias, (1, 2, 3, 4, 0, 5), 4, size).astype(array.dtype))
    return to_q, to_k, to_v, tuple(others)


_in_blocks.defvjp(_forward, _backward)


def _wide(dtype: DType) -> DType | None:
    """What products are summed in, where that is not their own dtype."""
    return None if dtype.itemsize >= _F32.itemsize else _F32


def _padded(x: Any, dim: int) -> Any:
    """`x` with zeros after `dim`, so that it is a number of whole blocks."""
    missing = -x.type.shape[dim] % BLOCK
    config = [(0, missing if d == dim else 0, 0) for d in range(x.type.ndim)]
    return lax.pad(x, x.type.dtype.type(0), config) if missing else x


def _cut(x: Any, start: Any, dim: int) -> Any:
    return lax.dynamic_slice_in_dim(x, start, BLOCK, dim)


def _block_scores(rules: _Rules, q: Any, keys: Any, given: dict[str, Any], start: Any, size: int) -> tuple[Any, Any]:
    """The scores of one block, -inf past the last key; and which of them count."""
    mine = {
        what: _cut(_padded(x, 4), start, 4) if what in ("bias", "mask") and x.type.shape[4] > 1 else x
        for what, x in given.items()
    }
    scores, seen = _scores(rules, q, _cut(keys, start, 1), mine, start)
    if not size % BLOCK:
        return scores, seen
    exists = Iota((1, 1, 1, 1, BLOCK), 4, np.dtype(np.int32))() + start < size
    return jnp.where(exists, scores, -np.inf), seen


def _reduced(x: Any, type: ArrayType) -> Any:
    """`x` summed along the dims that `type` has with size 1."""
    dims = tuple(dim for dim in range(x.type.ndim) if type.shape[dim] == 1 and x.type.shape[dim] > 1)
    return x.sum(dims, keepdims=True) if dims else x


def _joined(blocks: Any, order: tuple[int, ...], dim: int, size: int) -> Any:
    """Blocks along the first dim, one after the other along `dim`, which is next to it in `order`."""
    x = permuted(blocks, order)
    shape = (*x.type.shape[:dim], x.type.shape[dim] * x.type.shape[dim + 1], *x.type.shape[dim + 2 :])
    return lax.slice_in_dim(Reshape(shape)(x), 0, size, axis=dim)
