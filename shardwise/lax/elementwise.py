"""Elementwise functions, each of which stages one elementwise op.

They do not promote dtypes, unlike the functions of `shardwise.numpy`: all operands must have the same dtype. Scalars
and dims of size 1 broadcast. Factories make the functions that only call their op, and generate their docstrings.
"""

import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.exact_operands import check_equal_shardings
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.dtypes import DType, is_inexact, is_integer
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.elementwise import bitwise, complex_parts, min_max, powers, rounding, transcendental
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Rem, Sub
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.special import gamma_erf
from shardwise.lax.precision import check_accuracy
from shardwise.typing import ArrayLike, DTypeLike

_Function = TypeVar("_Function", bound=Callable[..., Any])


class RoundingMethod(enum.IntEnum):
    """How `round` breaks ties: the rounding of a number halfway between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


# The dtypes that an op accepts, in the words of the docstrings.
_ANY = "numbers or booleans"
_NUMBERS = "numbers"
_REALS = "integers or floats"
_FLOATS = "floats"
_INEXACT = "floats or complex numbers"
_COMPLEX = "complex numbers"
_SIGNED = "signed integers, floats or complex numbers"
_PARTS = "f32 or f64"
_INTEGERS = "integers"
_BITS = "integers or booleans"

_SAME_TYPE = "An array of the same shape and dtype."
_BROADCAST = "An array of the broadcast shape and of the operands' dtype."


# Each factory returns a function of the example of the docstring: a call, and then the lines of its output.


def _unary(
    name: str, op: Op, dtypes: str, summary: str, returns: str = _SAME_TYPE
) -> Callable[..., Callable[[ArrayLike], Array]]:
    """Make a function of one operand."""

    def function(x: ArrayLike) -> Array:
        return op(as_operand(x, name))

    return partial(_documented, function, name, summary, _one_operand(dtypes, returns))


def _unary_with_accuracy(name: str, op: Op, dtypes: str, summary: str) -> Callable[..., Callable[..., Array]]:
    """Make a function of one operand that has the parameter `accuracy`."""

    def function(x: ArrayLike, *, accuracy: Any = None) -> Array:
        check_accuracy(name, accuracy)
        return op(as_operand(x, name))

    return partial(_documented, function, name, summary, _one_operand(dtypes, _SAME_TYPE))


def _one_operand(dtypes: str, returns: str) -> Family:
    """Return the documentation of the functions of one operand of these dtypes."""
    return Family(
        {
            "x": Parameter(f"an array of {dtypes}, or a scalar.", f"TypeError: if {{}} does not hold {dtypes}."),
            "accuracy": Parameter(
                "None or `AccuracyMode.DEFAULT`, which mean the same.",
                "NotImplementedError: if {} is any other mode or tolerance.",
            ),
        },
        returns,
    )


def _binary(
    name: str, op: Op, dtypes: str, summary: str, returns: str = _BROADCAST
) -> Callable[..., Callable[[ArrayLike, ArrayLike], Array]]:
    """Make a function of two operands."""

    def function(x: ArrayLike, y: ArrayLike) -> Array:
        return op(*broadcast_operands(name, x, y))

    mismatch = "TypeError: if the dtypes or ranks differ, or the shapes do not broadcast."
    if dtypes != _ANY:
        mismatch = (
            "TypeError: if the dtypes or ranks differ, the shapes do not broadcast, or an operand does not hold "
            f"{dtypes}."
        )
    operands = f"arrays of {dtypes}, of the same dtype and rank. Scalars and dims of size 1 broadcast."
    family = Family({"x, y": operands}, returns, [mismatch])
    return lambda *example: compiled_function(_documented(function, name, summary, family, *example))


def _comparison(name: str, symbol: str, output: str) -> Callable[[ArrayLike, ArrayLike], Array]:
    """Make a comparison, which Python writes as `symbol`. `output` has the elements in the example."""
    summary = f"Compare two arrays elementwise: `x {symbol} y`."
    if symbol not in ("==", "!="):
        summary += "\n\nComplex numbers are ordered by real part, then by imaginary part."
    function = _binary(name, Compare(name.upper()), _ANY, summary, returns="Booleans, of the broadcast shape.")
    return function(f"lax.{name}(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))", f"Array({output}, dtype=bool)")


def _documented(function: _Function, name: str, summary: str, family: Family, call: str, *output: str) -> _Function:
    """Set the name and the docstring of `function`."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = "\n    ".join([f"{summary}\n\nExample:", f">>> {call}", *output]) + "\n"
    return documented(family)(function)


