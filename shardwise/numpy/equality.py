"""Equality of arrays, exact and within a tolerance."""

from typing import Any

import numpy as np

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.arithmetic import absolute
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    as_strong,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    promote_and_broadcast,
    type_of,
)
from shardwise.compiler.arrays.promotion import inexact_dtype, promote_dtypes
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.reductions import ReduceAnd
from shardwise.compiler.ops.shape.constants import full
from shardwise.numpy.creation import asarray
from shardwise.numpy.elementwise import isinf, isnan
from shardwise.numpy.families import NOT_BROADCASTABLE
from shardwise.typing import ArrayLike

_CLOSENESS = Family(
    {
        "a, b": "the arrays to compare; they broadcast.",
        "rtol": "the relative tolerance.",
        "atol": "the absolute tolerance.",
        "equal_nan": "whether NaN is close to NaN.",
    },
    raises=[NOT_BROADCASTABLE],
)
_EQUALITY = Family(
    {},
    returns="A boolean scalar array.",
    raises=["TypePromotionError: if the dtypes of the arrays cannot be promoted to a common one."],
)


@documented(_CLOSENESS, returns="A boolean array of the broadcast shape.")
def isclose(
    a: ArrayLike, b: ArrayLike, rtol: ArrayLike = 1e-05, atol: ArrayLike = 1e-08, equal_nan: bool = False
) -> Array:
    """Return element-wise whether two arrays are equal within a tolerance.

    Elements are close if `|a - b| <= atol + rtol * |b|`. An infinity is close only to an infinity of the same sign.
    PRNG keys are close if they are equal.

    Example:
        >>> jnp.isclose(jnp.array([1.0, 2.0]), jnp.array([1.000001, 2.1]))
        Array([ True, False], dtype=bool)
    """
    return _isclose(a, b, rtol, atol, equal_nan=bool(equal_nan), reduce_all=False)


@documented(_CLOSENESS, returns="A boolean scalar array.")
def allclose(
    a: ArrayLike, b: ArrayLike, rtol: ArrayLike = 1e-05, atol: ArrayLike = 1e-08, equal_nan: bool = False
) -> Array:
    """Return whether all elements of two arrays are equal within a tolerance.

    Args:
        rtol: the relative tolerance, as in `isclose`.
        atol: the absolute tolerance, as in `isclose`.

    Example:
        >>> jnp.allclose(jnp.array([1.0, 2.0]), jnp.array([1.000001, 2.1]))
        Array(False, dtype=bool)
    """
    return _isclose(a, b, rtol, atol, equal_nan=bool(equal_nan), reduce_all=True)


@compiled_function
def _isclose(a: ArrayLike, b: ArrayLike, rtol: ArrayLike, atol: ArrayLike, *, equal_nan: bool, reduce_all: bool) -> Any:
    types = type_of(a, "isclose"), type_of(b, "isclose")
    if any(is_key(type.dtype) for type in types):  # keys are close if they are equal
        equal = as_operand(a) == as_operand(b)
        return ReduceAnd(tuple(range(equal.type.ndim)))(equal) if reduce_all else equal
    dtype, _ = promote_dtypes("isclose", types)
    x, y = promote_and_broadcast("isclose", (a, b), inexact_dtype(dtype))
    magnitude = absolute(y)
    relative, least = (_tolerance(number, magnitude) for number in (rtol, atol))
    is_near = absolute(x - y) <= least + relative * magnitude
    # The distance to an infinity is infinite or NaN, so infinities are compared exactly.
    result = Select()(isinf(x) | isinf(y), Compare("EQ")(x, y), is_near)
    if equal_nan:
        result = result | (isnan(x) & isnan(y))
    return ReduceAnd(tuple(range(result.type.ndim)))(result) if reduce_all else result


def _tolerance(number: ArrayLike, x: Array) -> Any:
    """Return a tolerance in the type of `x`."""
    return promote_and_broadcast(
        "isclose", (broadcast_to_shape(as_operand(number, "isclose"), x.type.shape),), x.type.dtype, x.type.weak
    )[0]


@documented(_EQUALITY)
def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Array:
    """Return whether two arrays have the same shape and equal elements.

    Args:
        a1, a2: the arrays to compare. An argument that cannot be converted to an array equals nothing.
        equal_nan: whether NaN equals NaN.

    Example:
        >>> jnp.array_equal(jnp.array([1, 2]), jnp.array([1, 2, 3]))
        Array(False, dtype=bool)
    """
    try:
        x, y = asarray(a1), asarray(a2)
    except (TypeError, ValueError):
        return full((), False, np.bool_)
    if x.type.shape != y.type.shape:
        return full((), False, np.bool_)
    return _array_equal(x, y, equal_nan=bool(equal_nan))


@documented(_EQUALITY)
def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Return whether two arrays have equal elements after broadcasting.

    Args:
        a1, a2: the arrays to compare. An argument that cannot be converted to an array equals nothing, and neither do
            arrays whose shapes do not broadcast.

    Example:
        >>> jnp.array_equiv(jnp.array([1, 1]), 1)
        Array(True, dtype=bool)
    """
    try:
        x, y = asarray(a1), asarray(a2)
        broadcast_shapes("array_equiv", x.type.shape, y.type.shape)
    except (TypeError, ValueError):
        return full((), False, np.bool_)
    return _array_equal(x, y, equal_nan=False)


@compiled_function
def _array_equal(a: ArrayLike, b: ArrayLike, *, equal_nan: bool) -> Any:
    x, y = map(as_strong, promote_and_broadcast("array_equal", (a, b)))
    is_equal = Compare("EQ")(x, y)
    if equal_nan:
        is_equal = is_equal | (isnan(x) & isnan(y))
    return ReduceAnd(tuple(range(is_equal.type.ndim)))(is_equal)
