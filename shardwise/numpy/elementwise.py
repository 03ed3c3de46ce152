"""numpy's functions on each element, beside those that arrays have as operators. Integers become floats where a
function needs them.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops.bitwise import And, Not, Or, Xor
from shardwise.compiler.ops.elementwise import Add, Compare, Div, Mul, Rem, Select, Sub, like
from shardwise.compiler.ops.numeric import absolute, floor_divide, imag, real, remainder, truth
from shardwise.compiler.ops.operands import aligned, as_inexact, as_operand, composed, type_of
from shardwise.compiler.ops.parts import Complex, Sign
from shardwise.compiler.ops.powers import Cbrt, Sqrt
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.rounding import Ceil, Floor, IsFinite, Nextafter, Round
from shardwise.compiler.ops.shape import full
from shardwise.compiler.ops.transcendental import (
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


def _function(name: str, op: Op, at: float, value: float) -> Callable[[Any], Any]:
    """The function of floats or complex numbers that is this op. Its example shows its `value` at one number."""

    def function(x: Any, /) -> Any:
        return op(as_inexact(x, name))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{op.__doc__}\n\n    >>> round(float(jnp.{name}({at})), 3)\n    {value}\n    "
    return composed(function)


expm1 = _function("expm1", Expm1(), 1.0, 1.718)
log = _function("log", Log(), 2.0, 0.693)
log1p = _function("log1p", Log1p(), 1.0, 0.693)
sin = _function("sin", Sin(), 1.0, 0.841)
cos = _function("cos", Cos(), 1.0, 0.54)
tan = _function("tan", Tan(), 1.0, 1.557)
arcsin = asin = _function("arcsin", Asin(), 1.0, 1.571)
arccos = acos = _function("arccos", Acos(), 0.0, 1.571)
arctan = atan = _function("arctan", Atan(), 1.0, 0.785)
sinh = _function("sinh", Sinh(), 1.0, 1.175)
cosh = _function("cosh", Cosh(), 1.0, 1.543)
tanh = _function("tanh", Tanh(), 1.0, 0.762)
arcsinh = asinh = _function("arcsinh", Asinh(), 1.0, 0.881)
arccosh = acosh = _function("arccosh", Acosh(), 2.0, 1.317)
arctanh = atanh = _function("arctanh", Atanh(), 0.5, 0.549)
sqrt = _function("sqrt", Sqrt(), 2.0, 1.414)
cbrt = _function("cbrt", Cbrt(), -27.0, -3.0)


def floats(name: str, *operands: Any) -> list[Any]:
    """Operands promoted to floats or complex numbers, and broadcast."""
    dtype, weak = meet(name, [type_of(x, name) for x in operands])
    return aligned(name, operands, dtype if is_inexact(dtype) else default_dtype("float*"), weak)


@composed
def arctan2(x1: Any, x2: Any, /) -> Any:
    """The angle of the point whose ordinate is `x1` and whose abscissa is `x2`.

    >>> jnp.arctan2(1.0, jnp.array([0.0, -1.0]))
    Array([1.5707964, 2.3561945], dtype=float32)
    """
    return Atan2()(*floats("arctan2", x1, x2))


atan2 = arctan2


@composed
def nextafter(x: Any, y: Any, /) -> Any:
    """The float that follows `x` on the way to `y`.

    >>> jnp.nextafter(jnp.array([1.0, 0.0]), 2.0)
    Array([1.0000001e+00, 1.4012985e-45], dtype=float32)
    """
    return Nextafter()(*floats("nextafter", x, y))


@composed
def hypot(x1: Any, x2: Any, /) -> Any:
    """The length of the vector that has these two parts; no square overflows on the way.

    >>> jnp.hypot(jnp.array([3.0, 1e30]), 4.0)
    Array([5.e+00, 1.e+30], dtype=float32)
    """
    x, y = (absolute(z) for z in floats("hypot", x1, x2))
    longer, shorter = Select()(Compare("GT")(x, y), x, y), Select()(Compare("GT")(x, y), y, x)
    is_zero = Compare("EQ")(longer, like(longer, 0))
    ratio = shorter / Select()(is_zero, like(longer, 1), longer)
    length = Mul()(longer, Sqrt()(Add()(Mul()(ratio, ratio), like(ratio, 1))))
    # At 0 the slope has no direction: both parts share it.
    length = Select()(is_zero, Mul()(Add()(x, y), like(x, 0.5)), length)
    is_infinite = Or()(*(Compare("EQ")(z, like(z, np.inf)) for z in (x, y)))
    return Select()(is_infinite, like(length, np.inf), length)


@composed
def exp2(x: Any, /) -> Any:
    """2 to the power of each element.

    >>> jnp.exp2(jnp.array([0.0, -1.0]))
    Array([1. , 0.5], dtype=float32)
    """
    return Exp2()(as_inexact(x, "exp2"))


@composed
def log2(x: Any, /) -> Any:
    """The logarithm to base 2.

    >>> jnp.log2(jnp.array([8.0, 0.5]))
    Array([ 3., -1.], dtype=float32)
    """
    x = as_inexact(x, "log2")
    return Log()(x) / like(x, math.log(2))


@composed
def log10(x: Any, /) -> Any:
    """The logarithm to base 10.

    >>> jnp.log10(jnp.array([1.0, 1000.0]))
    Array([0., 3.], dtype=float32)
    """
    x = as_inexact(x, "log10")
    return Log()(x) / like(x, math.log(10))


@composed
def logaddexp(x1: Any, x2: Any, /) -> Any:
    """`log(exp(x1) + exp(x2))`, where neither power overflows.

    >>> jnp.logaddexp(jnp.array([0.0, 1000.0]), 0.0)
    Array([6.931472e-01, 1.000000e+03], dtype=float32)
    """
    x, y = floats("logaddexp", x1, x2)
    return log_of_sum(x, y, math.e)


def log_of_sum(x: Any, y: Any, base: float) -> Any:
    """The logarithm of the sum of two powers of `base`.

    Which of two equal ones counts as the larger changes neither the value nor a derivative of any order, as long as
    larger and smaller are chosen by one comparison.
    """
    is_first = Compare("GE")(real(x), real(y))
    larger, smaller = Select()(is_first, x, y), Select()(is_first, y, x)
    # The difference of an infinity from itself is NaN; there both share the slope.
    is_one_infinity = And()(Compare("EQ")(x, y), isinf(x))
    finite = [Select()(is_one_infinity, like(z, 0), z) for z in (larger, smaller)]
    scale = like(x, math.log(base))
    share = Log1p()(Exp()(Mul()(Sub()(finite[1], finite[0]), scale))) / scale
    found = Select()(is_one_infinity, Mul()(Add()(x, y), like(x, 0.5)), Add()(larger, share))
    return _turned(found, 2 * math.pi / math.log(base)) if found.type.dtype.kind == "c" else found


def _turned(z: Any, turn: float) -> Any:
    """Complex numbers whose imaginary parts lie within half a turn around 0."""
    angle = imag(z)
    whole = Round()(Div()(angle, like(angle, turn)))
    return Complex()(real(z), Sub()(angle, Mul()(whole, like(angle, turn))))


@composed
def sign(x: Any, /) -> Any:
    """-1, 0 or 1; of complex numbers the one of magnitude 1 in the same direction.

    >>> jnp.sign(jnp.array([-3, 0, 2]))
    Array([-1,  0,  1], dtype=int32)
    """
    return Sign()(as_operand(x, "sign"))


@composed
def floor(x: Any, /) -> Any:
    """The largest integer that is not above the element.

    >>> jnp.floor(jnp.array([1.5, -1.5]))
    Array([ 1., -2.], dtype=float32)
    """
    x = as_operand(x, "floor")
    return Floor()(x) if is_inexact(x.type.dtype) else x


@composed
def ceil(x: Any, /) -> Any:
    """The smallest integer that is not below the element.

    >>> jnp.ceil(jnp.array([1.5, -1.5]))
    Array([ 2., -1.], dtype=float32)
    """
    x = as_operand(x, "ceil")
    return Ceil()(x) if is_inexact(x.type.dtype) else x


def trunc(x: Any) -> Any:
    """The element without its fraction.

    >>> jnp.trunc(jnp.array([1.5, -1.5]))
    Array([ 1., -1.], dtype=float32)
    """
    return _trunc(x)


@composed
def _trunc(x: Any) -> Any:
    x = as_operand(x, "trunc")
    if not is_inexact(x.type.dtype):
        return x
    return Select()(Compare("LT")(x, like(x, 0)), Ceil()(x), Floor()(x))


@composed
def fmod(x1: Any, x2: Any, /) -> Any:
    """What is left of `x1` after whole times `x2`, with the sign of `x1`; an integer by 0 leaves 0.

    >>> jnp.fmod(jnp.array([7, -7]), 3)
    Array([ 1, -1], dtype=int32)
    """
    x, y = aligned("fmod", (x1, x2))
    left = Rem()(x, y)
    return left if is_inexact(y.type.dtype) else Select()(Compare("EQ")(y, like(y, 0)), like(left, 0), left)


def divmod(x1: Any, x2: Any, /) -> tuple[Any, Any]:
    """`floor_divide` and `remainder`.

    >>> jnp.divmod(jnp.array([7, -7]), 3)
    (Array([ 2, -3], dtype=int32), Array([1, 2], dtype=int32))
    """
    return floor_divide(x1, x2), remainder(x1, x2)


@composed
def isnan(x: Any, /) -> Any:
    """Whether the element is no number.

    >>> jnp.isnan(jnp.array([1.0, jnp.nan]))
    Array([False,  True], dtype=bool)
    """
    x = as_operand(x, "isnan")
    return Compare("NE")(x, x) if is_inexact(x.type.dtype) else full(x.type.shape, False, np.bool_)


@composed
def isfinite(x: Any, /) -> Any:
    """Whether the element is neither infinite nor NaN.

    >>> jnp.isfinite(jnp.array([1.0, jnp.inf, jnp.nan]))
    Array([ True, False, False], dtype=bool)
    """
    x = as_operand(x, "isfinite")
    if x.type.dtype.kind == "c":
        return And()(IsFinite()(real(x)), IsFinite()(imag(x)))
    return IsFinite()(x) if is_inexact(x.type.dtype) else full(x.type.shape, True, np.bool_)


@composed
def isinf(x: Any, /) -> Any:
    """Whether the element is infinite; a complex number is where either part is.

    >>> jnp.isinf(jnp.array([1.0, -jnp.inf, jnp.nan]))
    Array([False,  True, False], dtype=bool)
    """
    x = as_operand(x, "isinf")
    if x.type.dtype.kind == "c":
        return Or()(isinf(real(x)), isinf(imag(x)))
    if not is_inexact(x.type.dtype):
        return full(x.type.shape, False, np.bool_)
    return Compare("EQ")(absolute(x), like(x, np.inf))


@composed
def logical_and(x: Any, y: Any, /) -> Any:
    """Whether both differ from 0.

    >>> jnp.logical_and(jnp.array([0, 1, 2]), True)
    Array([False,  True,  True], dtype=bool)
    """
    return And()(*aligned("logical_and", [truth(z, "logical_and") for z in (x, y)]))


@composed
def logical_or(x: Any, y: Any, /) -> Any:
    """Whether either differs from 0.

    >>> jnp.logical_or(jnp.array([0, 1, 2]), False)
    Array([False,  True,  True], dtype=bool)
    """
    return Or()(*aligned("logical_or", [truth(z, "logical_or") for z in (x, y)]))


@composed
def logical_xor(x: Any, y: Any, /) -> Any:
    """Whether one of them differs from 0.

    >>> jnp.logical_xor(jnp.array([0, 1, 2]), True)
    Array([ True, False, False], dtype=bool)
    """
    return Xor()(*aligned("logical_xor", [truth(z, "logical_xor") for z in (x, y)]))


@composed
def logical_not(x: Any, /) -> Any:
    """Whether the element is 0.

    >>> jnp.logical_not(jnp.array([0, 1, 2]))
    Array([ True, False, False], dtype=bool)
    """
    return Not()(truth(x, "logical_not"))