def broadcast_operands(name: str, *operands: ArrayLike) -> list[Any]:
    """Broadcast the operands of the function `lax.<name>` to one shape. They must have the same dtype."""
    types = [type_of(x, name) for x in operands]
    if len({type.dtype for type in types}) != 1:
        listed = ", ".join(map(str, types))
        raise TypeError(
            f"lax.{name}: operands must have the same dtype, not {listed}; the functions of shardwise.numpy promote "
            "dtypes"
        )
    if len({type.ndim for type in types if type.ndim}) > 1:
        raise TypeError(f"lax.{name}: operands must have the same rank or be scalars, not {', '.join(map(str, types))}")
    shape = broadcast_shapes(f"lax.{name}", *(type.shape for type in types))
    return [broadcast_to_shape(as_operand(x, name), shape) for x in operands]


add = _binary("add", Add(), _ANY, "Add `x` and `y` elementwise. Booleans are combined by logical or.")(
    "lax.add(jnp.array([1, 2]), jnp.array([3, 4]))", "Array([4, 6], dtype=int32)"
)
sub = _binary("sub", Sub(), _NUMBERS, "Subtract `y` from `x` elementwise.")(
    "lax.sub(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))", "Array([-2,  0,  2], dtype=int32)"
)
div = _binary(
    "div",
    Div(),
    _NUMBERS,
    "Divide `x` by `y` elementwise.\n\n"
    "Integer division rounds toward zero. The quotient of an integer and 0 has all bits set.",
)("lax.div(jnp.array([7, -7]), jnp.array([2, 2]))", "Array([ 3, -3], dtype=int32)")
rem = _binary(
    "rem",
    Rem(),
    _REALS,
    "Compute the remainder of `x` divided by `y`.\n\n"
    "The remainder has the sign of `x`. The remainder of an integer divided by 0 is `x`.",
)("lax.rem(jnp.array([7, -7]), jnp.array([3, 3]))", "Array([ 1, -1], dtype=int32)")
neg = _unary("neg", Neg(), _NUMBERS, "Negate each element.")(
    "lax.neg(jnp.array([1.0, 2.0]))", "Array([-1., -2.], dtype=float32)"
)
max = _binary(
    "max", min_max.Max(), _ANY, "Return the elementwise maximum of `x` and `y`; NaN where either operand is NaN."
)("lax.max(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))", "Array([3, 2, 3], dtype=int32)")
min = _binary(
    "min", min_max.Min(), _ANY, "Return the elementwise minimum of `x` and `y`; NaN where either operand is NaN."
)("lax.min(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))", "Array([1, 2, 1], dtype=int32)")
eq = _comparison("eq", "==", "[False,  True, False]")
ne = _comparison("ne", "!=", "[ True, False,  True]")
lt = _comparison("lt", "<", "[ True, False, False]")
le = _comparison("le", "<=", "[ True,  True, False]")
gt = _comparison("gt", ">", "[False, False,  True]")
ge = _comparison("ge", ">=", "[False,  True,  True]")

