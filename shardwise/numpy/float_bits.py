"""Elementwise functions on the representation of floats: sign, exponent, spacing, NaN and infinities; and angles."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays import arithmetic
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    as_strong,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    compiled_list_function,
    promote_and_broadcast,
    reject_out,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, promote_dtypes
from shardwise.compiler.arrays.sorting import sort_along
from shardwise.compiler.dtypes import DType, is_float, is_inexact, numpy_carrier
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert, Or, ShiftLeft, ShiftRightLogical, bit_width
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Complex, Imag, Real
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.elementwise.powers import Pow
from shardwise.compiler.ops.elementwise.rounding import Nextafter
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Atan2, Sin
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.numpy.elementwise import isinf, isnan, logaddexp_with_base, promote_inexact, promote_to_constants, trunc
from shardwise.numpy.families import (
    ARRAYS,
    BINARY,
    ELEMENTWISE,
    PREDICATE,
    REAL_BINARY,
    REAL_TO_FLOAT,
    SAME_TYPE,
    TO_FLOAT,
)
from shardwise.typing import ArrayLike

_INFINITY_TEST = Family(
    {"x": "the array, real.", "out": ARRAYS.args["out"]}, PREDICATE.returns, ["ValueError: if `x` is complex."]
)


def _real_floats(name: str, *operands: ArrayLike) -> list[Array]:
    """Promote real operands to a common float dtype and broadcast them."""
    promoted = promote_inexact(name, *operands)
    if promoted[0].type.dtype.kind == "c":
        raise TypeError(f"{name}: not defined for complex numbers: {', '.join(str(type_of(x)) for x in operands)}")
    return promoted


@compiled_function
@documented(ARRAYS, returns="An array with the elements of `x`.")
def positive(x: ArrayLike, /) -> Array:
    """Return the array unchanged. This is the operator `+x`.

    Example:
        >>> jnp.positive(jnp.array([-1, 2]))
        Array([-1,  2], dtype=int32)
    """
    return as_operand(x, "positive")


@compiled_function
@documented(TO_FLOAT)
def reciprocal(x: ArrayLike, /) -> Array:
    """Compute `1 / x` element-wise.

    Example:
        >>> jnp.reciprocal(jnp.array([1, 4]))
        Array([1.  , 0.25], dtype=float32)
    """
    x = as_inexact(x, "reciprocal")
    return Div()(full_like(x, 1), x)


@compiled_function
@documented(REAL_TO_FLOAT, returns="An array of floats of the shape of `x`.")
def fabs(x: ArrayLike, /) -> Array:
    """Compute the absolute value element-wise, as a float.

    Args:
        x: the array, real.

    Example:
        >>> jnp.fabs(jnp.array([-1, 2]))
        Array([1., 2.], dtype=float32)
    """
    (x,) = _real_floats("fabs", x)
    return Abs()(x)


@compiled_function
@documented(BINARY)
def float_power(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Raise to a power element-wise, in floats or complex numbers.

    Args:
        x: the bases. Integers and booleans are converted to floats.
        y: the exponents. Integers and booleans are converted to floats.

    Example:
        >>> jnp.float_power(2, jnp.array([-1, 3]))
        Array([0.5, 8. ], dtype=float32)
    """
    return Pow()(*promote_inexact("float_power", x, y))


