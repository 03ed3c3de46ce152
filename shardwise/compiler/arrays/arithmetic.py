"""Elementwise functions that promote and broadcast their operands as JAX does, composed of ops.

`methods` (the operators of arrays) and `shardwise.numpy` expose them.
"""

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    as_strong,
    astype_weak,
    compiled_function,
    promote_and_broadcast,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, inexact_dtype, promote_dtypes
from shardwise.compiler.dtypes import integer_range, is_inexact, is_integer, numpy_carrier
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Rem, Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import (
    And,
    Not,
    Or,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Xor,
    bit_width,
)
from shardwise.compiler.ops.elementwise.complex_parts import SIGNED, Abs, Complex, Conj, Imag, Real, Sign
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.powers import IntegerPow, Pow
from shardwise.compiler.ops.elementwise.rounding import Round
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.shape.constants import full

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike
    from shardwise.compiler.arrays.methods import Array


@compiled_function
def add(x: "ArrayLike", y: "ArrayLike", /) -> Any:
    """Add two arrays element-wise. This is the operator `x + y`.

    Args:
        x, y: the arrays. Booleans are combined with OR.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.add(jnp.array([1, 2]), 0.5)
        Array([1.5, 2.5], dtype=float32, weak_type=True)
    """
    return Add()(*promote_and_broadcast("add", (x, y)))


@compiled_function
def subtract(x: "ArrayLike", y: "ArrayLike", /) -> Any:
    """Subtract two arrays element-wise. This is the operator `x - y`.

    Args:
        x, y: the arrays.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, if both are boolean, or if the shapes do not broadcast.

    Example:
        >>> jnp.subtract(jnp.array([1, 2]), 3)
        Array([-2, -1], dtype=int32)
    """
    return Sub()(*promote_and_broadcast("subtract", (x, y)))


@compiled_function
def multiply(x: "ArrayLike", y: "ArrayLike", /) -> Any:
    """Multiply two arrays element-wise. This is the operator `x * y`.

    Args:
        x, y: the arrays. Booleans are combined with AND.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.multiply(jnp.array([1, 2]), 3)
        Array([3, 6], dtype=int32)
    """
    return Mul()(*promote_and_broadcast("multiply", (x, y)))


@compiled_function
def divide(x1: "ArrayLike", x2: "ArrayLike", /) -> "Array":
    """Divide two arrays element-wise. This is the operator `x1 / x2`.

    Args:
        x1: the dividend. Integers and booleans are converted to floats.
        x2: the divisor. Integers and booleans are converted to floats.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.divide(jnp.array([1, 2]), 4)
        Array([0.25, 0.5 ], dtype=float32)
    """
    dtype, weak = promote_dtypes("divide", (type_of(x1, "divide"), type_of(x2, "divide")))
    return Div()(*promote_and_broadcast("divide", (x1, x2), inexact_dtype(dtype), weak))


@compiled_function
def negative(x: "ArrayLike", /) -> Any:
    """Negate an array element-wise. This is the operator `-x`.

    Args:
        x: the array of numbers.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        TypeError: if `x` is not an array or a number, or is boolean.

    Example:
        >>> jnp.negative(jnp.array([1, -2]))
        Array([-1,  2], dtype=int32)
    """
    return Neg()(as_operand(x, "negative"))


@compiled_function
def exp(x: "ArrayLike", /) -> "Array":
    """Compute the exponential function element-wise.

    Args:
        x: the exponents. Integers and booleans are converted to floats.

    Returns:
        An array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> round(float(jnp.exp(1)), 3)
        2.718
    """
    return Exp()(as_inexact(x, "exp"))


@compiled_function
def absolute(x: "ArrayLike", /) -> "Array":
    """Compute the absolute value element-wise.

    Args:
        x: the array.

    Returns:
        An array of the shape of `x`, real if `x` is complex.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.absolute(jnp.array([-3, 2]))
        Array([3, 2], dtype=int32)
    """
    x = as_operand(x, "absolute")
    return Abs()(x) if SIGNED.contains(x.type.dtype) else x