exp = _unary_with_accuracy("exp", transcendental.Exp(), _INEXACT, "Compute the exponential e**x of each element.")(
    "lax.exp(jnp.array([0.0, 1.0]))", "Array([1.       , 2.7182817], dtype=float32)"
)
exp2 = _unary_with_accuracy("exp2", transcendental.Exp2(), _INEXACT, "Compute 2**x of each element.")(
    "lax.exp2(jnp.array([0.0, 3.0]))", "Array([1., 8.], dtype=float32)"
)
expm1 = _unary_with_accuracy(
    "expm1", transcendental.Expm1(), _INEXACT, "Compute `exp(x) - 1`, accurately for small `x`."
)("lax.expm1(jnp.array([0.0, 1e-8]))", "Array([0.e+00, 1.e-08], dtype=float32)")
log = _unary_with_accuracy("log", transcendental.Log(), _INEXACT, "Compute the natural logarithm of each element.")(
    "lax.log(jnp.array([1.0, 10.0]))", "Array([0.       , 2.3025851], dtype=float32)"
)
log1p = _unary_with_accuracy(
    "log1p", transcendental.Log1p(), _INEXACT, "Compute `log(1 + x)`, accurately for small `x`."
)("lax.log1p(jnp.array([0.0, 1e-8]))", "Array([0.e+00, 1.e-08], dtype=float32)")
log2 = _unary_with_accuracy(
    "log2", transcendental.Log2(), _INEXACT, "Compute the logarithm to base 2 of each element."
)("lax.log2(jnp.array([8.0, 0.5]))", "Array([ 3., -1.], dtype=float32)")
logistic = _unary_with_accuracy(
    "logistic", transcendental.Logistic(), _INEXACT, "Compute the logistic sigmoid `1 / (1 + exp(-x))` of each element."
)("lax.logistic(jnp.array([0.0, 2.0]))", "Array([0.5     , 0.880797], dtype=float32)")
sin = _unary_with_accuracy("sin", transcendental.Sin(), _INEXACT, "Compute the sine of each element, in radians.")(
    "lax.sin(jnp.array([0.0, 1.0]))", "Array([0.        , 0.84147096], dtype=float32)"
)
cos = _unary_with_accuracy("cos", transcendental.Cos(), _INEXACT, "Compute the cosine of each element, in radians.")(
    "lax.cos(jnp.array([0.0, 1.0]))", "Array([1.       , 0.5403023], dtype=float32)"
)
tan = _unary_with_accuracy("tan", transcendental.Tan(), _INEXACT, "Compute the tangent of each element, in radians.")(
    "lax.tan(jnp.array([0.0, 1.0]))", "Array([0.       , 1.5574077], dtype=float32)"
)
asin = _unary("asin", transcendental.Asin(), _INEXACT, "Compute the arcsine of each element, in radians.")(
    "lax.asin(jnp.array([0.0, 1.0]))", "Array([0.       , 1.5707964], dtype=float32)"
)
acos = _unary("acos", transcendental.Acos(), _INEXACT, "Compute the arccosine of each element, in radians.")(
    "lax.acos(jnp.array([1.0, 0.0]))", "Array([0.       , 1.5707964], dtype=float32)"
)
atan = _unary("atan", transcendental.Atan(), _INEXACT, "Compute the arctangent of each element, in radians.")(
    "lax.atan(jnp.array([0.0, jnp.inf]))", "Array([0.       , 1.5707964], dtype=float32)"
)
atan2 = _binary(
    "atan2",
    transcendental.Atan2(),
    _FLOATS,
    "Compute the arctangent of `x / y` in radians, in the quadrant of the point with abscissa `y` and ordinate `x`.",
)("lax.atan2(jnp.array([1.0, 0.0]), jnp.array([1.0, -1.0]))", "Array([0.7853982, 3.1415927], dtype=float32)")
sinh = _unary("sinh", transcendental.Sinh(), _INEXACT, "Compute the hyperbolic sine of each element.")(
    "lax.sinh(jnp.array([0.0, 1.0]))", "Array([0.       , 1.1752012], dtype=float32)"
)
cosh = _unary("cosh", transcendental.Cosh(), _INEXACT, "Compute the hyperbolic cosine of each element.")(
    "lax.cosh(jnp.array([0.0, 1.0]))", "Array([1.       , 1.5430806], dtype=float32)"
)
tanh = _unary_with_accuracy("tanh", transcendental.Tanh(), _INEXACT, "Compute the hyperbolic tangent of each element.")(
    "lax.tanh(jnp.array([0.0, 1.0]))", "Array([0.       , 0.7615942], dtype=float32)"
)
asinh = _unary("asinh", transcendental.Asinh(), _INEXACT, "Compute the inverse hyperbolic sine of each element.")(
    "lax.asinh(jnp.array([0.0, 1.0]))", "Array([0.        , 0.88137364], dtype=float32)"
)
acosh = _unary("acosh", transcendental.Acosh(), _INEXACT, "Compute the inverse hyperbolic cosine of each element.")(
    "lax.acosh(jnp.array([1.0, 2.0]))", "Array([0.      , 1.316958], dtype=float32)"
)
atanh = _unary("atanh", transcendental.Atanh(), _INEXACT, "Compute the inverse hyperbolic tangent of each element.")(
    "lax.atanh(jnp.array([0.0, 0.5]))", "Array([0.        , 0.54930615], dtype=float32)"
)

