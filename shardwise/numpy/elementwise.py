"""numpy's elementwise functions, other than the arithmetic that operators of arrays need (`compiler.ops.numeric`).

Functions that are only defined for floats convert integers to the default float dtype.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.arithmetic import absolute, as_bool, floor_divide, imag, promote_numeric, real, remainder
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    as_strong,
    compiled_function,
    promote_and_broadcast,
    type_of,
)
from shardwise.compiler.arrays.promotion import inexact_dtype, promote_dtypes
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.elementwise.arithmetic import Rem
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, Not, Or, Xor
from shardwise.compiler.ops.elementwise.complex_parts import Complex, Sign
from shardwise.compiler.ops.elementwise.expr import Expr
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
    Log2,
    Sin,
    Sinh,
    Tan,
    Tanh,
)
from shardwise.compiler.ops.shape.constants import full
from shardwise.numpy.families import (
    BINARY,
    ELEMENTWISE,
    NOT_REAL,
    PREDICATE,
    REAL_BINARY,
    ROUNDING,
    SAME_TYPE,
    TO_FLOAT,
)
from shardwise.typing import ArrayLike

_REAL = ELEMENTWISE.extended({"x": Parameter(TO_FLOAT.args["x"].text, NOT_REAL)})


def _unary(
    name: str, op: Op, summary: str, at: float, value: float, family: Family = TO_FLOAT
) -> Callable[[Any], Array]:
    """Return the public function for an op on floats and complex numbers.

    The example in its docstring shows that its value at `at`, rounded to 3 decimals, is `value`.
    """

    def function(x: ArrayLike, /) -> Array:
        return op(as_inexact(x, name))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{summary}\n\nExample:\n    >>> round(float(jnp.{name}({at})), 3)\n    {value}\n"
    return compiled_function(documented(family)(function))


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
cbrt = _unary("cbrt", Cbrt(), "Compute the real cube root element-wise.", -27.0, -3.0, _REAL)


def promote_inexact(name: str, *operands: ArrayLike) -> list[Array]:
    """Promote operands to a common float or complex dtype and broadcast them."""
    dtype, weak = promote_dtypes(name, [type_of(x, name) for x in operands])
    return promote_and_broadcast(name, operands, inexact_dtype(dtype), weak)


def promote_to_constants(name: str, *operands: ArrayLike) -> list[Array]:
    """Promote like `promote_inexact` for a function that combines its operands with constants of their dtype.

    As in JAX, such constants have dims, and a type that is not weak, unless they are scalars.
    """
    promoted = promote_inexact(name, *operands)
    return [as_strong(x) for x in promoted] if promoted[0].type.ndim else promoted


@compiled_function
@documented(BINARY, returns="The angles in radians, from -π to π, in the broadcast shape.")
def arctan2(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Compute the angle of the point `(x2, x1)` element-wise.

    Args:
        x1: the y-coordinates.
        x2: the x-coordinates. Complex coordinates are those of the analytic continuation.

    Example:
        >>> jnp.arctan2(1.0, jnp.array([0.0, -1.0]))
        Array([1.5707964, 2.3561945], dtype=float32)
    """
    return Atan2()(*promote_inexact("arctan2", x1, x2))


atan2 = arctan2


