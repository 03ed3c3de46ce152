"""Whether arrays are equal, or nearly so."""

from typing import Any

import numpy as np

from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops.aggregate import ReduceAnd
from shardwise.compiler.ops.bitwise import And, Or
from shardwise.compiler.ops.elementwise import Add, Compare, Mul, Select, Sub
from shardwise.compiler.ops.numeric import absolute
from shardwise.compiler.ops.operands import aligned, as_operand, broadcast_shapes, composed, stretch, type_of
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.shape import full
from shardwise.numpy.creation import asarray
from shardwise.numpy.elementwise import isinf, isnan


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether elements differ by no more than `atol`, and `rtol` times the magnitude of that of `b`.

    Infinities are close to those of their sign alone, NaN to nothing, or with `equal_nan` to NaN.

    >>> jnp.isclose(jnp.array([1.0, 2.0]), jnp.array([1.000001, 2.1]))
    Array([ True, False], dtype=bool)
    """
    return _close(a, b, rtol, atol, equal_nan=bool(equal_nan), everywhere=False)


def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether all elements are close, as `isclose` says.

    >>> jnp.allclose(jnp.array([1.0, 2.0]), jnp.array([1.000001, 2.1]))
    Array(False, dtype=bool)
    """
    return _close(a, b, rtol, atol, equal_nan=bool(equal_nan), everywhere=True)


@composed
def _close(a: Any, b: Any, rtol: Any, atol: Any, *, equal_nan: bool, everywhere: bool) -> Any:
    dtype, weak = meet("isclose", (type_of(a, "isclose"), type_of(b, "isclose")))
    x, y = aligned("isclose", (a, b), dtype if is_inexact(dtype) else default_dtype("float*"), weak)
    size = absolute(y)
    scale, least = (_like(number, size) for number in (rtol, atol))
    near = Compare("LE")(absolute(Sub()(x, y)), Add()(least, Mul()(scale, size)))
    # The distance from an infinity says nothing.
    found = Select()(Or()(isinf(x), isinf(y)), Compare("EQ")(x, y), near)
    if equal_nan:
        found = Or()(found, And()(isnan(x), isnan(y)))
    return ReduceAnd(tuple(range(found.type.ndim)))(found) if everywhere else found


def _like(number: Any, x: Any) -> Any:
    return aligned("isclose", (stretch(as_operand(number, "isclose"), x.type.shape),), x.type.dtype, x.type.weak)[0]


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether two arrays have one shape and equal elements; with `equal_nan`, NaN equals NaN.

    >>> jnp.array_equal(jnp.array([1, 2]), jnp.array([1, 2, 3]))
    Array(False, dtype=bool)
    """
    try:
        x, y = asarray(a1), asarray(a2)
    except (TypeError, ValueError):
        return full((), False, np.bool_)
    if x.type.shape != y.type.shape:
        return full((), False, np.bool_)
    return _equal(x, y, equal_nan=bool(equal_nan))


def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether two arrays have equal elements once they are broadcast to one shape.

    >>> jnp.array_equiv(jnp.array([1, 1]), 1)
    Array(True, dtype=bool)
    """
    try:
        x, y = asarray(a1), asarray(a2)
        broadcast_shapes("array_equiv", x.type.shape, y.type.shape)
    except (TypeError, ValueError):
        return full((), False, np.bool_)
    return _equal(x, y, equal_nan=False)


@composed
def _equal(a: Any, b: Any, *, equal_nan: bool) -> Any:
    x, y = aligned("array_equal", (a, b))
    found = Compare("EQ")(x, y)
    if equal_nan:
        found = Or()(found, And()(isnan(x), isnan(y)))
    return ReduceAnd(tuple(range(found.type.ndim)))(found)