@compiled_function
def floor_divide(x1: "ArrayLike", x2: "ArrayLike", /) -> "Array":
    """Divide and round down element-wise. This is the operator `x1 // x2`.

    Args:
        x1: the dividend, real. Booleans are converted to integers.
        x2: the divisor, real. An integer divided by 0 is -2, and 0 divided by 0 is -1; an unsigned one is the largest
            integer.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is complex, or if the shapes do not broadcast.

    Example:
        >>> jnp.floor_divide(jnp.array([7, -7]), 2)
        Array([ 3, -4], dtype=int32)
    """
    x, y = promote_numeric("floor_divide", x1, x2)
    rest = Rem()(x, y)
    if is_integer(x.type.dtype):
        if not integer_range(x.type.dtype)[0]:  # unsigned
            return Div()(x, y)
        # XLA's quotient by 0 is -1. The signs of 0 and of a positive number differ, so that this is rounded down too.
        rounds = And()(Compare("NE")(rest, full_like(rest, 0)), Compare("NE")(Sign()(x), Sign()(y)))
        return Sub()(Div()(x, y), Convert(x.type.dtype, x.type.weak)(rounds))
    quotient = Div()(Sub()(x, rest), y)
    floor = Round()(Select()(_signs_differ(rest, y), Sub()(quotient, full_like(quotient, 1)), quotient))
    return Select()(Compare("EQ")(y, full_like(y, 0)), Div()(x, y), floor)


def _signs_differ(rest: "Array", y: "Array") -> Any:
    """Return whether a truncated remainder is nonzero and its sign differs from the sign of the divisor `y`.

    The quotient of the floor division is then one less than the quotient of the truncated division.
    """
    zero, below = full_like(y, 0), Compare("LT")
    return And()(Compare("NE")(rest, zero), Xor()(below(rest, zero), below(y, zero)))


@compiled_function
def remainder(x1: "ArrayLike", x2: "ArrayLike", /) -> "Array":
    """Compute the remainder of a floor division element-wise. This is the operator `x1 % x2`.

    The result has the sign of the divisor. `fmod` has the sign of the dividend.

    Args:
        x1: the dividend, real. Booleans are converted to integers.
        x2: the divisor, real. The remainder of integers by 0 is 0.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is complex, or if the shapes do not broadcast.

    Example:
        >>> jnp.remainder(jnp.array([7, -7]), 3)
        Array([1, 2], dtype=int32)
    """
    x, y = promote_numeric("remainder", x1, x2)
    rest = Rem()(x, y)
    result = Select()(_signs_differ(rest, y), Add()(rest, y), rest)
    return Select()(Compare("EQ")(y, full_like(y, 0)), full_like(y, 0), result) if is_integer(y.type.dtype) else result


def power(x1: "ArrayLike", x2: "ArrayLike", /) -> "Array":
    """Raise to a power element-wise. This is the operator `x1 ** x2`.

    Args:
        x1: the bases.
        x2: the exponents. An integer of Python or NumPy is a static parameter, and the result has the dtype of `x1`.
            In an array, a negative power of an integer is 0, except for the bases 1 and -1.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, if the shapes do not broadcast, or if `x1` is of integers
            and `x2` is a negative integer of Python or NumPy.

    Example:
        >>> jnp.power(jnp.array([2, 3]), 3)
        Array([ 8, 27], dtype=int32)
    """
    if isinstance(x2, np.ndarray) and not x2.ndim:
        x2 = x2[()]
    if isinstance(x2, (int, np.integer)):
        return integer_power(x1, y=operator.index(x2))
    return _power(x1, x2)


@compiled_function
def integer_power(x: "ArrayLike", *, y: int) -> Any:
    """Raise to a static integer power."""
    return IntegerPow(y)(*promote_numeric("power", x))