@compiled_function
@documented(REAL_BINARY, returns="An array of floats, in the broadcast shape.")
def nextafter(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Return the next representable float after `x` in the direction of `y`, element-wise.

    Args:
        x: the starting values, real.
        y: the values toward which to step, real.

    Example:
        >>> jnp.nextafter(jnp.array([1.0, 0.0]), 2.0)
        Array([1.0000001e+00, 1.4012985e-45], dtype=float32)
    """
    return Nextafter()(*promote_inexact("nextafter", x, y))


@compiled_function
@documented(BINARY, returns="The hypotenuses, in the broadcast shape.")
def hypot(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Compute `sqrt(x1**2 + x2**2)` element-wise, without overflow of the squares.

    Args:
        x1, x2: the legs of right triangles, real.

    Raises:
        ValueError: if an operand is complex.

    Example:
        >>> jnp.hypot(jnp.array([3.0, 1e30]), 4.0)
        Array([5.e+00, 1.e+30], dtype=float32)
    """
    operands = promote_to_constants("hypot", x1, x2)
    if operands[0].type.dtype.kind == "c":
        raise ValueError("hypot: complex operands have no hypotenuse; use their absolute values, `abs(x)`")
    x, y = (absolute(z) for z in operands)
    longer, shorter = Select()(Compare("GT")(x, y), x, y), Select()(Compare("GT")(x, y), y, x)
    is_zero = Compare("EQ")(longer, full_like(longer, 0))
    ratio = shorter / Select()(is_zero, full_like(longer, 1), longer)
    length = longer * Sqrt()(ratio * ratio + 1)
    # At 0 the derivative is undefined; this expression gives both operands the same, finite one.
    length = Select()(is_zero, (x + y) * 0.5, length)
    is_infinite = Or()(*(Compare("EQ")(z, full_like(z, np.inf)) for z in (x, y)))
    return Select()(is_infinite, full_like(length, np.inf), length)


@compiled_function
@documented(ELEMENTWISE)
def exp2(x: ArrayLike, /) -> Array:
    """Compute `2**x` element-wise.

    Args:
        x: the exponents. Integers and booleans are converted to floats.

    Example:
        >>> jnp.exp2(jnp.array([0.0, -1.0]))
        Array([1. , 0.5], dtype=float32)
    """
    return Exp2()(as_inexact(x, "exp2"))


@compiled_function
@documented(TO_FLOAT)
def log2(x: ArrayLike, /) -> Array:
    """Compute the logarithm to base 2 element-wise.

    Example:
        >>> jnp.log2(jnp.array([8.0, 0.5]))
        Array([ 3., -1.], dtype=float32)
    """
    return Log2()(as_strong(as_inexact(x, "log2")))


@compiled_function
@documented(TO_FLOAT)
def log10(x: ArrayLike, /) -> Array:
    """Compute the logarithm to base 10 element-wise.

    Example:
        >>> jnp.log10(jnp.array([1.0, 1000.0]))
        Array([0., 3.], dtype=float32)
    """
    x = as_strong(as_inexact(x, "log10"))
    return Log()(x) / math.log(10)


@compiled_function
def logaddexp(x1: ArrayLike, x2: ArrayLike, /) -> Any:
    """Compute `log(exp(x1) + exp(x2))` element-wise, without overflow of the exponentials."""
    x, y = promote_inexact("logaddexp", x1, x2)
    if x.type.dtype.kind == "c":
        x, y = promote_to_constants("logaddexp", x, y)
    return logaddexp_with_base(x, y, math.e)


def logaddexp_with_base(x: Array, y: Array, base: float) -> Any:
    """Compute the logarithm, to `base`, of the sum of two powers of `base`.

    For equal operands it does not matter which is `larger`, for values and derivatives of any order, as long as
    `larger` and `smaller` are selected by the same comparison.
    """
    is_first_larger = Compare("GE")(real(x), real(y))
    larger, smaller = Select()(is_first_larger, x, y), Select()(is_first_larger, y, x)
    # Equal infinities would have the difference NaN; their result gives both operands the derivative 1/2.
    is_same_infinity = Compare("EQ")(x, y) & isinf(x)
    high, low = (Select()(is_same_infinity, full_like(z, 0), z) for z in (larger, smaller))
    scale = math.log(base)
    correction = Log1p()(Exp()((low - high) * scale)) / scale
    result = Select()(is_same_infinity, (x + y) * 0.5, larger + correction)
    return _wrap_imaginary(result, 2 * math.pi / math.log(base)) if result.type.dtype.kind == "c" else result


def _wrap_imaginary(z: Array, period: float) -> Any:
    """Wrap the imaginary parts of complex numbers to half a period around 0."""
    angle = imag(z)
    turns = Round()(angle / period)
    return Complex()(real(z), angle - turns * period)


@compiled_function
@documented(SAME_TYPE, raises=["TypeError: if `x` is not an array or a number, or is boolean."])
def sign(x: ArrayLike, /) -> Array:
    """Compute the sign element-wise: -1, 0 or 1; for complex numbers `x / abs(x)`.

    Args:
        x: the array of numbers.

    Example:
        >>> jnp.sign(jnp.array([-3, 0, 2]))
        Array([-1,  0,  1], dtype=int32)
    """
    return Sign()(as_operand(x, "sign"))


@compiled_function
@documented(ROUNDING)
def floor(x: ArrayLike, /) -> Array:
    """Round down to the nearest integer element-wise.

    Example:
        >>> jnp.floor(jnp.array([1.5, -1.5]))
        Array([ 1., -2.], dtype=float32)
    """
    x = as_operand(x, "floor")
    return Floor()(x) if is_inexact(x.type.dtype) else x


@compiled_function
@documented(ROUNDING)
def ceil(x: ArrayLike, /) -> Array:
    """Round up to the nearest integer element-wise.

    Example:
        >>> jnp.ceil(jnp.array([1.5, -1.5]))
        Array([ 2., -1.], dtype=float32)
    """
    x = as_operand(x, "ceil")
    return Ceil()(x) if is_inexact(x.type.dtype) else x


@compiled_function
@documented(ROUNDING)
def trunc(x: ArrayLike) -> Array:
    """Round toward zero to the nearest integer element-wise.

    Example:
        >>> jnp.trunc(jnp.array([1.5, -1.5]))
        Array([ 1., -1.], dtype=float32)
    """
    x = as_operand(x, "trunc")
    if not is_inexact(x.type.dtype):
        return x
    return Select()((Expr(x) < 0).array, Ceil()(x), Floor()(x))


@compiled_function
@documented(BINARY)
def fmod(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Compute the remainder of a truncated division element-wise.

    The result has the sign of the dividend. `remainder` has the sign of the divisor.

    Args:
        x1: the dividend.
        x2: the divisor. The remainder of integers by 0 is 0.

    Raises:
        TypeError: if an operand is not an array or a number, or is complex, or if the shapes do not broadcast.

    Example:
        >>> jnp.fmod(jnp.array([7, -7]), 3)
        Array([ 1, -1], dtype=int32)
    """
    x, y = promote_numeric("fmod", x1, x2)
    rest = Rem()(x, y)
    return rest if is_inexact(y.type.dtype) else Select()(Compare("EQ")(y, full_like(y, 0)), full_like(rest, 0), rest)


@documented(REAL_BINARY, returns="`floor_divide(x1, x2)` and `remainder(x1, x2)`.")
def divmod(x1: ArrayLike, x2: ArrayLike, /) -> tuple[Array, Array]:
    """Compute the quotient and the remainder of a floor division element-wise.

    Args:
        x1: the dividend.
        x2: the divisor.

    Example:
        >>> jnp.divmod(jnp.array([7, -7]), 3)
        (Array([ 2, -3], dtype=int32), Array([1, 2], dtype=int32))
    """
    return floor_divide(x1, x2), remainder(x1, x2)


@compiled_function
@documented(PREDICATE)
def isnan(x: ArrayLike, /) -> Array:
    """Return element-wise whether a value is NaN; for complex numbers, whether either part is.

    Example:
        >>> jnp.isnan(jnp.array([1.0, jnp.nan]))
        Array([False,  True], dtype=bool)
    """
    x = as_operand(x, "isnan")
    return Compare("NE")(x, x) if is_inexact(x.type.dtype) else full(x.type.shape, False, np.bool_, x.type.weak)


@compiled_function
@documented(PREDICATE)
def isfinite(x: ArrayLike, /) -> Array:
    """Return element-wise whether a value is neither infinite nor NaN; for complex numbers, whether both parts are.

    Example:
        >>> jnp.isfinite(jnp.array([1.0, jnp.inf, jnp.nan]))
        Array([ True, False, False], dtype=bool)
    """
    x = as_operand(x, "isfinite")
    if x.type.dtype.kind == "c":
        return And()(IsFinite()(real(x)), IsFinite()(imag(x)))
    return IsFinite()(x) if is_inexact(x.type.dtype) else full(x.type.shape, True, np.bool_)


@compiled_function
@documented(PREDICATE)
def isinf(x: ArrayLike, /) -> Array:
    """Return element-wise whether a value is infinite; for complex numbers, whether either part is.

    Example:
        >>> jnp.isinf(jnp.array([1.0, -jnp.inf, jnp.nan]))
        Array([False,  True, False], dtype=bool)
    """
    x = as_strong(as_operand(x, "isinf"))
    if x.type.dtype.kind == "c":
        return Or()(isinf(real(x)), isinf(imag(x)))
    if not is_inexact(x.type.dtype):
        return full(x.type.shape, False, np.bool_)
    return Compare("EQ")(absolute(x), full_like(x, np.inf))


def _promote_to_bool(name: str, *operands: Array) -> list[Any]:
    """Convert operands to booleans and broadcast them. Their dtypes must have a common one by promotion, as in JAX."""
    _, weak = promote_dtypes(name, [type_of(x, name) for x in operands])
    is_scalar = not any(type_of(x, name).ndim for x in operands)
    return promote_and_broadcast(name, [as_bool(x, name) for x in operands], np.bool_, weak and is_scalar)


@compiled_function
def logical_and(x: Array, y: Array, /) -> Any:
    """Compute the logical AND element-wise: whether both operands are nonzero."""
    return And()(*_promote_to_bool("logical_and", x, y))


@compiled_function
def logical_or(x: Array, y: Array, /) -> Any:
    """Compute the logical OR element-wise: whether at least one operand is nonzero."""
    return Or()(*_promote_to_bool("logical_or", x, y))


@compiled_function
def logical_xor(x: Array, y: Array, /) -> Any:
    """Compute the logical XOR element-wise: whether exactly one operand is nonzero."""
    return Xor()(*_promote_to_bool("logical_xor", x, y))


@compiled_function
@documented(PREDICATE)
def logical_not(x: ArrayLike, /) -> Array:
    """Compute the logical NOT element-wise: whether a value is 0.

    Example:
        >>> jnp.logical_not(jnp.array([0, 1, 2]))
        Array([ True, False, False], dtype=bool)
    """
    return Not()(as_bool(x, "logical_not"))


@compiled_function
def replace_nan(a: ArrayLike, *, value: float) -> Array:
    """Replace NaN by `value`."""
    x = as_operand(a, "nan reduction")
    return Select()(isnan(x), full_like(x, value), x) if is_inexact(x.type.dtype) else x
