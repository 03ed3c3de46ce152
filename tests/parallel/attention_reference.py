"""Attention and its cotangents in numpy, in float64 and on one device; and operands for tests."""

from dataclasses import dataclass

import numpy as np

import shardwise as sw


def attention(q, k, v, ct=None, *, causal=False, segments=None, scale=None):
    """Return the result for arrays [B, T, N, H] and [B, S, K, H]; with `ct`, the cotangents of q, k and v too."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    keys, values = np.repeat(k, group, 2), np.repeat(v, group, 2)
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = np.einsum("btnh,bsnh->bnts", q, keys) * scale
    allowed = np.tri(q.shape[1], k.shape[1], dtype=bool)[None, None] if causal else np.ones((1, 1, 1, 1), bool)
    if segments is not None:
        allowed = allowed & (segments[:, None, :, None] == segments[:, None, None, :])
    weights = np.where(allowed, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("bnts,bsnh->btnh", weights, values)
    if ct is None:
        return out
    ct = np.asarray(ct, np.float64)
    ct_weights = np.einsum("btnh,bsnh->bnts", ct, values)
    ct_scores = weights * (ct_weights - (ct_weights * weights).sum(-1, keepdims=True)) * scale
    ct_q = np.einsum("bnts,bsnh->btnh", ct_scores, keys)
    ct_k = np.einsum("bnts,btnh->bsnh", ct_scores, q)
    ct_v = np.einsum("bnts,btnh->bsnh", weights, ct)
    grouped = [x.reshape(*k.shape[:3], group, k.shape[3]).sum(3) for x in (ct_k, ct_v)]
    return out, ct_q, *grouped


@dataclass(frozen=True)
class Sizes:
    """The sizes of the operands: N query heads, K key heads, and `keys` if there are not as many as queries."""

    batch: int
    rows: int
    heads: int
    key_heads: int
    head_dim: int
    keys: int = 0

    def operands(self, dtype=np.float32, seed=0):
        """Return q, k, v, the cotangent of the result, and the segment ids."""
        rng = np.random.default_rng(seed)
        query = (self.batch, self.rows, self.heads, self.head_dim)
        key = (self.batch, self.keys or self.rows, self.key_heads, self.head_dim)
        arrays = [rng.standard_normal(shape).astype(dtype) for shape in (query, key, key, query)]
        return *arrays, np.sort(rng.integers(0, 3, (self.batch, self.rows))).astype(np.int32)


def value_and_cotangents(function):
    """Return a jitted function of q, k, v and the cotangent of the result: the result and the cotangents."""

    @sw.jit
    def both(q, k, v, ct):
        out, pullback = sw.vjp(function, q, k, v)
        return out, *pullback(ct)

    return both


def assert_like_reference(function, operands, rtol=2e-5, **options):
    """Compare the value and the cotangents of `function(q, k, v)` with numpy."""
    results = value_and_cotangents(function)(*operands)
    for name, actual, expected in zip(("out", "q", "k", "v"), results, attention(*operands, **options), strict=True):
        assert actual.dtype == operands[0].dtype
        np.testing.assert_allclose(
            np.asarray(actual, np.float64), expected, rtol=rtol, atol=rtol * np.abs(expected).max(), err_msg=name
        )
