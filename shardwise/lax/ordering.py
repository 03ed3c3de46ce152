"""Elements in order along an axis: close to the ops of `compiler/ops/sort.py`."""

import operator
from typing import Any

from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.ops.indexing.sort import Sort, TopK
from shardwise.compiler.ops.shape.movement import move_dim


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """The elements along `dimension` in order, NaN last. Of several arrays all are put in the order of the first
    `num_keys`. Elements that are equal stay in order, whatever `is_stable` says.

    >>> lax.sort(jnp.array([3, 1, 2]))
    Array([1, 2, 3], dtype=int32)
    """
    several = isinstance(operand, (list, tuple))
    arrays = [as_operand(x, "sort") for x in (operand if several else (operand,))]
    if not arrays:
        raise TypeError("sort: needs at least one array")
    if not 1 <= num_keys <= len(arrays):
        raise ValueError(f"sort: num_keys must be 1 to {len(arrays)}, the number of arrays, not {num_keys}")
    found = Sort(canonical_axis("sort", dimension, arrays[0].type.ndim), operator.index(num_keys))(*arrays)
    return tuple(found) if several else found[0]


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> Any:
    """`keys` along `dimension` in order, and `values` in the order of the keys.

    >>> lax.sort_key_val(jnp.array([3, 1, 2]), jnp.array([7, 8, 9]))
    (Array([1, 2, 3], dtype=int32), Array([8, 9, 7], dtype=int32))
    """
    return sort((keys, values), dimension, is_stable)


def top_k(operand: Any, k: int, *, axis: int = -1) -> Any:
    """The `k` largest elements along `axis`, largest first, and where they are; of equal ones the first. NaN is larger
    than any number.

    >>> lax.top_k(jnp.array([3, 9, 2]), 2)[1]
    Array([1, 0], dtype=int32)
    """
    x = as_operand(operand, "top_k")
    dim = canonical_axis("top_k", axis, x.type.ndim)
    count = operator.index(k)
    if not 0 <= count <= x.type.shape[dim]:
        raise ValueError(f"top_k: k must be 0 to {x.type.shape[dim]}, the size of axis {axis} of {x.type}, not {count}")
    last = x.type.ndim - 1
    return [move_dim(found, last, dim) for found in TopK(count)(move_dim(x, dim, last))]


def approx_max_k(
    operand: Any,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> Any:
    """As `top_k`, of which others may miss a few (`recall_target`) where that is faster: here none is missed.

    >>> lax.approx_max_k(jnp.array([3.0, 1.0, 2.0]), 2)[0]
    Array([3., 2.], dtype=float32)
    """
    if not aggregate_to_topk:
        raise NotImplementedError("approx_max_k: candidates are always reduced to k: leave `aggregate_to_topk` true")
    return top_k(operand, k, axis=reduction_dimension)


def approx_min_k(
    operand: Any,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> Any:
    """The `k` smallest elements along a dim and where they are, as `approx_max_k` finds the largest.

    >>> lax.approx_min_k(jnp.array([3.0, 1.0, 2.0]), 2)[0]
    Array([1., 2.], dtype=float32)
    """
    x = as_operand(operand, "approx_min_k")
    if not is_float(x.type.dtype):
        raise TypeError(f"approx_min_k: needs floats, not {x.type}")
    found, places = approx_max_k(Neg()(x), k, reduction_dimension, aggregate_to_topk=aggregate_to_topk)
    return [Neg()(found), places]