@compiled_function
def _power(x: "ArrayLike", y: "ArrayLike") -> Any:
    exponent = type_of(y, "power")
    x, y = promote_numeric("power", x, y)
    # As in JAX, where powers of floats take integers as they are, and constants for powers of integers have dims.
    if (is_integer(exponent.dtype) and not exponent.weak) or (x.type.ndim and not is_inexact(x.type.dtype)):
        x, y = as_strong(x), as_strong(y)
    if is_inexact(x.type.dtype):
        return Pow()(x, y)
    zero, one = full_like(x, 0), full_like(x, 1)
    product, square = one, x
    for position in range(bit_width(x.type.dtype)):
        bit = And()(ShiftRightLogical()(y, full_like(y, position)), one)
        product = Select()(Compare("EQ")(bit, one), Mul()(product, square), product)
        square = Mul()(square, square)
    is_unit = Compare("EQ")(Mul()(x, x), one)
    is_integral = Or()(Compare("GE")(y, zero), is_unit)
    return Select()(is_integral, product, zero)


def promote_numeric(name: str, *operands: "ArrayLike") -> list["Array"]:
    """Promote operands to a common dtype, booleans to integers, and broadcast them."""
    dtype, weak = promote_dtypes(name, [type_of(x, name) for x in operands])
    return promote_and_broadcast(name, operands, default_dtype("int*") if dtype == np.bool_ else dtype, weak)


@compiled_function
def bitwise_and(x: "ArrayLike", y: "ArrayLike", /) -> Any:
    """Compute the bitwise AND element-wise. This is the operator `x & y`.

    Args:
        x, y: arrays of integers or booleans.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is float or complex, or if the shapes do not
            broadcast.

    Example:
        >>> jnp.bitwise_and(jnp.array([5, 3]), 4)
        Array([4, 0], dtype=int32)
    """
    return And()(*promote_and_broadcast("bitwise_and", (x, y)))


@compiled_function
def bitwise_or(x: "ArrayLike", y: "ArrayLike", /) -> Any:
    """Compute the bitwise OR element-wise. This is the operator `x | y`.

    Args:
        x, y: arrays of integers or booleans.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is float or complex, or if the shapes do not
            broadcast.

    Example:
        >>> jnp.bitwise_or(jnp.array([5, 3]), 4)
        Array([5, 7], dtype=int32)
    """
    return Or()(*promote_and_broadcast("bitwise_or", (x, y)))


@compiled_function
def bitwise_xor(x: "ArrayLike", y: "ArrayLike", /) -> Any:
    """Compute the bitwise XOR element-wise. This is the operator `x ^ y`.

    Args:
        x, y: arrays of integers or booleans.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is float or complex, or if the shapes do not
            broadcast.

    Example:
        >>> jnp.bitwise_xor(jnp.array([5, 3]), 4)
        Array([1, 7], dtype=int32)
    """
    return Xor()(*promote_and_broadcast("bitwise_xor", (x, y)))


@compiled_function
def invert(x: "ArrayLike", /) -> "Array":
    """Compute the bitwise NOT element-wise. This is the operator `~x`.

    Args:
        x: an array of integers or booleans.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        TypeError: if `x` is not an array or a number, or is float or complex.

    Example:
        >>> jnp.invert(jnp.array([0, 5]))
        Array([-1, -6], dtype=int32)
    """
    return Not()(as_operand(x, "invert"))


@compiled_function
def left_shift(x: "ArrayLike", y: "ArrayLike", /) -> "Array":
    """Shift bits to the left element-wise. This is the operator `x << y`.

    Args:
        x: an array of integers. Booleans are converted to integers.
        y: the number of positions to shift by.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is float or complex, or if the shapes do not
            broadcast.

    Example:
        >>> jnp.left_shift(jnp.array([1, 3]), 2)
        Array([ 4, 12], dtype=int32)
    """
    return ShiftLeft()(*promote_numeric("left_shift", x, y))


