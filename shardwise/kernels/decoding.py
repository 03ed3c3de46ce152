"""paged_attention, the attention of a decoding step."""

import math

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand, as_strong, compiled_function
from shardwise.compiler.kernels.paged_attention import PagedAttention
from shardwise.kernels.integer_operands import as_int32, check_integers
from shardwise.typing import ArrayLike


def paged_attention(
    q: ArrayLike,
    k_pages: ArrayLike,
    v_pages: ArrayLike,
    page_tables: ArrayLike,
    lengths: ArrayLike,
    *,
    scale: float | None = None,
) -> Array:
    """Compute the attention of one query per sequence over keys and values that lie in pages.

    Sequences and key heads can be sharded. Scores and sums are computed in float32.

    Args:
        q: the queries, [B, H, D].
        k_pages: the pages of keys, [K, P, S, D]: P pages of S keys for each of K heads. H is a multiple of K.
        v_pages: the pages of values, of the type of `k_pages`.
        page_tables: the pages of each sequence, int32 [B, N]. Numbers of pages are clamped to [0, P).
        lengths: the number of keys of each sequence, int32 [B].
        scale: the number that scores are multiplied by; by default 1 / sqrt(D).

    Returns:
        An array of the type of `q`; 0 for a sequence without keys.

    Raises:
        TypeError: if shapes or dtypes do not fit.

    Example:
        >>> pages = jnp.arange(8.0).reshape(1, 2, 2, 2)  # 2 pages of 2 keys, for one head
        >>> jax.kernels.paged_attention(jnp.zeros((1, 1, 2)), pages, pages, jnp.array([[1, 0]]), jnp.array([3]))
        Array([[[3.333333..., 4.333333...]]], dtype=float32)
    """
    arrays = [as_strong(as_inexact(x, "paged_attention")) for x in (q, k_pages, v_pages)]
    check_integers(page_tables, "paged_attention", "page_tables")
    check_integers(lengths, "paged_attention", "lengths")
    tables, counts = (as_operand(x, "paged_attention") for x in (page_tables, lengths))
    width = math.prod(arrays[0].type.shape[-1:])
    factor = 1 / math.sqrt(max(1, width)) if scale is None else float(scale)
    return _paged_attention(arrays[0], arrays[1], arrays[2], tables, counts, scale=factor)


@compiled_function
def _paged_attention(q: Array, k: Array, v: Array, tables: Array, lengths: Array, *, scale: float) -> Array:
    op = PagedAttention(scale)
    return op(q, k, v, as_int32(tables), as_int32(lengths))[0]  # type: ignore[no-any-return]
