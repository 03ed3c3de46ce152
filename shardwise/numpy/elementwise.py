"""numpy's elementwise functions, other than the arithmetic that operators of arrays need (`compiler.ops.numeric`).

Functions that are only defined for floats convert integers to the default float dtype.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.compiler.arrays.arithmetic import absolute, as_bool, floor_divide, imag, real, remainder
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand, compiled_function, promote_and_broadcast, type_of
from shardwise.compiler.arrays.promotion import default_dtype, promote_dtypes
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Rem, Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, Not, Or, Xor
from shardwise.compiler.ops.elementwise.complex_parts import Complex, Sign
from shardwise.compiler.ops.elementwise.powers import Cbrt, Sqrt
from shardwise.compiler.ops.elementwise.rounding import Ceil, Floor, IsFinite, Nextafter, Round
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atan2,
    Atanh,
    Cos,
    Cosh,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log1p,
    Sin,
    Sinh,
    Tan,
    Tanh,
)
from shardwise.compiler.ops.shape.constants import full


def _unary(
    name: str, op: Op, summary: str, at: float, value: float, *, takes_complex: bool = True
) -> Callable[[Any], Array]:
    """Return the public function for an op on floats and complex numbers.

    The example in its docstring shows that its value at `at`, rounded to 3 decimals, is `value`.
    """

    def function(x: Any, /) -> Array:
        return op(as_inexact(x, name))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{summary}

    Args:
        x: the array. Integers and booleans are converted to floats.

    Returns:
        An array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number{"" if takes_complex else ", or if it is complex"}.

    Example:
        >>> round(float(jnp.{name}({at})), 3)
        {value}
    """
    return compiled_function(function)


expm1 = _unary("expm1", Expm1(), "Compute `exp(x) - 1` element-wise, without loss of precision near 0.", 1.0, 1.718)
log = _unary("log", Log(), "Compute the natural logarithm element-wise.", 2.0, 0.693)
log1p = _unary("log1p", Log1p(), "Compute `log(1 + x)` element-wise, without loss of precision near 0.", 1.0, 0.693)
sin = _unary("sin", Sin(), "Compute the sine element-wise, of angles in radians.", 1.0, 0.841)
cos = _unary("cos", Cos(), "Compute the cosine element-wise, of angles in radians.", 1.0, 0.54)
tan = _unary("tan", Tan(), "Compute the tangent element-wise, of angles in radians.", 1.0, 1.557)
arcsin = asin = _unary("arcsin", Asin(), "Compute the inverse sine element-wise, in radians.", 1.0, 1.571)
arccos = acos = _unary("arccos", Acos(), "Compute the inverse cosine element-wise, in radians.", 0.0, 1.571)
arctan = atan = _unary("arctan", Atan(), "Compute the inverse tangent element-wise, in radians.", 1.0, 0.785)
sinh = _unary("sinh", Sinh(), "Compute the hyperbolic sine element-wise.", 1.0, 1.175)
cosh = _unary("cosh", Cosh(), "Compute the hyperbolic cosine element-wise.", 1.0, 1.543)
tanh = _unary("tanh", Tanh(), "Compute the hyperbolic tangent element-wise.", 1.0, 0.762)
arcsinh = asinh = _unary("arcsinh", Asinh(), "Compute the inverse hyperbolic sine element-wise.", 1.0, 0.881)
arccosh = acosh = _unary("arccosh", Acosh(), "Compute the inverse hyperbolic cosine element-wise.", 2.0, 1.317)
arctanh = atanh = _unary("arctanh", Atanh(), "Compute the inverse hyperbolic tangent element-wise.", 0.5, 0.549)
sqrt = _unary("sqrt", Sqrt(), "Compute the square root element-wise.", 2.0, 1.414)
cbrt = _unary("cbrt", Cbrt(), "Compute the real cube root element-wise.", -27.0, -3.0, takes_complex=False)


def promote_inexact(name: str, *operands: Any) -> list[Array]:
    """Promote operands to a common float or complex dtype and broadcast them."""
    dtype, weak = promote_dtypes(name, [type_of(x, name) for x in operands])
    return promote_and_broadcast(name, operands, dtype if is_inexact(dtype) else default_dtype("float*"), weak)


