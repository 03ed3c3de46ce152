"""Cumulative reductions along an axis. They stage the op `Cumulative`."""

import operator
from typing import Any

import numpy as np

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.reduction import LOGSUMEXP, MAX, MIN, PROD, SUM, Reduction
from shardwise.typing import ArrayLike

_CUMULATIVE = Family(
    {
        "operand": "an array of numbers.",
        "axis": "the axis, counted from 0.",
        "reverse": "accumulate from the last element to the first.",
    },
    returns="An array of the same shape and dtype.",
    raises=["ValueError: if `axis` is negative or does not exist.", "TypeError: if `operand` holds booleans."],
)


@documented(_CUMULATIVE)
def cumsum(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Compute the cumulative sum along an axis.

    Example:
        >>> lax.cumsum(jnp.array([1, 3, 2]))
        Array([1, 4, 6], dtype=int32)
    """
    return _cumulative("cumsum", operand, SUM, axis, reverse)


@documented(_CUMULATIVE)
def cumprod(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Compute the cumulative product along an axis.

    Example:
        >>> lax.cumprod(jnp.array([1, 3, 2]))
        Array([1, 3, 6], dtype=int32)
    """
    return _cumulative("cumprod", operand, PROD, axis, reverse)


@documented(_CUMULATIVE)
def cummax(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Compute the cumulative maximum along an axis. It is NaN from the first NaN on.

    Example:
        >>> lax.cummax(jnp.array([1, 3, 2]))
        Array([1, 3, 3], dtype=int32)
    """
    return _cumulative("cummax", operand, MAX, axis, reverse)


@documented(_CUMULATIVE)
def cummin(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Compute the cumulative minimum along an axis. It is NaN from the first NaN on.

    Example:
        >>> lax.cummin(jnp.array([3, 1, 2]))
        Array([3, 1, 1], dtype=int32)
    """
    return _cumulative("cummin", operand, MIN, axis, reverse)


@documented(_CUMULATIVE, raises=["TypeError: if `operand` does not hold floats."])
def cumlogsumexp(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Array:
    """Compute the cumulative log-sum-exp along an axis: the logarithm of the cumulative sum of exponentials, without
    overflow.

    Args:
        operand: an array of floats.

    Example:
        >>> lax.cumlogsumexp(jnp.zeros(3))
        Array([0.       , 0.6931472, 1.0986123], dtype=float32)
    """
    return _cumulative("cumlogsumexp", operand, LOGSUMEXP, axis, reverse)


def _cumulative(name: str, operand: ArrayLike, reduction: Reduction, axis: int, reverse: bool) -> Any:
    x = as_operand(operand, name)
    dim = operator.index(axis)
    if not 0 <= dim < x.type.ndim:
        raise ValueError(f"{name}: axis {dim} does not exist in {x.type}; axes count from 0")
    if x.type.dtype == np.bool_:
        raise TypeError(f"{name}: booleans are not supported: {x.type}; convert them to integers")
    return Cumulative(dim, reduction, bool(reverse))(x)