square = _unary("square", powers.Square(), _NUMBERS, "Compute `x * x` of each element.")(
    "lax.square(jnp.array([2, -3]))", "Array([4, 9], dtype=int32)"
)
one_minus_square = _unary(
    "one_minus_square",
    powers.OneMinusSquare(),
    _NUMBERS,
    "Compute `1 - x * x` of each element, accurately near 1 and -1. Its derivative is accurate near 0.",
)("lax.one_minus_square(jnp.array([2, -3]))", "Array([-3, -8], dtype=int32)")
sqrt = _unary_with_accuracy("sqrt", powers.Sqrt(), _INEXACT, "Compute the square root of each element.")(
    "lax.sqrt(jnp.array([4.0, 9.0]))", "Array([2., 3.], dtype=float32)"
)
rsqrt = _unary_with_accuracy(
    "rsqrt", powers.Rsqrt(), _INEXACT, "Compute the reciprocal square root `1 / sqrt(x)` of each element."
)("lax.rsqrt(jnp.array([4.0, 0.25]))", "Array([0.5, 2. ], dtype=float32)")
cbrt = _unary_with_accuracy("cbrt", powers.Cbrt(), _FLOATS, "Compute the cube root of each element.")(
    "lax.cbrt(jnp.array([8.0, 27.0]))", "Array([2., 3.], dtype=float32)"
)

erf = _unary("erf", gamma_erf.Erf(), _FLOATS, "Compute the error function of each element.")(
    "lax.erf(jnp.array([0.0, 0.5]))", "Array([0.       , 0.5204999], dtype=float32)"
)
erfc = _unary_with_accuracy(
    "erfc",
    gamma_erf.Erfc(),
    _FLOATS,
    "Compute the complementary error function `1 - erf(x)`, accurately for large `x`.",
)("lax.erfc(jnp.array([0.0, 0.5]))", "Array([1.        , 0.47950017], dtype=float32)")
erf_inv = _unary("erf_inv", gamma_erf.ErfInv(), _FLOATS, "Compute the inverse of the error function.")(
    "lax.erf_inv(jnp.array([0.0, 0.5]))", "Array([0.        , 0.47693628], dtype=float32)"
)
lgamma = _unary(
    "lgamma", gamma_erf.Lgamma(), _FLOATS, "Compute the logarithm of the absolute value of the gamma function."
)("lax.lgamma(jnp.array([1.0, 5.0]))", "Array([4.7683716e-07, 3.1780548e+00], dtype=float32)")
digamma = _unary("digamma", gamma_erf.Digamma(), _FLOATS, "Compute the digamma function, the derivative of `lgamma`.")(
    "lax.digamma(jnp.array([1.0, 2.0]))", "Array([-0.5772154 ,  0.42278463], dtype=float32)"
)

