"""Reductions over axes that are known: close to the ops of `compiler/ops/reduce.py` and `aggregate.py`."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ops.reduce.argminmax import Argmax, Argmin
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceXor
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.lax.shape import constrain_sharding


def reduce_sum(operand: Any, axes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """The sum along `axes`.

    >>> lax.reduce_sum(jnp.array([[1, 5], [3, 4]]), (1,))
    Array([6, 7], dtype=int32)
    """
    return constrain_sharding(_reduced(Sum, operand, axes), out_sharding)


def reduce_max(operand: Any, axes: Sequence[int]) -> Any:
    """The largest element along `axes`; NaN where any is.

    >>> lax.reduce_max(jnp.array([[1, 5], [3, 4]]), (1,))
    Array([5, 4], dtype=int32)
    """
    return _reduced(ReduceMax, operand, axes)


def reduce_min(operand: Any, axes: Sequence[int]) -> Any:
    """The smallest element along `axes`; NaN where any is.

    >>> lax.reduce_min(jnp.array([[1, 5], [3, 4]]), (1,))
    Array([1, 3], dtype=int32)
    """
    return _reduced(ReduceMin, operand, axes)


def reduce_prod(operand: Any, axes: Sequence[int]) -> Any:
    """The product along `axes`.

    >>> lax.reduce_prod(jnp.array([[1, 5], [3, 4]]), (1,))
    Array([ 5, 12], dtype=int32)
    """
    return _reduced(ReduceProd, operand, axes)


def reduce_and(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that all elements along `axes` have; of booleans, whether all are true.

    >>> lax.reduce_and(jnp.array([True, False]), (0,))
    Array(False, dtype=bool)
    """
    return _reduced(ReduceAnd, operand, axes)


def reduce_or(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that any element along `axes` has; of booleans, whether any is true.

    >>> lax.reduce_or(jnp.array([True, False]), (0,))
    Array(True, dtype=bool)
    """
    return _reduced(ReduceOr, operand, axes)


def reduce_xor(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that an odd number of the elements along `axes` have.

    >>> lax.reduce_xor(jnp.array([5, 3]), (0,))
    Array(6, dtype=int32)
    """
    return _reduced(ReduceXor, operand, axes)


def argmax(operand: Any, axis: int, index_dtype: Any) -> Any:
    """Where along `axis` the first of the largest elements is; NaN counts as larger than any number.

    >>> lax.argmax(jnp.array([3, 9, 2]), 0, jnp.int32)
    Array(1, dtype=int32)
    """
    return Argmax(operator.index(axis), canonical_dtype(index_dtype))(as_operand(operand, "argmax"))


def argmin(operand: Any, axis: int, index_dtype: Any) -> Any:
    """Where along `axis` the first of the smallest elements is; NaN counts as smaller than any number.

    >>> lax.argmin(jnp.array([3, 9, 2]), 0, jnp.int32)
    Array(2, dtype=int32)
    """
    return Argmin(operator.index(axis), canonical_dtype(index_dtype))(as_operand(operand, "argmin"))


def _reduced(op: type[Reduce], operand: Any, axes: Sequence[int]) -> Any:
    return op(tuple(map(operator.index, axes)))(as_operand(operand, op.name))
