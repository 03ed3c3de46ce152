"""Reductions over axes that are known: close to the ops of `compiler/ops/reduce.py` and `aggregate.py`."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ops.aggregate import (
    Argmax,
    Argmin,
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceXor,
)
from shardwise.compiler.ops.operands import as_operand
from shardwise.compiler.ops.promote import canonical_dtype
from shardwise.compiler.ops.reduce import Reduction, Sum


def reduce_sum(operand: Any, axes: Sequence[int]) -> Any:
    """The sum along `axes`."""
    return _reduced(Sum, operand, axes)


def reduce_max(operand: Any, axes: Sequence[int]) -> Any:
    """The largest element along `axes`; NaN where any is."""
    return _reduced(ReduceMax, operand, axes)


def reduce_min(operand: Any, axes: Sequence[int]) -> Any:
    """The smallest element along `axes`; NaN where any is."""
    return _reduced(ReduceMin, operand, axes)


def reduce_prod(operand: Any, axes: Sequence[int]) -> Any:
    """The product along `axes`."""
    return _reduced(ReduceProd, operand, axes)


def reduce_and(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that all elements along `axes` have; of booleans, whether all are true."""
    return _reduced(ReduceAnd, operand, axes)


def reduce_or(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that any element along `axes` has; of booleans, whether any is true."""
    return _reduced(ReduceOr, operand, axes)


def reduce_xor(operand: Any, axes: Sequence[int]) -> Any:
    """The bits that an odd number of the elements along `axes` have."""
    return _reduced(ReduceXor, operand, axes)


def argmax(operand: Any, axis: int, index_dtype: Any) -> Any:
    """Where along `axis` the first of the largest elements is; NaN counts as larger than any number."""
    return Argmax(operator.index(axis), canonical_dtype(index_dtype))(as_operand(operand, "argmax"))


def argmin(operand: Any, axis: int, index_dtype: Any) -> Any:
    """Where along `axis` the first of the smallest elements is; NaN counts as smaller than any number."""
    return Argmin(operator.index(axis), canonical_dtype(index_dtype))(as_operand(operand, "argmin"))


def _reduced(op: type[Reduction], operand: Any, axes: Sequence[int]) -> Any:
    return op(tuple(map(operator.index, axes)))(as_operand(operand, op.name))