abs = _unary(
    "abs",
    complex_parts.Abs(),
    _SIGNED,
    "Compute the absolute value of each element. That of the smallest integer overflows to itself.",
    returns="An array of the same shape and dtype; of the real dtype for complex `x`.",
)("lax.abs(jnp.array([-2, 3]))", "Array([2, 3], dtype=int32)")
sign = _unary(
    "sign",
    complex_parts.Sign(),
    _NUMBERS,
    "Compute the sign of each element: -1, 0 or 1.\n\nThe sign of a complex number is `x / abs(x)`. NaN keeps NaN.",
)("lax.sign(jnp.array([-2, 0, 3]))", "Array([-1,  0,  1], dtype=int32)")
real = _unary(
    "real",
    complex_parts.Real(),
    _COMPLEX,
    "Return the real part of each element.",
    returns="An array of the same shape and of the real dtype.",
)("lax.real(jnp.array([1 + 2j]))", "Array([1.], dtype=float32)")
imag = _unary(
    "imag",
    complex_parts.Imag(),
    _COMPLEX,
    "Return the imaginary part of each element.",
    returns="An array of the same shape and of the real dtype.",
)("lax.imag(jnp.array([1 + 2j]))", "Array([2.], dtype=float32)")
complex = _binary(
    "complex",
    complex_parts.Complex(),
    _PARTS,
    "Make complex numbers from the real parts `x` and the imaginary parts `y`.",
    returns="Complex numbers, of the broadcast shape.",
)("lax.complex(jnp.array([1.0]), jnp.array([2.0]))", "Array([1.+2.j], dtype=complex64)")

floor = _unary("floor", rounding.Floor(), _FLOATS, "Round each element down to an integer.")(
    "lax.floor(jnp.array([1.5, -1.5]))", "Array([ 1., -2.], dtype=float32)"
)
ceil = _unary("ceil", rounding.Ceil(), _FLOATS, "Round each element up to an integer.")(
    "lax.ceil(jnp.array([1.5, -1.5]))", "Array([ 2., -1.], dtype=float32)"
)
is_finite = _unary(
    "is_finite",
    rounding.IsFinite(),
    _FLOATS,
    "Test whether each element is neither infinite nor NaN.",
    returns="Booleans, of the same shape.",
)("lax.is_finite(jnp.array([1.0, np.inf]))", "Array([ True, False], dtype=bool)")

bitwise_and = _binary("bitwise_and", bitwise.And(), _BITS, "Compute the bitwise and of `x` and `y`.")(
    "lax.bitwise_and(jnp.array([12]), jnp.array([10]))", "Array([8], dtype=int32)"
)
bitwise_or = _binary("bitwise_or", bitwise.Or(), _BITS, "Compute the bitwise or of `x` and `y`.")(
    "lax.bitwise_or(jnp.array([12]), jnp.array([10]))", "Array([14], dtype=int32)"
)
bitwise_xor = _binary("bitwise_xor", bitwise.Xor(), _BITS, "Compute the bitwise exclusive or of `x` and `y`.")(
    "lax.bitwise_xor(jnp.array([12]), jnp.array([10]))", "Array([6], dtype=int32)"
)
bitwise_not = _unary("bitwise_not", bitwise.Not(), _BITS, "Invert all bits of each element; logical not for booleans.")(
    "lax.bitwise_not(jnp.array([0, 5]))", "Array([-1, -6], dtype=int32)"
)
shift_left = _binary(
    "shift_left", bitwise.ShiftLeft(), _INTEGERS, "Shift the bits of `x` left by `y`, filling with zeros."
)("lax.shift_left(jnp.array([1, 3]), jnp.array([4, 1]))", "Array([16,  6], dtype=int32)")
shift_right_logical = _binary(
    "shift_right_logical",
    bitwise.ShiftRightLogical(),
    _INTEGERS,
    "Shift the bits of `x` right by `y`, filling with zeros.",
)("lax.shift_right_logical(jnp.array([-8]), jnp.array([28]))", "Array([15], dtype=int32)")
shift_right_arithmetic = _binary(
    "shift_right_arithmetic",
    bitwise.ShiftRightArithmetic(),
    _INTEGERS,
    "Shift the bits of `x` right by `y`, filling with copies of the sign bit.",
)("lax.shift_right_arithmetic(jnp.array([-8]), jnp.array([1]))", "Array([-4], dtype=int32)")
population_count = _unary(
    "population_count", bitwise.PopulationCount(), _INTEGERS, "Count the bits of each element that are 1."
)("lax.population_count(jnp.array([7, 8]))", "Array([3, 1], dtype=int32)")
clz = _unary("clz", bitwise.Clz(), _INTEGERS, "Count the leading zero bits of each element.")(
    "lax.clz(jnp.array([1, 8]))", "Array([31, 28], dtype=int32)"
)