@compiled_function
@documented(BINARY)
def fmax(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Compute the maximum of two arrays element-wise, ignoring NaN.

    Args:
        x1, x2: the arrays. Where one element is NaN, the result is the other one. Complex numbers are compared by their
            real parts, then by their imaginary parts.

    Example:
        >>> jnp.fmax(jnp.array([1.0, jnp.nan]), 0.5)
        Array([1. , 0.5], dtype=float32)
    """
    return _select_ignoring_nan("GT", *promote_and_broadcast("fmax", (x1, x2)))


@compiled_function
@documented(BINARY)
def fmin(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Compute the minimum of two arrays element-wise, ignoring NaN.

    Args:
        x1, x2: the arrays. Where one element is NaN, the result is the other one. Complex numbers are compared by their
            real parts, then by their imaginary parts.

    Example:
        >>> jnp.fmin(jnp.array([1.0, jnp.nan]), 0.5)
        Array([0.5, 0.5], dtype=float32)
    """
    return _select_ignoring_nan("LT", *promote_and_broadcast("fmin", (x1, x2)))


def _select_ignoring_nan(direction: str, x: Array, y: Array) -> Any:
    return Select()(Or()(Compare(direction)(x, y), isnan(y)), x, y)


@compiled_function
@documented(REAL_BINARY)
def heaviside(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Compute the Heaviside step function element-wise.

    Args:
        x1: the array, real.
        x2: the value of the function where `x1` is 0.

    Returns:
        0 where `x1` is negative, 1 where it is positive, `x2` where it is 0 and NaN where it is NaN.

    Example:
        >>> jnp.heaviside(jnp.array([-2.0, 0.0, 3.0]), 0.5)
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    x, at_zero = promote_to_constants("heaviside", *_real_floats("heaviside", x1, x2))
    value = Expr(x)
    result = where(value < 0, 0, where(value > 0, 1, Expr(at_zero)))
    return where(Expr(isnan(x)), np.nan, result).array


@compiled_function
@documented(ELEMENTWISE)
def rint(x: ArrayLike, /) -> Array:
    """Round to the nearest integer element-wise, ties to even, as a float.

    Args:
        x: the array. Integers and booleans are converted to floats. The parts of complex numbers are rounded
            separately.

    Example:
        >>> jnp.rint(jnp.array([0.5, 1.5, -1.7]))
        Array([ 0.,  2., -2.], dtype=float32)
    """
    x = as_operand(x, "rint")
    if not is_inexact(x.type.dtype):
        return astype_weak(x, default_dtype("float*"), False)
    return arithmetic.around(x)


@compiled_function
def _signbit(x: ArrayLike, /) -> Any:
    x = as_strong(as_operand(x, "signbit"))
    if x.type.dtype.kind == "c":
        raise ValueError(f"signbit: not defined for complex numbers: {x.type}")
    if is_float(x.type.dtype):
        bits = BitcastConvert(_uint_of_width(x.type.dtype))(x)
        top = ShiftRightLogical()(bits, full_like(bits, bit_width(bits.type.dtype) - 1))
        return Compare("EQ")(top, full_like(top, 1))
    if x.type.dtype == np.bool_:
        return zeros_like(x)
    return Compare("LT")(x, full_like(x, 0))


@documented(PREDICATE, raises=["ValueError: if `x` is complex."])
def signbit(x: ArrayLike, /) -> Array:
    """Return element-wise whether the sign bit is set.

    Args:
        x: the array, real. The sign bit of -0.0 is set.

    Example:
        >>> jnp.signbit(jnp.array([-0.0, 0.0, -2.0]))
        Array([ True, False,  True], dtype=bool)
    """
    return _signbit(x)


def _uint_of_width(dtype: DType) -> DType:
    """Return the unsigned integer dtype with as many bits."""
    uint: DType = np.dtype(f"uint{8 * dtype.itemsize}")
    return uint


@compiled_function
@documented(REAL_BINARY, returns="An array of floats of the broadcast shape.")
def copysign(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return the magnitude of one array with the sign of another, element-wise.

    Args:
        x1: the magnitudes, real.
        x2: the signs, real; -0.0 counts as negative.

    Example:
        >>> jnp.copysign(jnp.array([1.0, -2.0]), -0.0)
        Array([-1., -2.], dtype=float32)
    """
    x, y = _real_floats("copysign", x1, x2)
    return Select()(Compare("NE")(_signbit(x), _signbit(y)), -x, x)


@compiled_function
@documented(REAL_TO_FLOAT, returns="The distances, with the signs of `x`.")
def spacing(x: ArrayLike, /) -> Array:
    """Return the distance to the next representable float away from zero, element-wise.

    Raises:
        TypeError: if `x` is not an array or a number.
        ValueError: if `x` is complex.

    Example:
        >>> jnp.spacing(jnp.array([1.0, -1024.0]))
        Array([ 1.1920929e-07, -1.2207031e-04], dtype=float32)
    """
    if type_of(x, "spacing").dtype.kind == "c":
        raise ValueError(f"spacing: not defined for complex numbers: {type_of(x)}")
    x = astype_weak(as_inexact(x, "spacing"), as_inexact(x, "spacing").type.dtype, False)
    magnitude = Abs()(x)
    gap = Nextafter()(magnitude, full_like(magnitude, np.inf)) - magnitude
    return Select()(_signbit(x), -gap, gap)


def _powers_of_two(exponent: Array, dtype: DType) -> Any:
    """Compute `2**exponent` exactly, for f32 or f64 and exponents of normal numbers."""
    mantissa_bits, bias = _mantissa_bits(dtype), _exponent_bias(dtype)
    bits = Convert(_uint_of_width(dtype))(Add()(exponent, full_like(exponent, bias)))
    return BitcastConvert(dtype)(ShiftLeft()(bits, full_like(bits, mantissa_bits)))


def _mantissa_bits(dtype: DType) -> int:
    return int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]


def _exponent_bias(dtype: DType) -> int:
    return int(ml_dtypes.finfo(dtype).maxexp) - 1  # type: ignore[no-untyped-call]


@compiled_function
@documented(BINARY, returns="An array of floats of the broadcast shape.")
def ldexp(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Compute `x1 * 2**x2` element-wise.

    The result is rounded once, even if `2**x2` itself overflows or underflows.

    Args:
        x1: the mantissas, real.
        x2: the exponents, integers or booleans.

    Raises:
        ValueError: if `x1` is complex or `x2` is not of integers.

    Example:
        >>> jnp.ldexp(jnp.array([1.0, 3.0]), jnp.array([4, -2]))
        Array([16.  ,  0.75], dtype=float32)
    """
    x_type, exponent_type = type_of(x1, "ldexp"), type_of(x2, "ldexp")
    if x_type.dtype.kind == "c" or is_inexact(exponent_type.dtype):
        raise ValueError(f"ldexp: needs floats and integer exponents, not {x_type} and {exponent_type}")
    shape = broadcast_shapes("ldexp", x_type.shape, exponent_type.shape)
    x = broadcast_to_shape(as_inexact(x1, "ldexp"), shape)
    exponent = broadcast_to_shape(Convert(np.dtype(np.int32))(as_operand(x2, "ldexp")), shape)
    scaled = _scale_by_power_of_two(astype_weak(x, numpy_carrier(x.type.dtype), False), exponent)
    return astype_weak(scaled, x.type.dtype, False)


def _scale_by_power_of_two(x: Array, exponent: Array) -> Any:
    """Compute `x * 2**exponent`, as three factors that are normal numbers.

    The largest factor is applied last, so that only a subnormal result is rounded.
    """
    bound = _exponent_bias(x.type.dtype) - 1
    factors = []
    for _ in range(3):
        part = Clamp()(full_like(exponent, -bound), exponent, full_like(exponent, bound))
        factors.append(_powers_of_two(part, x.type.dtype))
        exponent = exponent - part
    for factor in reversed(factors):
        x = x * factor
    return x


@compiled_list_function
def _frexp(x: ArrayLike) -> list[Any]:
    (x,) = _real_floats("frexp", x)
    wide = astype_weak(x, numpy_carrier(x.type.dtype), False)
    mantissa_bits, bias = _mantissa_bits(wide.type.dtype), _exponent_bias(wide.type.dtype)
    value, magnitude = Expr(wide), Expr(Abs()(wide))
    is_subnormal = magnitude < 2.0 ** (1 - bias)
    normal = where(is_subnormal, value * 2.0 ** (mantissa_bits + 1), value)
    bits = apply(BitcastConvert(_uint_of_width(wide.type.dtype)), normal)
    biased = apply(ShiftRightLogical(), bits, bits.full_like(mantissa_bits)) & (2 * bias + 1)
    exponent = apply(Convert(np.dtype(np.int32)), biased) - (bias - 1)
    exponent = where(is_subnormal, exponent - (mantissa_bits + 1), exponent)
    is_finite_nonzero = (value != 0) & (magnitude < np.inf)
    exponent = where(is_finite_nonzero, exponent, 0)
    scaled = Expr(_scale_by_power_of_two(wide, (0 - exponent).array))
    mantissa = where(is_finite_nonzero, scaled, value)
    return [astype_weak(mantissa.array, x.type.dtype, False), exponent.array]


@documented(REAL_TO_FLOAT)
def frexp(x: ArrayLike, /) -> tuple[Array, Array]:
    """Decompose floats into mantissas and exponents: `x == mantissa * 2**exponent`.

    Returns:
        The mantissas, of magnitudes from 0.5 to 1, and the integer exponents. For 0, infinities and NaN the mantissa is
        the value itself and the exponent 0.

    Example:
        >>> jnp.frexp(jnp.array([6.0, -0.25]))
        (Array([ 0.75, -0.5 ], dtype=float32), Array([ 3, -1], dtype=int32))
    """
    mantissa, exponent = _frexp(x)
    return mantissa, exponent


@compiled_list_function
def _modf(x: ArrayLike) -> list[Any]:
    (x,) = _real_floats("modf", x)
    integral = trunc(x)
    # An infinity minus itself would be NaN; its fraction is 0.
    return [where(Expr(isinf(x)), 0, Expr(x) - Expr(integral)).array, integral]


@documented(REAL_TO_FLOAT, returns="The fractional and the integral parts, as floats with the signs of `x`.")
def modf(x: ArrayLike, /, out: None = None) -> tuple[Array, Array]:
    """Split floats into fractional and integral parts.

    Example:
        >>> jnp.modf(jnp.array([2.5, -0.25]))
        (Array([ 0.5 , -0.25], dtype=float32), Array([ 2., -0.], dtype=float32))
    """
    reject_out("modf", out)
    fraction, integral = _modf(x)
    return fraction, integral


@compiled_function
def logaddexp2(x1: ArrayLike, x2: ArrayLike, /) -> Any:
    """Compute `log2(2**x1 + 2**x2)` element-wise, without overflow of the powers."""
    x, y = promote_to_constants("logaddexp2", x1, x2)
    return logaddexp_with_base(x, y, 2)


def _is_infinity(name: str, x: ArrayLike, out: None, infinity: float) -> Any:
    reject_out(name, out)
    x_type = type_of(x, name)
    if x_type.dtype.kind == "c":
        raise ValueError(f"{name}: not defined for complex numbers: {x_type}")
    return _equals(x, number=infinity)


@compiled_function
def _equals(x: ArrayLike, *, number: float) -> Any:
    x = as_strong(as_operand(x))
    return Compare("EQ")(x, full_like(x, number)) if is_float(x.type.dtype) else full(x.type.shape, False, np.bool_)


@documented(_INFINITY_TEST)
def isposinf(x: ArrayLike, /, out: None = None) -> Array:
    """Return element-wise whether a value is positive infinity.

    Example:
        >>> jnp.isposinf(jnp.array([jnp.inf, -jnp.inf, 1.0]))
        Array([ True, False, False], dtype=bool)
    """
    return _is_infinity("isposinf", x, out, np.inf)


@documented(_INFINITY_TEST)
def isneginf(x: ArrayLike, /, out: None = None) -> Array:
    """Return element-wise whether a value is negative infinity.

    Example:
        >>> jnp.isneginf(jnp.array([jnp.inf, -jnp.inf, 1.0]))
        Array([False,  True, False], dtype=bool)
    """
    return _is_infinity("isneginf", x, out, -np.inf)


@documented(SAME_TYPE)
def nan_to_num(
    x: ArrayLike,
    copy: bool = True,
    nan: ArrayLike = 0.0,
    posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Array:
    """Replace NaN and infinities by finite numbers.

    Args:
        x: the array. Integers and booleans are returned unchanged. The parts of complex numbers are replaced
            separately.
        copy: ignored: arrays are immutable.
        nan: the replacement for NaN.
        posinf: the replacement for positive infinity; the largest finite value of the dtype if None.
        neginf: the replacement for negative infinity; the smallest finite value of the dtype if None.

    Example:
        >>> jnp.nan_to_num(jnp.array([1.0, jnp.nan, -jnp.inf]), neginf=-9.0)
        Array([ 1.,  0., -9.], dtype=float32)
    """
    dtype = type_of(x, "nan_to_num").dtype
    if not is_inexact(dtype):
        return as_operand(x, "nan_to_num")
    limits = ml_dtypes.finfo(np.zeros((), dtype).real.dtype)  # type: ignore[no-untyped-call]
    above, below = (float(limits.max) if posinf is None else posinf), (float(limits.min) if neginf is None else neginf)
    return _replace_nonfinite(x, nan, above, below)


@compiled_function
def _replace_nonfinite(x: ArrayLike, nan: ArrayLike, above: ArrayLike, below: ArrayLike) -> Any:
    finite = as_strong(as_operand(x, "nan_to_num"))
    if finite.type.dtype.kind == "c":
        return Complex()(*(_replace_nonfinite(part()(finite), nan, above, below) for part in (Real, Imag)))
    for infinity, replacement in ((np.inf, above), (-np.inf, below)):
        is_infinite = Compare("EQ")(finite, full_like(finite, infinity))
        finite = Select()(is_infinite, _broadcast_like(replacement, finite), finite)
    return Select()(isnan(finite), _broadcast_like(nan, finite), finite)


def _broadcast_like(number: ArrayLike, x: Array) -> Any:
    return broadcast_to_shape(astype_weak(as_operand(number, "nan_to_num"), x.type.dtype, x.type.weak), x.type.shape)


@compiled_function
def _scale(x: ArrayLike, /, *, name: str, factor: float) -> Any:
    x = as_inexact(x, name)
    return Mul()(x, full_like(x, factor))


@documented(ARRAYS, returns="The angles in radians.")
def deg2rad(x: ArrayLike, /) -> Array:
    """Convert angles from degrees to radians.

    Args:
        x: the angles in degrees. Integers and booleans are converted to floats.

    Example:
        >>> jnp.deg2rad(jnp.array([0.0, 180.0]))
        Array([0.       , 3.1415927], dtype=float32)
    """
    return _scale(x, name="deg2rad", factor=math.pi / 180)


@documented(ARRAYS, returns="The angles in degrees.")
def rad2deg(x: ArrayLike, /) -> Array:
    """Convert angles from radians to degrees.

    Args:
        x: the angles in radians. Integers and booleans are converted to floats.

    Example:
        >>> jnp.rad2deg(jnp.array([0.0, jnp.pi]))
        Array([  0., 180.], dtype=float32)
    """
    return _scale(x, name="rad2deg", factor=180 / math.pi)


degrees, radians = rad2deg, deg2rad


def angle(z: ArrayLike, deg: bool = False) -> Array:
    """Compute the argument of complex numbers element-wise.

    Args:
        z: the array. A real element has the angle 0, or π if it is negative.
        deg: whether to return degrees instead of radians.

    Returns:
        The angles, as floats.

    Raises:
        TypeError: if `z` is not an array or a number.

    Example:
        >>> jnp.angle(jnp.array([1j, -1.0]), deg=True)
        Array([ 90., 180.], dtype=float32)
    """
    return _angle(z, deg=bool(deg))


@compiled_function
def _angle(z: ArrayLike, *, deg: bool) -> Any:
    x, y = arithmetic.real(z), arithmetic.imag(z)
    if type_of(z, "angle").dtype.kind != "c":
        dtype = x.type.dtype if is_float(x.type.dtype) else default_dtype("float*")
        x, y = (astype_weak(part, dtype, False) for part in (x, y))
    radians = Atan2()(y, x)
    return rad2deg(radians) if deg else radians


@compiled_function
@documented(TO_FLOAT)
def sinc(x: ArrayLike, /) -> Array:
    """Compute the normalized sinc function, `sin(pi * x) / (pi * x)`, element-wise.

    At 0 the value is 1, and the derivatives there are correct up to order 8.

    Example:
        >>> jnp.sinc(jnp.array([0.0, 0.5, 1.5]))
        Array([ 1.        ,  0.63661975, -0.21220659], dtype=float32)
    """
    x = as_inexact(x, "sinc")
    pi_x = x * math.pi
    is_zero = Compare("EQ")(pi_x, full_like(x, 0))
    divisor = Select()(is_zero, full_like(x, 1), pi_x)
    square, series = pi_x * pi_x, full_like(x, 0)
    for order in (8, 6, 4, 2, 0):  # Taylor series of sin(pi_x) / pi_x
        sign = 1 if order % 4 == 0 else -1
        series = series * square + sign / math.factorial(order + 1)
    return Select()(is_zero, series, Sin()(divisor) / divisor)


@compiled_function
@documented(ARRAYS, returns="The sorted array, of a complex dtype.", raises=["ValueError: if `a` is a scalar."])
def sort_complex(a: ArrayLike) -> Array:
    """Sort along the last axis, as complex numbers: by real parts, then by imaginary parts.

    Example:
        >>> jnp.sort_complex(jnp.array([2 + 1j, 1.0, 2 - 1j]))
        Array([1.+0.j, 2.-1.j, 2.+1.j], dtype=complex64)
    """
    x = as_operand(a, "sort_complex")
    dtype, _ = promote_dtypes("sort_complex", (x.type, ArrayType((), np.dtype(np.complex64))))
    return sort_along(astype_weak(x, dtype, False))
