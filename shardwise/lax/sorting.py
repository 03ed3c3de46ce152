"""Sorting and top-k along an axis. They stage the ops `Sort` and `TopK`."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.exact_operands import check_equal_shardings
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.ops.indexing.sort import Sort, TopK
from shardwise.compiler.ops.shape.movement import move_dim
from shardwise.typing import ArrayLike


def sort(
    operand: ArrayLike | Sequence[ArrayLike], dimension: int = -1, is_stable: bool = True, num_keys: int = 1
) -> Any:
    """Sort one or more arrays along a dim in ascending order, with NaN last.

    Args:
        operand: an array, or a sequence of arrays of the same shape that are all sorted by the first of them.
        dimension: the dim to sort along.
        is_stable: ignored. The sort is always stable.
        num_keys: the number of arrays that are keys; later keys break ties of earlier ones.

    Returns:
        The sorted array, or a tuple of arrays.

    Raises:
        TypeError: if `operand` is empty, or the shapes differ.
        ValueError: if `num_keys` is less than 1 or exceeds the number of arrays, or `dimension` does not exist.

    Example:
        >>> lax.sort(jnp.array([3, 1, 2]))
        Array([1, 2, 3], dtype=int32)
    """
    operands = operand if isinstance(operand, (list, tuple)) else None
    arrays = [as_operand(x, "sort") for x in ([operand] if operands is None else operands)]
    if not arrays:
        raise TypeError("sort: needs at least one array")
    if not 1 <= num_keys <= len(arrays):
        raise ValueError(f"sort: num_keys must be 1 to {len(arrays)}, the number of arrays, not {num_keys}")
    check_equal_shardings("sort", *arrays)
    sorted_arrays = Sort(canonical_axis("sort", dimension, arrays[0].type.ndim), operator.index(num_keys))(*arrays)
    return sorted_arrays[0] if operands is None else tuple(sorted_arrays)


def sort_key_val(
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Sort keys along a dim, and values in the order of the keys.

    Args:
        keys: an array.
        values: an array of the shape of `keys`.
        dimension: the dim to sort along.
        is_stable: ignored. The sort is always stable.

    Returns:
        A pair: the sorted keys, and the values in their order.

    Raises:
        TypeError: if the shapes differ.
        ValueError: if `dimension` does not exist.

    Example:
        >>> lax.sort_key_val(jnp.array([3, 1, 2]), jnp.array([7, 8, 9]))
        (Array([1, 2, 3], dtype=int32), Array([8, 9, 7], dtype=int32))
    """
    return sort((keys, values), dimension, is_stable)


def top_k(operand: ArrayLike, k: int, *, axis: int = -1, is_stable: bool = True) -> list[Array]:
    """Return the `k` largest elements along an axis and their indices.

    NaN counts as larger than any number. Of equal elements the first ones are returned.

    Args:
        operand: an array of integers, floats or booleans.
        k: the number of elements.
        axis: the axis to search along.
        is_stable: ignored: of equal elements, the first ones are always returned, in their order.

    Returns:
        A list of two arrays: the values in descending order, and their indices as int32.

    Raises:
        ValueError: if `k` exceeds the size of the axis, or `axis` does not exist.
        TypeError: if `operand` holds complex numbers.

    Example:
        >>> lax.top_k(jnp.array([3, 9, 2]), 2)[1]
        Array([1, 0], dtype=int32)
    """
    x = as_operand(operand, "top_k")
    dim = canonical_axis("top_k", axis, x.type.ndim)
    count = operator.index(k)
    if not 0 <= count <= x.type.shape[dim]:
        raise ValueError(f"top_k: k must be 0 to {x.type.shape[dim]}, the size of axis {axis} of {x.type}, not {count}")
    last = x.type.ndim - 1
    return [move_dim(result, last, dim) for result in TopK(count)(move_dim(x, dim, last))]


_APPROXIMATE_TOP = Family(
    {
        "k": "the number of elements.",
        "reduction_dimension": "the dim to search along.",
        "recall_target, reduction_input_size_override": "ignored. The result is exact.",
        "aggregate_to_topk": "must be True.",
    },
    raises=[
        "ValueError: if `k` exceeds the size of the dim, or the dim does not exist.",
        "NotImplementedError: if `aggregate_to_topk` is false.",
    ],
)


@documented(_APPROXIMATE_TOP)
def approx_max_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list[Array]:
    """Return the `k` largest elements along a dim and their indices.

    The search is exact here, like `top_k`; on other implementations it may be approximate.

    Args:
        operand: an array of integers, floats or booleans.

    Returns:
        A list of two arrays: the values in descending order, and their indices as int32.

    Example:
        >>> lax.approx_max_k(jnp.array([3.0, 1.0, 2.0]), 2)[0]
        Array([3., 2.], dtype=float32)
    """
    if not aggregate_to_topk:
        raise NotImplementedError("approx_max_k: aggregate_to_topk=False is not supported")
    return top_k(operand, k, axis=reduction_dimension)


@documented(_APPROXIMATE_TOP, raises=["TypeError: if `operand` does not hold floats."])
def approx_min_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list[Array]:
    """Return the `k` smallest elements along a dim and their indices. The search is exact, as in `approx_max_k`.

    Args:
        operand: an array of floats.

    Returns:
        A list of two arrays: the values in ascending order, and their indices as int32.

    Example:
        >>> lax.approx_min_k(jnp.array([3.0, 1.0, 2.0]), 2)[0]
        Array([1., 2.], dtype=float32)
    """
    x = as_operand(operand, "approx_min_k")
    if not is_float(x.type.dtype):
        raise TypeError(f"approx_min_k: needs floats, not {x.type}")
    negated, indices = approx_max_k(Neg()(x), k, reduction_dimension, aggregate_to_topk=aggregate_to_topk)
    return [Neg()(negated), indices]
