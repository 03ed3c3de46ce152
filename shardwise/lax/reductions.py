"""Reductions over static dims. They stage one reduction op each."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.api.meshes.out_sharding import check_sums, constrain_sharding
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.ops.reduce.argminmax import Argmax, Argmin
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceXor
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.typing import ArrayLike, DTypeLike, OutSharding

_REDUCTION = Family(
    {
        "operand": "an array.",
        "axes": "the dims to reduce, counted from 0.",
    },
    returns="An array without the reduced dims.",
    raises=["TypeError: if a dim does not exist or repeats."],
)
_BITWISE_REDUCTION = Family(
    {**_REDUCTION.args, "operand": "an array of integers or booleans."},
    _REDUCTION.returns,
    ["TypeError: if a dim does not exist or repeats, or `operand` holds floats or complex numbers."],
)


@documented(_REDUCTION)
def reduce_sum(operand: ArrayLike, axes: Sequence[int], *, out_sharding: OutSharding = None) -> Array:
    """Compute the sum along dims.

    Args:
        out_sharding: the sharding to pin the result to.

    Raises:
        ShardingError: if `out_sharding` does not fit the shape of the result.

    Example:
        >>> lax.reduce_sum(jnp.array([[1, 5], [3, 4]]), (1,))
        Array([6, 7], dtype=int32)
    """
    total = _reduce(Sum, operand, axes)
    check_sums("reduce_sum", out_sharding, [operand], [[(0, dim)] for dim in axes])
    return constrain_sharding(total, out_sharding)


@documented(_REDUCTION)
def reduce_max(operand: ArrayLike, axes: Sequence[int], *, out_sharding: OutSharding = None) -> Array:
    """Compute the maximum along dims; NaN if any element is NaN.

    Args:
        out_sharding: the sharding to pin the result to.

    Raises:
        ShardingError: if `out_sharding` does not fit the shape of the result.

    Example:
        >>> lax.reduce_max(jnp.array([[1, 5], [3, 4]]), (1,))
        Array([5, 4], dtype=int32)
    """
    return constrain_sharding(_reduce(ReduceMax, operand, axes), out_sharding)


@documented(_REDUCTION)
def reduce_min(operand: ArrayLike, axes: Sequence[int], *, out_sharding: OutSharding = None) -> Array:
    """Compute the minimum along dims; NaN if any element is NaN.

    Args:
        out_sharding: the sharding to pin the result to.

    Raises:
        ShardingError: if `out_sharding` does not fit the shape of the result.

    Example:
        >>> lax.reduce_min(jnp.array([[1, 5], [3, 4]]), (1,))
        Array([1, 3], dtype=int32)
    """
    return constrain_sharding(_reduce(ReduceMin, operand, axes), out_sharding)


@documented(_REDUCTION)
def reduce_prod(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Compute the product along dims.

    Example:
        >>> lax.reduce_prod(jnp.array([[1, 5], [3, 4]]), (1,))
        Array([ 5, 12], dtype=int32)
    """
    return _reduce(ReduceProd, operand, axes)


@documented(_BITWISE_REDUCTION)
def reduce_and(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Compute the bitwise and along dims; for booleans, whether all are true.

    Example:
        >>> lax.reduce_and(jnp.array([True, False]), (0,))
        Array(False, dtype=bool)
    """
    return _reduce(ReduceAnd, operand, axes)


@documented(_BITWISE_REDUCTION)
def reduce_or(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Compute the bitwise or along dims; for booleans, whether any is true.

    Example:
        >>> lax.reduce_or(jnp.array([True, False]), (0,))
        Array(True, dtype=bool)
    """
    return _reduce(ReduceOr, operand, axes)


@documented(_BITWISE_REDUCTION)
def reduce_xor(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Compute the bitwise exclusive or along dims; for booleans, whether an odd number is true.

    Example:
        >>> lax.reduce_xor(jnp.array([5, 3]), (0,))
        Array(6, dtype=int32)
    """
    return _reduce(ReduceXor, operand, axes)


_INDEX_REDUCTION = Family(
    {
        "operand": "an array of integers, floats or booleans.",
        "axis": "the dim, counted from 0.",
        "index_dtype": "the dtype of the indices.",
    },
    returns="An array of indices, without the dim.",
    raises=[
        "TypeError: if the dim does not exist or is empty, `operand` holds complex numbers, or\n"
        "`index_dtype` is not an integer dtype."
    ],
)


@documented(_INDEX_REDUCTION)
def argmax(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Array:
    """Return the index of the first maximum along a dim. NaN counts as larger than any number.

    Example:
        >>> lax.argmax(jnp.array([3, 9, 2]), 0, jnp.int32)
        Array(1, dtype=int32)
    """
    return Argmax((operator.index(axis),), requested_dtype("argmax", index_dtype))(as_operand(operand, "argmax"))


@documented(_INDEX_REDUCTION)
def argmin(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Array:
    """Return the index of the first minimum along a dim. NaN counts as smaller than any number.

    Example:
        >>> lax.argmin(jnp.array([3, 9, 2]), 0, jnp.int32)
        Array(2, dtype=int32)
    """
    return Argmin((operator.index(axis),), requested_dtype("argmin", index_dtype))(as_operand(operand, "argmin"))


def _reduce(op: type[Reduce], operand: ArrayLike, axes: Sequence[int]) -> Any:
    return op(tuple(map(operator.index, axes)))(as_operand(operand, op.name))