@compiled_function
def arctan2(x1: Any, x2: Any, /) -> Array:
    """Compute the angle of the point `(x2, x1)` element-wise.

    Args:
        x1: the y-coordinates, real.
        x2: the x-coordinates, real.

    Returns:
        The angles in radians, from -π to π, in the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is complex, or if the shapes do not broadcast.

    Example:
        >>> jnp.arctan2(1.0, jnp.array([0.0, -1.0]))
        Array([1.5707964, 2.3561945], dtype=float32)
    """
    return Atan2()(*promote_inexact("arctan2", x1, x2))


atan2 = arctan2


@compiled_function
def nextafter(x: Any, y: Any, /) -> Array:
    """Return the next representable float after `x` in the direction of `y`, element-wise.

    Args:
        x: the starting values, real.
        y: the values toward which to step, real.

    Returns:
        An array of floats, in the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is complex, or if the shapes do not broadcast.

    Example:
        >>> jnp.nextafter(jnp.array([1.0, 0.0]), 2.0)
        Array([1.0000001e+00, 1.4012985e-45], dtype=float32)
    """
    return Nextafter()(*promote_inexact("nextafter", x, y))


@compiled_function
def hypot(x1: Any, x2: Any, /) -> Array:
    """Compute `sqrt(x1**2 + x2**2)` element-wise, without overflow of the squares.

    Args:
        x1, x2: the legs of right triangles.

    Returns:
        The hypotenuses, in the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.hypot(jnp.array([3.0, 1e30]), 4.0)
        Array([5.e+00, 1.e+30], dtype=float32)
    """
    x, y = (absolute(z) for z in promote_inexact("hypot", x1, x2))
    longer, shorter = Select()(Compare("GT")(x, y), x, y), Select()(Compare("GT")(x, y), y, x)
    is_zero = Compare("EQ")(longer, full_like(longer, 0))
    ratio = shorter / Select()(is_zero, full_like(longer, 1), longer)
    length = Mul()(longer, Sqrt()(Add()(Mul()(ratio, ratio), full_like(ratio, 1))))
    # At 0 the derivative is undefined; this expression gives both operands the same, finite one.
    length = Select()(is_zero, Mul()(Add()(x, y), full_like(x, 0.5)), length)
    is_infinite = Or()(*(Compare("EQ")(z, full_like(z, np.inf)) for z in (x, y)))
    return Select()(is_infinite, full_like(length, np.inf), length)


@compiled_function
def exp2(x: Any, /) -> Array:
    """Compute `2**x` element-wise.

    Args:
        x: the exponents. Integers and booleans are converted to floats.

    Returns:
        An array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.exp2(jnp.array([0.0, -1.0]))
        Array([1. , 0.5], dtype=float32)
    """
    return Exp2()(as_inexact(x, "exp2"))


@compiled_function
def log2(x: Any, /) -> Array:
    """Compute the logarithm to base 2 element-wise.

    Args:
        x: the array. Integers and booleans are converted to floats.

    Returns:
        An array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.log2(jnp.array([8.0, 0.5]))
        Array([ 3., -1.], dtype=float32)
    """
    x = as_inexact(x, "log2")
    return Log()(x) / full_like(x, math.log(2))


@compiled_function
def log10(x: Any, /) -> Array:
    """Compute the logarithm to base 10 element-wise.

    Args:
        x: the array. Integers and booleans are converted to floats.

    Returns:
        An array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.log10(jnp.array([1.0, 1000.0]))
        Array([0., 3.], dtype=float32)
    """
    x = as_inexact(x, "log10")
    return Log()(x) / full_like(x, math.log(10))


@compiled_function
def logaddexp(x1: Any, x2: Any, /) -> Any:
    """Compute `log(exp(x1) + exp(x2))` element-wise, without overflow of the exponentials.

    Args:
        x1, x2: the arrays.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.logaddexp(jnp.array([0.0, 1000.0]), 0.0)
        Array([6.931472e-01, 1.000000e+03], dtype=float32)
    """
    x, y = promote_inexact("logaddexp", x1, x2)
    return logaddexp_with_base(x, y, math.e)