def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: DTypeLike | None = None) -> Array:
    """Multiply `x` and `y` elementwise. Booleans are combined by logical and.

    Args:
        x, y: arrays of numbers or booleans, of the same rank. Scalars and dims of size 1 broadcast. Without `out_dtype`
            both must have the same dtype.
        out_dtype: the dtype to which both operands are converted before the multiplication.

    Returns:
        An array of the broadcast shape and of the operands' dtype, or of `out_dtype`.

    Raises:
        TypeError: if the ranks differ, the shapes do not broadcast, or the dtypes differ and `out_dtype` is None.

    Example:
        >>> lax.mul(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))
        Array([3, 4, 3], dtype=int32)
    """
    return _multiply(x, y, dtype=None if out_dtype is None else requested_dtype("mul", out_dtype))


@compiled_function
def _multiply(x: ArrayLike, y: ArrayLike, *, dtype: DType | None) -> Any:
    if dtype is not None:
        x, y = (astype_weak(as_operand(z, "mul"), dtype, False) for z in (x, y))
    return Mul()(*broadcast_operands("mul", x, y))


def polynomial(x: ArrayLike, coeffs: Sequence[ArrayLike], *, unroll: int | None = None) -> Array:
    """Evaluate the polynomial `coeffs[0] + coeffs[1] * x + coeffs[2] * x**2 + ...` by Horner's scheme.

    Args:
        x: an array of numbers, or a scalar.
        coeffs: the coefficients, that of the lowest power first: numbers, or arrays of the rank of `x` whose shapes
            broadcast with it. They are converted to the dtype of `x`.
        unroll: ignored: all terms are unrolled.

    Returns:
        An array of the broadcast shape and of the dtype of `x`; zeros if there are no coefficients.

    Raises:
        TypeError: if the ranks differ, or the shapes do not broadcast.

    Example:
        >>> lax.polynomial(jnp.array([3.0, 0.0]), [1.0, 5.0, 2.0])
        Array([34.,  1.], dtype=float32)
    """
    return _horner(x, *coeffs)


@compiled_function
def _horner(x: ArrayLike, *coeffs: ArrayLike) -> Any:
    point = as_operand(x, "polynomial")
    terms = [astype_weak(as_operand(c, "polynomial"), point.type.dtype, point.type.weak) for c in coeffs]
    point, *terms = broadcast_operands("polynomial", point, *terms)
    total = terms.pop() if terms else zeros_like(point)
    while terms:
        total = Add()(Mul()(total, point), terms.pop())
    return total