@compiled_function
def right_shift(x1: "ArrayLike", x2: "ArrayLike", /) -> "Array":
    """Shift bits to the right element-wise. This is the operator `x1 >> x2`.

    Args:
        x1: an array of integers. The shift is arithmetic for signed dtypes and logical for unsigned ones.
        x2: the number of positions to shift by.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is float or complex, or if the shapes do not
            broadcast.

    Example:
        >>> jnp.right_shift(jnp.array([8, -8]), 2)
        Array([ 2, -2], dtype=int32)
    """
    x1, x2 = promote_numeric("right_shift", x1, x2)
    return (ShiftRightArithmetic() if SIGNED.contains(x1.type.dtype) else ShiftRightLogical())(x1, x2)


@compiled_function
def maximum(x: "ArrayLike", y: "ArrayLike", /) -> Any:
    """Compute the maximum of two arrays element-wise. NaN propagates.

    Args:
        x, y: the arrays.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.maximum(jnp.array([1, 5]), 3)
        Array([3, 5], dtype=int32)
    """
    return Max()(*promote_and_broadcast("maximum", (x, y)))


@compiled_function
def minimum(x: "ArrayLike", y: "ArrayLike", /) -> Any:
    """Compute the minimum of two arrays element-wise. NaN propagates.

    Args:
        x, y: the arrays.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.minimum(jnp.array([1, 5]), 3)
        Array([1, 3], dtype=int32)
    """
    return Min()(*promote_and_broadcast("minimum", (x, y)))


def clip(x: Any, min: "ArrayLike | None" = None, max: "ArrayLike | None" = None) -> Any:
    """Limit elements to at least `min`, then to at most `max`. None is no bound."""
    x = x if min is None else maximum(min, x)
    return as_operand(x, "clip") if max is None else minimum(max, x)


@compiled_function
def around(x: "ArrayLike", *, decimals: int = 0) -> Any:
    """Round to `decimals` decimals, ties to even."""
    x = as_operand(x, "round")
    dtype = x.type.dtype
    if not is_inexact(dtype):
        if decimals < 0:
            raise NotImplementedError(f"round: integers cannot be rounded to {decimals} decimals; convert to floats")
        return x
    if dtype.kind == "c":
        return Complex()(*(around(part()(x), decimals=decimals) for part in (Real, Imag)))
    if not decimals:
        return Round()(x)
    wide = astype_weak(x, numpy_carrier(dtype), x.type.weak)
    scale = full_like(wide, 10.0**decimals)
    return astype_weak(Div()(Round()(Mul()(wide, scale)), scale), dtype, x.type.weak)


@compiled_function
def real(val: "ArrayLike", /) -> "Array":
    """Return the real part element-wise.

    Args:
        val: the array.

    Returns:
        An array of the shape of `val`; `val` itself if it is real.

    Raises:
        TypeError: if `val` is not an array or a number.

    Example:
        >>> jnp.real(jnp.array([1 + 2j]))
        Array([1.], dtype=float32)
    """
    x = as_operand(val, "real")
    return Real()(x) if x.type.dtype.kind == "c" else x


@compiled_function
def imag(val: "ArrayLike", /) -> "Array":
    """Return the imaginary part element-wise.

    Args:
        val: the array.

    Returns:
        An array of the shape of `val`; zeros if it is real.

    Raises:
        TypeError: if `val` is not an array or a number.

    Example:
        >>> jnp.imag(jnp.array([1 + 2j]))
        Array([2.], dtype=float32)
    """
    x = as_operand(val, "imag")
    return Imag()(x) if x.type.dtype.kind == "c" else full(x.type.shape, 0, x.type.dtype, x.type.weak)


@compiled_function
def conjugate(x: "ArrayLike", /) -> "Array":
    """Compute the complex conjugate element-wise.

    Args:
        x: the array.

    Returns:
        An array of the shape and dtype of `x`; `x` itself if it is real.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.conjugate(jnp.array([1 + 2j]))
        Array([1.-2.j], dtype=complex64)
    """
    x = as_operand(x, "conjugate")
    return Conj()(x) if x.type.dtype.kind == "c" else x


def as_bool(x: object, name: str) -> "Array":
    """Convert to booleans: whether each element is nonzero."""
    x = as_operand(x, name)
    return x if x.type.dtype == np.bool_ else Compare("NE")(x, full_like(x, 0))
