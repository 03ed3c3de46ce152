"""Products of narrow numbers in blocks, each block with a scale."""

from typing import Any

import numpy as np

from shardwise.compiler.ops.dot import Dot
from shardwise.compiler.ops.operands import as_operand, astype_weak, composed, type_of
from shardwise.compiler.ops.promote import canonical_dtype
from shardwise.compiler.ops.shape import Broadcast, Reshape
from shardwise.lax.product import product


def scaled_matmul(
    lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = np.float32
) -> Any:
    """The products of the rows of `lhs` [B,M,K] and of `rhs` [B,N,K], made in f32, each times its scales.

    Scales are [B,M,k] and [B,N,k]: each is for a block of K/k elements.

    >>> x = jnp.ones((1, 1, 4))
    >>> jax.nn.scaled_matmul(x, x, jnp.full((1, 1, 2), 2.0), jnp.ones((1, 1, 2)))
    Array([[[8.]]], dtype=float32)
    """
    types = [type_of(x, "scaled_matmul") for x in (lhs, rhs, lhs_scales, rhs_scales)]
    a, b, of_a, of_b = types
    if any(type.ndim != 3 for type in types):
        raise ValueError(f"scaled_matmul: needs arrays of three dims, not {', '.join(map(str, types))}")
    if (a.shape[0], a.shape[2]) != (b.shape[0], b.shape[2]):
        raise ValueError(f"scaled_matmul: {a} and {b} must agree in their first and last dims")
    if (of_a.shape[0], of_a.shape[2]) != (of_b.shape[0], of_b.shape[2]) or of_a.shape[0] != a.shape[0]:
        raise ValueError(f"scaled_matmul: scales {of_a} and {of_b} must agree in their first and last dims")
    if of_a.shape[1] != a.shape[1] or of_b.shape[1] != b.shape[1]:
        raise ValueError(f"scaled_matmul: scales {of_a} and {of_b} must have the second dims of {a} and {b}")
    if not of_a.shape[2] or a.shape[2] % of_a.shape[2]:
        raise ValueError(f"scaled_matmul: {a.shape[2]} elements cannot be cut into {of_a.shape[2]} blocks")
    return _scaled_product(lhs, rhs, lhs_scales, rhs_scales, dtype=canonical_dtype(preferred_element_type))


@composed
def _scaled_product(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, *, dtype: Any) -> Any:
    a, b = (_scaled(x, scales) for x, scales in ((lhs, lhs_scales), (rhs, rhs_scales)))
    return product(a, b, op=Dot(((2,), (2,)), ((0,), (0,))), dtype=dtype)


def _scaled(operand: Any, scales: Any) -> Any:
    x, scale = (astype_weak(as_operand(z), np.float32, False) for z in (operand, scales))
    *lead, count = scale.type.shape
    block = x.type.shape[2] // count
    spread = Broadcast((*lead, count, block), (0, 1, 2))(scale)
    return x * Reshape(x.type.shape)(spread)