@compiled_function
def mulhi(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Compute the high half of the bits of the double-width product `x * y`.

    Args:
        x, y: arrays of integers, of the same dtype and rank. Scalars and dims of size 1 broadcast.

    Returns:
        An array of the broadcast shape and of the operands' dtype.

    Raises:
        TypeError: if the dtypes or ranks differ, the shapes do not broadcast, or the dtype is not an integer dtype.

    Example:
        >>> lax.mulhi(jnp.array([2**30]), jnp.array([12]))
        Array([3], dtype=int32)
    """
    return bitwise.MulHigh()(*broadcast_operands("mulhi", x, y))


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the next representable float after `x1` in the direction of `x2`.

    Args:
        x1: an array of floats, or a scalar.
        x2: an array of floats, of the dtype and rank of `x1`. Scalars and dims of size 1 broadcast.

    Returns:
        An array of the broadcast shape and of the operands' dtype.

    Raises:
        TypeError: if the dtypes or ranks differ, the shapes do not broadcast, or the dtype is not a float dtype.

    Example:
        >>> lax.nextafter(jnp.array([1.0]), jnp.array([2.0]))
        Array([1.0000001], dtype=float32)
    """
    return _nextafter(x1, x2)


@compiled_function
def _nextafter(x: ArrayLike, y: ArrayLike) -> Any:
    return rounding.Nextafter()(*broadcast_operands("nextafter", x, y))


def reciprocal(x: ArrayLike) -> Array:
    """Compute `1 / x` of each element.

    Args:
        x: an array of floats or complex numbers, or a scalar.

    Returns:
        An array of the same shape and dtype.

    Raises:
        TypeError: if `x` holds integers or booleans.

    Example:
        >>> lax.reciprocal(jnp.array([2.0, 4.0]))
        Array([0.5 , 0.25], dtype=float32)
    """
    return integer_pow(x, -1)


def integer_pow(x: ArrayLike, y: int) -> Array:
    """Compute `x ** y` for a static integer exponent.

    Args:
        x: an array of numbers, or a scalar.
        y: the exponent, a Python integer. It may be negative for floats and complex numbers.

    Returns:
        An array of the same shape and dtype.

    Raises:
        TypeError: if `x` holds booleans, or if `x` holds integers and `y` is negative.

    Example:
        >>> lax.integer_pow(jnp.array([2, 3]), 3)
        Array([ 8, 27], dtype=int32)
    """
    return powers.IntegerPow(int(y))(as_operand(x, "integer_pow"))


@compiled_function
def pow(x: ArrayLike, y: ArrayLike) -> Array:
    """Compute `x ** y` elementwise.

    Args:
        x: an array of floats or complex numbers, or a scalar.
        y: the exponents: an array of the dtype of `x` or of integers. Scalars and dims of size 1 broadcast.

    Returns:
        An array of the broadcast shape and of the dtype of `x`.

    Raises:
        TypeError: if `x` holds integers or booleans, or the dtypes, ranks or shapes of `x` and `y` do not agree.

    Example:
        >>> lax.pow(jnp.array([2.0, 3.0]), 2)
        Array([4., 9.], dtype=float32)
    """
    x, y = as_operand(x, "pow"), as_operand(y, "pow")
    if is_integer(y.type.dtype) and is_inexact(x.type.dtype):
        y = astype_weak(y, x.type.dtype, y.type.weak)
    return powers.Pow()(*broadcast_operands("pow", x, y))


@compiled_function
def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Array:
    """Limit `x` to the range from `min` to `max`. NaN in any operand gives NaN.

    Args:
        min: the lower limit. Scalars and dims of size 1 broadcast.
        x: an array of integers or floats.
        max: the upper limit. It takes precedence where it is below `min`.

    Returns:
        An array of the broadcast shape and of the operands' dtype.

    Raises:
        TypeError: if the dtypes or ranks differ, the shapes do not broadcast, or the operands are complex or boolean.

    Example:
        >>> lax.clamp(0, jnp.array([-1, 3, 9]), 5)
        Array([0, 3, 5], dtype=int32)
    """
    return min_max.Clamp()(*broadcast_operands("clamp", min, x, max))


def round(x: ArrayLike, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Array:
    """Round each element to the nearest integer.

    Args:
        x: an array of floats, or a scalar.
        rounding_method: the rounding of numbers halfway between two integers: away from zero, or to the even one.

    Returns:
        An array of the same shape and dtype.

    Raises:
        TypeError: if `x` does not hold floats.
        ValueError: if `rounding_method` is not a `RoundingMethod`.

    Example:
        >>> lax.round(jnp.array([1.5, 2.5, -0.4]))
        Array([ 2.,  3., -0.], dtype=float32)
    """
    ties = "even" if RoundingMethod(rounding_method) == RoundingMethod.TO_NEAREST_EVEN else "away"
    return rounding.Round(ties)(as_operand(x, "round"))


@compiled_function
def conj(x: ArrayLike) -> Array:
    """Return the complex conjugate of each element. Real numbers become complex.

    Args:
        x: an array of complex numbers, or of f32 or f64.

    Returns:
        Complex numbers, of the same shape.

    Raises:
        TypeError: if `x` holds integers, booleans, or floats of other widths.

    Example:
        >>> lax.conj(jnp.array([1 + 2j]))
        Array([1.-2.j], dtype=complex64)
    """
    x = as_operand(x, "conj")
    return complex_parts.Conj()(x) if x.type.dtype.kind == "c" else complex_parts.Complex()(x, zeros_like(x))


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round each element to the nearest float with fewer exponent and mantissa bits. The dtype does not change.

    Args:
        operand: an array of floats, or a scalar.
        exponent_bits: the number of exponent bits, 1 or more.
        mantissa_bits: the number of mantissa bits, 0 or more.

    Returns:
        An array of the same shape and dtype.

    Raises:
        TypeError: if `operand` does not hold floats, or a number of bits is too small.

    Example:
        >>> lax.reduce_precision(jnp.array([1.2345]), 8, 7)
        Array([1.234375], dtype=float32)
    """
    return rounding.ReducePrecision(int(exponent_bits), int(mantissa_bits))(as_operand(operand, "reduce_precision"))


def bitcast_convert_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """Reinterpret the bits of each element as another dtype.

    A narrower dtype adds a last dim, which holds the parts of each element. A wider dtype removes the last dim, whose
    elements become the parts of one element.

    Args:
        operand: an array of integers or floats, or a scalar.
        new_dtype: the dtype of the result, of integers or floats.

    Returns:
        An array of `new_dtype` with the same bits.

    Raises:
        TypeError: if a dtype is not supported, or `new_dtype` is wider and the last dim does not have the size that
            makes one element.

    Example:
        >>> lax.bitcast_convert_type(jnp.array([1.0]), jnp.int32)
        Array([1065353216], dtype=int32)
    """
    x, dtype = as_operand(operand, "bitcast_convert_type"), requested_dtype("bitcast_convert_type", new_dtype)
    return x if x.type.dtype == dtype else bitwise.BitcastConvert(dtype)(x)


def convert_element_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """Convert each element to `new_dtype`.

    Args:
        operand: an array, or a scalar.
        new_dtype: the dtype of the result. 64-bit dtypes become 32-bit ones unless `jax_enable_x64` is set.

    Returns:
        An array of the same shape and of `new_dtype`.

    Raises:
        TypeError: if `operand` is not an array or a number, or `new_dtype` is not a dtype.

    Example:
        >>> lax.convert_element_type(jnp.array([1.7, -1.7]), jnp.int32)
        Array([ 1, -1], dtype=int32)
    """
    dtype = requested_dtype("convert_element_type", new_dtype)
    if isinstance(operand, int):  # it may fit `dtype`, but not the default dtype of integers
        return full((), operand, dtype)
    return astype_weak(as_operand(operand, "convert_element_type"), dtype, False)


@compiled_function
def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
    """Choose elements of `on_true` where `pred` is true, and of `on_false` elsewhere.

    Args:
        pred: booleans of the shape of the cases, or one boolean that chooses between the two arrays.
        on_true, on_false: arrays of the same shape and dtype.

    Returns:
        An array of the type of the cases.

    Raises:
        TypeError: if `pred` does not hold booleans, or its shape or the types of the cases do not agree.

    Example:
        >>> lax.select(jnp.array([True, False]), jnp.array([1, 2]), jnp.array([3, 4]))
        Array([1, 4], dtype=int32)
    """
    check_equal_shardings("select", on_true, on_false, *([pred] if type_of(pred, "select").ndim else []))
    mask, *cases = (as_operand(x, "select") for x in (pred, on_true, on_false))
    return Select()(broadcast_to_shape(mask, cases[0].type.shape) if not mask.type.ndim else mask, *cases)