def logaddexp_with_base(x: Any, y: Any, base: float) -> Any:
    """Compute the logarithm, to `base`, of the sum of two powers of `base`.

    For equal operands it does not matter which is `larger`, for values and derivatives of any order, as long as
    `larger` and `smaller` are selected by the same comparison.
    """
    is_first_larger = Compare("GE")(real(x), real(y))
    larger, smaller = Select()(is_first_larger, x, y), Select()(is_first_larger, y, x)
    # Equal infinities would have the difference NaN; their result gives both operands the derivative 1/2.
    is_same_infinity = And()(Compare("EQ")(x, y), isinf(x))
    high, low = (Select()(is_same_infinity, full_like(z, 0), z) for z in (larger, smaller))
    scale = full_like(x, math.log(base))
    correction = Log1p()(Exp()(Mul()(Sub()(low, high), scale))) / scale
    result = Select()(is_same_infinity, Mul()(Add()(x, y), full_like(x, 0.5)), Add()(larger, correction))
    return _wrap_imaginary(result, 2 * math.pi / math.log(base)) if result.type.dtype.kind == "c" else result


def _wrap_imaginary(z: Any, period: float) -> Any:
    """Wrap the imaginary parts of complex numbers to half a period around 0."""
    angle = imag(z)
    turns = Round()(Div()(angle, full_like(angle, period)))
    return Complex()(real(z), Sub()(angle, Mul()(turns, full_like(angle, period))))


@compiled_function
def sign(x: Any, /) -> Array:
    """Compute the sign element-wise: -1, 0 or 1; for complex numbers `x / abs(x)`.

    Args:
        x: the array of numbers.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        TypeError: if `x` is not an array or a number, or is boolean.

    Example:
        >>> jnp.sign(jnp.array([-3, 0, 2]))
        Array([-1,  0,  1], dtype=int32)
    """
    return Sign()(as_operand(x, "sign"))


@compiled_function
def floor(x: Any, /) -> Array:
    """Round down to the nearest integer element-wise.

    Args:
        x: the array, real. Integers and booleans are returned unchanged.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        TypeError: if `x` is not an array or a number, or is complex.

    Example:
        >>> jnp.floor(jnp.array([1.5, -1.5]))
        Array([ 1., -2.], dtype=float32)
    """
    x = as_operand(x, "floor")
    return Floor()(x) if is_inexact(x.type.dtype) else x


@compiled_function
def ceil(x: Any, /) -> Array:
    """Round up to the nearest integer element-wise.

    Args:
        x: the array, real. Integers and booleans are returned unchanged.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        TypeError: if `x` is not an array or a number, or is complex.

    Example:
        >>> jnp.ceil(jnp.array([1.5, -1.5]))
        Array([ 2., -1.], dtype=float32)
    """
    x = as_operand(x, "ceil")
    return Ceil()(x) if is_inexact(x.type.dtype) else x


def trunc(x: Any) -> Array:
    """Round toward zero to the nearest integer element-wise.

    Args:
        x: the array, real. Integers and booleans are returned unchanged.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        TypeError: if `x` is not an array or a number, or is complex.

    Example:
        >>> jnp.trunc(jnp.array([1.5, -1.5]))
        Array([ 1., -1.], dtype=float32)
    """
    return _trunc(x)


@compiled_function
def _trunc(x: Any) -> Any:
    x = as_operand(x, "trunc")
    if not is_inexact(x.type.dtype):
        return x
    return Select()(Compare("LT")(x, full_like(x, 0)), Ceil()(x), Floor()(x))


@compiled_function
def fmod(x1: Any, x2: Any, /) -> Array:
    """Compute the remainder of a truncated division element-wise.

    The result has the sign of the dividend. `remainder` has the sign of the divisor.

    Args:
        x1: the dividend.
        x2: the divisor. The remainder of integers by 0 is 0.

    Returns:
        An array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or is complex, if both are boolean, or if the shapes do
            not broadcast.

    Example:
        >>> jnp.fmod(jnp.array([7, -7]), 3)
        Array([ 1, -1], dtype=int32)
    """
    x, y = promote_and_broadcast("fmod", (x1, x2))
    rest = Rem()(x, y)
    return rest if is_inexact(y.type.dtype) else Select()(Compare("EQ")(y, full_like(y, 0)), full_like(rest, 0), rest)


