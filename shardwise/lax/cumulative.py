"""Running totals along an axis: close to the op of `compiler/ops/cumulative.py`."""

import operator
from typing import Any

import numpy as np

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.reduction import LOGSUMEXP, MAX, MIN, PROD, SUM, Reduction


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The sums of the elements up to each along `axis`; from each on where `reverse`.

    >>> lax.cumsum(jnp.array([1, 3, 2]))
    Array([1, 4, 6], dtype=int32)
    """
    return _cumulated("cumsum", operand, SUM, axis, reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The products of the elements up to each along `axis`; from each on where `reverse`.

    >>> lax.cumprod(jnp.array([1, 3, 2]))
    Array([1, 3, 6], dtype=int32)
    """
    return _cumulated("cumprod", operand, PROD, axis, reverse)


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The largest of the elements up to each along `axis`; from each on where `reverse`. NaN where any is.

    >>> lax.cummax(jnp.array([1, 3, 2]))
    Array([1, 3, 3], dtype=int32)
    """
    return _cumulated("cummax", operand, MAX, axis, reverse)


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The smallest of the elements up to each along `axis`; from each on where `reverse`. NaN where any is.

    >>> lax.cummin(jnp.array([3, 1, 2]))
    Array([3, 1, 1], dtype=int32)
    """
    return _cumulated("cummin", operand, MIN, axis, reverse)


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The logarithms of the sums of e to the powers up to each along `axis`; from each on where `reverse`.

    >>> lax.cumlogsumexp(jnp.zeros(3))
    Array([0.       , 0.6931472, 1.0986123], dtype=float32)
    """
    return _cumulated("cumlogsumexp", operand, LOGSUMEXP, axis, reverse)


def _cumulated(name: str, operand: Any, reduction: Reduction, axis: int, reverse: bool) -> Any:
    x = as_operand(operand, name)
    dim = operator.index(axis)
    if not 0 <= dim < x.type.ndim:
        raise ValueError(f"{name}: axis {dim} does not exist in {x.type}; axes count from 0")
    if x.type.dtype == np.bool_:
        raise TypeError(f"{name}: booleans have no totals: {x.type}; convert them to integers")
    return Cumulative(dim, reduction, bool(reverse))(x)