def divmod(x1: Any, x2: Any, /) -> tuple[Array, Array]:
    """Compute the quotient and the remainder of a floor division element-wise.

    Args:
        x1: the dividend.
        x2: the divisor.

    Returns:
        `floor_divide(x1, x2)` and `remainder(x1, x2)`.

    Raises:
        TypeError: if an operand is not an array or a number, or is complex, or if the shapes do not broadcast.

    Example:
        >>> jnp.divmod(jnp.array([7, -7]), 3)
        (Array([ 2, -3], dtype=int32), Array([1, 2], dtype=int32))
    """
    return floor_divide(x1, x2), remainder(x1, x2)


@compiled_function
def isnan(x: Any, /) -> Array:
    """Return element-wise whether a value is NaN; for complex numbers, whether either part is.

    Args:
        x: the array.

    Returns:
        A boolean array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.isnan(jnp.array([1.0, jnp.nan]))
        Array([False,  True], dtype=bool)
    """
    x = as_operand(x, "isnan")
    return Compare("NE")(x, x) if is_inexact(x.type.dtype) else full(x.type.shape, False, np.bool_)


@compiled_function
def isfinite(x: Any, /) -> Array:
    """Return element-wise whether a value is neither infinite nor NaN; for complex numbers, whether both parts are.

    Args:
        x: the array.

    Returns:
        A boolean array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.isfinite(jnp.array([1.0, jnp.inf, jnp.nan]))
        Array([ True, False, False], dtype=bool)
    """
    x = as_operand(x, "isfinite")
    if x.type.dtype.kind == "c":
        return And()(IsFinite()(real(x)), IsFinite()(imag(x)))
    return IsFinite()(x) if is_inexact(x.type.dtype) else full(x.type.shape, True, np.bool_)


@compiled_function
def isinf(x: Any, /) -> Array:
    """Return element-wise whether a value is infinite; for complex numbers, whether either part is.

    Args:
        x: the array.

    Returns:
        A boolean array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.isinf(jnp.array([1.0, -jnp.inf, jnp.nan]))
        Array([False,  True, False], dtype=bool)
    """
    x = as_operand(x, "isinf")
    if x.type.dtype.kind == "c":
        return Or()(isinf(real(x)), isinf(imag(x)))
    if not is_inexact(x.type.dtype):
        return full(x.type.shape, False, np.bool_)
    return Compare("EQ")(absolute(x), full_like(x, np.inf))


@compiled_function
def logical_and(x: Any, y: Any, /) -> Any:
    """Compute the logical AND element-wise: whether both operands are nonzero.

    Args:
        x, y: the arrays.

    Returns:
        A boolean array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.logical_and(jnp.array([0, 1, 2]), True)
        Array([False,  True,  True], dtype=bool)
    """
    return And()(*promote_and_broadcast("logical_and", [as_bool(z, "logical_and") for z in (x, y)]))


@compiled_function
def logical_or(x: Any, y: Any, /) -> Any:
    """Compute the logical OR element-wise: whether at least one operand is nonzero.

    Args:
        x, y: the arrays.

    Returns:
        A boolean array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.logical_or(jnp.array([0, 1, 2]), False)
        Array([False,  True,  True], dtype=bool)
    """
    return Or()(*promote_and_broadcast("logical_or", [as_bool(z, "logical_or") for z in (x, y)]))


@compiled_function
def logical_xor(x: Any, y: Any, /) -> Any:
    """Compute the logical XOR element-wise: whether exactly one operand is nonzero.

    Args:
        x, y: the arrays.

    Returns:
        A boolean array of the broadcast shape.

    Raises:
        TypeError: if an operand is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> jnp.logical_xor(jnp.array([0, 1, 2]), True)
        Array([ True, False, False], dtype=bool)
    """
    return Xor()(*promote_and_broadcast("logical_xor", [as_bool(z, "logical_xor") for z in (x, y)]))


@compiled_function
def logical_not(x: Any, /) -> Array:
    """Compute the logical NOT element-wise: whether a value is 0.

    Args:
        x: the array.

    Returns:
        A boolean array of the shape of `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> jnp.logical_not(jnp.array([0, 1, 2]))
        Array([ True, False, False], dtype=bool)
    """
    return Not()(as_bool(x, "logical_not"))


@compiled_function
def replace_nan(a: Any, *, value: float) -> Array:
    """Replace NaN by `value`."""
    x = as_operand(a, "nan reduction")
    return Select()(isnan(x), full_like(x, value), x) if is_inexact(x.type.dtype) else x
