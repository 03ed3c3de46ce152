"""numpy's functions on each element that look at a float itself: its sign, its exponent, its neighbours, what is no
number; and angles in degrees.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.compiler.ir.types import ArrayType, DType, carrier, is_float, is_inexact, is_integer
from shardwise.compiler.ops import numeric
from shardwise.compiler.ops.bitwise import And, BitcastConvert, Or, ShiftLeft, ShiftRightLogical, bit_width
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Div, Mul, Select, Sub, like
from shardwise.compiler.ops.extremum import Clamp
from shardwise.compiler.ops.operands import (
    aligned,
    as_inexact,
    as_operand,
    astype_weak,
    broadcast_shapes,
    composed,
    composed_list,
    no_out,
    stretch,
    type_of,
)
from shardwise.compiler.ops.ordering import sorted_along
from shardwise.compiler.ops.parts import Abs, Complex, Imag, Real
from shardwise.compiler.ops.powers import Pow
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.rounding import Nextafter
from shardwise.compiler.ops.shape import full, zeros_like
from shardwise.compiler.ops.transcendental import Atan2, Sin
from shardwise.numpy.elementwise import floats, isinf, isnan, log_of_sum, trunc


def _real(name: str, *operands: Any) -> list[Any]:
    """Operands promoted to floats and broadcast."""
    found = floats(name, *operands)
    if found[0].type.dtype.kind == "c":
        raise TypeError(f"{name}: complex numbers have no order: {', '.join(str(type_of(x)) for x in operands)}")
    return found


@composed
def positive(x: Any, /) -> Any:
    """`+x`: each element as it is.

    >>> jnp.positive(jnp.array([-1, 2]))
    Array([-1,  2], dtype=int32)
    """
    return as_operand(x, "positive")


@composed
def reciprocal(x: Any, /) -> Any:
    """`1 / x`; integers become floats.

    >>> jnp.reciprocal(jnp.array([1, 4]))
    Array([1.  , 0.25], dtype=float32)
    """
    x = as_inexact(x, "reciprocal")
    return Div()(like(x, 1), x)


@composed
def fabs(x: Any, /) -> Any:
    """The magnitude of each element, as a float.

    >>> jnp.fabs(jnp.array([-1, 2]))
    Array([1., 2.], dtype=float32)
    """
    (x,) = _real("fabs", x)
    return Abs()(x)


@composed
def float_power(x: Any, y: Any, /) -> Any:
    """`x ** y`, of floats or complex numbers; integers become floats.

    >>> jnp.float_power(2, jnp.array([-1, 3]))
    Array([0.5, 8. ], dtype=float32)
    """
    return Pow()(*floats("float_power", x, y))


def fmax(x1: Any, x2: Any) -> Any:
    """The larger of two; where one is NaN, the other.

    >>> jnp.fmax(jnp.array([1.0, jnp.nan]), 0.5)
    Array([1. , 0.5], dtype=float32)
    """
    return _fmax(x1, x2)


@composed
def _fmax(x1: Any, x2: Any) -> Any:
    return _first_if("GT", *aligned("fmax", (x1, x2)))


def fmin(x1: Any, x2: Any) -> Any:
    """The smaller of two; where one is NaN, the other.

    >>> jnp.fmin(jnp.array([1.0, jnp.nan]), 0.5)
    Array([0.5, 0.5], dtype=float32)
    """
    return _fmin(x1, x2)


@composed
def _fmin(x1: Any, x2: Any) -> Any:
    return _first_if("LT", *aligned("fmin", (x1, x2)))


def _first_if(direction: str, x: Any, y: Any) -> Any:
    if x.type.dtype.kind == "c":
        raise TypeError(f"fmax, fmin: complex numbers have no order: {x.type}")
    return Select()(Or()(Compare(direction)(x, y), isnan(y)), x, y)


@composed
def heaviside(x1: Any, x2: Any, /) -> Any:
    """0 below zero, 1 above it and `x2` at it; NaN of NaN.

    >>> jnp.heaviside(jnp.array([-2.0, 0.0, 3.0]), 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    x, at_zero = _real("heaviside", x1, x2)
    above = Select()(Compare("GT")(x, like(x, 0)), like(x, 1), at_zero)
    found = Select()(Compare("LT")(x, like(x, 0)), like(x, 0), above)
    return Select()(isnan(x), like(x, np.nan), found)


@composed
def rint(x: Any, /) -> Any:
    """The nearest integer, as a float; halfway between two, the even one.

    >>> jnp.rint(jnp.array([0.5, 1.5, -1.7]))
    Array([ 0.,  2., -2.], dtype=float32)
    """
    x = as_operand(x, "rint")
    if not is_inexact(x.type.dtype):
        return astype_weak(x, default_dtype("float*"), False)
    return numeric.around(x)


@composed
def _signbit(x: Any, /) -> Any:
    x = as_operand(x, "signbit")
    if x.type.dtype.kind == "c":
        raise ValueError(f"signbit: a complex number has no sign: {x.type}")
    if is_float(x.type.dtype):
        bits = BitcastConvert(_bits(x.type.dtype))(x)
        top = ShiftRightLogical()(bits, like(bits, bit_width(bits.type.dtype) - 1))
        return Compare("EQ")(top, like(top, 1))
    if x.type.dtype == np.bool_:
        return zeros_like(x)
    return Compare("LT")(x, like(x, 0))


def signbit(x: Any, /) -> Any:
    """Whether the sign of the element is minus; that of -0.0 is.

    >>> jnp.signbit(jnp.array([-0.0, 0.0, -2.0]))
    Array([ True, False,  True], dtype=bool)
    """
    return _signbit(x)


def _bits(dtype: DType) -> DType:
    """Unsigned integers of the same width."""
    found: DType = np.dtype(f"uint{8 * dtype.itemsize}")
    return found


@composed
def copysign(x1: Any, x2: Any, /) -> Any:
    """The magnitude of `x1` with the sign of `x2`.

    >>> jnp.copysign(jnp.array([1.0, -2.0]), -0.0)
    Array([-1., -2.], dtype=float32)
    """
    x, y = _real("copysign", x1, x2)
    return Select()(Compare("NE")(_signbit(x), _signbit(y)), -x, x)


@composed
def spacing(x: Any, /) -> Any:
    """How far the next float away from zero is, with the sign of `x`.

    >>> jnp.spacing(jnp.array([1.0, -1024.0]))
    Array([ 1.1920929e-07, -1.2207031e-04], dtype=float32)
    """
    if type_of(x, "spacing").dtype.kind == "c":
        raise ValueError(f"spacing: complex numbers have no next one: {type_of(x)}")
    x = astype_weak(as_inexact(x, "spacing"), as_inexact(x, "spacing").type.dtype, False)
    away = Abs()(x)
    gap = Sub()(Nextafter()(away, like(away, np.inf)), away)
    return Select()(_signbit(x), -gap, gap)


def _powers_of_two(exponent: Any, dtype: DType) -> Any:
    """2 to the power of each integer, exactly: of f32 or f64, and not beyond its normal numbers."""
    digits, bias = _digits(dtype), _bias(dtype)
    bits = Convert(_bits(dtype))(Add()(exponent, like(exponent, bias)))
    return BitcastConvert(dtype)(ShiftLeft()(bits, like(bits, digits)))


def _digits(dtype: DType) -> int:
    return int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]


def _bias(dtype: DType) -> int:
    return int(ml_dtypes.finfo(dtype).maxexp) - 1  # type: ignore[no-untyped-call]


@composed
def ldexp(x1: Any, x2: Any, /) -> Any:
    """`x1 * 2**x2` for integers `x2`, rounded once, even where the power alone is no float.

    >>> jnp.ldexp(jnp.array([1.0, 3.0]), jnp.array([4, -2]))
    Array([16.  ,  0.75], dtype=float32)
    """
    kinds = type_of(x1, "ldexp"), type_of(x2, "ldexp")
    if kinds[0].dtype.kind == "c" or not is_integer(kinds[1].dtype):
        raise ValueError(f"ldexp: needs floats and integers, not {kinds[0]} and {kinds[1]}")
    shape = broadcast_shapes("ldexp", kinds[0].shape, kinds[1].shape)
    x = stretch(as_inexact(x1, "ldexp"), shape)
    exponent = stretch(Convert(np.dtype(np.int32))(as_operand(x2, "ldexp")), shape)
    found = _scaled(astype_weak(x, carrier(x.type.dtype), False), exponent)
    return astype_weak(found, x.type.dtype, False)


def _scaled(x: Any, exponent: Any) -> Any:
    """`x * 2**exponent`. The largest factor comes last: only a product that is too small for its digits is rounded."""
    bound = _bias(x.type.dtype) - 1
    factors = []
    for _ in range(3):
        part = Clamp()(like(exponent, -bound), exponent, like(exponent, bound))
        factors.append(_powers_of_two(part, x.type.dtype))
        exponent = Sub()(exponent, part)
    for factor in reversed(factors):
        x = Mul()(x, factor)
    return x


@composed_list
def _frexp(x: Any) -> list[Any]:
    (x,) = _real("frexp", x)
    wide = astype_weak(x, carrier(x.type.dtype), False)
    digits, bias = _digits(wide.type.dtype), _bias(wide.type.dtype)
    is_small = Compare("LT")(Abs()(wide), like(wide, 2.0 ** (1 - bias)))  # with fewer digits than others
    bits = BitcastConvert(_bits(wide.type.dtype))(
        Select()(is_small, Mul()(wide, like(wide, 2.0 ** (digits + 1))), wide)
    )
    places = And()(ShiftRightLogical()(bits, like(bits, digits)), like(bits, 2 * bias + 1))
    exponent = Sub()(Convert(np.dtype(np.int32))(places), full(x.type.shape, bias - 1, np.int32))
    exponent = Select()(is_small, Sub()(exponent, like(exponent, digits + 1)), exponent)
    is_usual = And()(Compare("NE")(wide, like(wide, 0)), Compare("LT")(Abs()(wide), like(wide, np.inf)))
    exponent = Select()(is_usual, exponent, like(exponent, 0))
    mantissa = Select()(is_usual, _scaled(wide, Sub()(like(exponent, 0), exponent)), wide)
    return [astype_weak(mantissa, x.type.dtype, False), exponent]


def frexp(x: Any, /) -> tuple[Any, Any]:
    """Mantissas between 0.5 and 1 and exponents: `x == mantissa * 2**exponent`. Of 0, infinities and NaN it is 0.

    >>> jnp.frexp(jnp.array([6.0, -0.25]))
    (Array([ 0.75, -0.5 ], dtype=float32), Array([ 3, -1], dtype=int32))
    """
    mantissa, exponent = _frexp(x)
    return mantissa, exponent


@composed_list
def _modf(x: Any) -> list[Any]:
    (x,) = _real("modf", x)
    whole = trunc(x)
    # An infinity has no fraction, and the difference would be NaN.
    return [Select()(isinf(x), like(x, 0), Sub()(x, whole)), whole]


def modf(x: Any, /, out: None = None) -> tuple[Any, Any]:
    """The fraction and the whole part, both with the sign of `x`.

    >>> jnp.modf(jnp.array([2.5, -0.25]))
    (Array([ 0.5 , -0.25], dtype=float32), Array([ 2., -0.], dtype=float32))
    """
    no_out("modf", out)
    fraction, whole = _modf(x)
    return fraction, whole


@composed
def logaddexp2(x1: Any, x2: Any, /) -> Any:
    """`log2(2**x1 + 2**x2)`, where neither power overflows.

    >>> jnp.logaddexp2(jnp.array([3.0, 200.0]), 3.0)
    Array([  4., 200.], dtype=float32)
    """
    x, y = floats("logaddexp2", x1, x2)
    return log_of_sum(x, y, 2)


def _infinite(name: str, x: Any, out: None, number: float) -> Any:
    no_out(name, out)
    kind = type_of(x, name)
    if kind.dtype.kind == "c":
        raise ValueError(f"{name}: complex infinities have no sign: {kind}")
    return _equals(x, number=number)


@composed
def _equals(x: Any, *, number: float) -> Any:
    x = as_operand(x)
    return Compare("EQ")(x, like(x, number)) if is_float(x.type.dtype) else full(x.type.shape, False, np.bool_)


def isposinf(x: Any, /, out: None = None) -> Any:
    """Whether the element is +infinity.

    >>> jnp.isposinf(jnp.array([jnp.inf, -jnp.inf, 1.0]))
    Array([ True, False, False], dtype=bool)
    """
    return _infinite("isposinf", x, out, np.inf)


def isneginf(x: Any, /, out: None = None) -> Any:
    """Whether the element is -infinity.

    >>> jnp.isneginf(jnp.array([jnp.inf, -jnp.inf, 1.0]))
    Array([False,  True, False], dtype=bool)
    """
    return _infinite("isneginf", x, out, -np.inf)


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """`x` with `nan` in place of NaN, and `posinf` and `neginf` of infinities: unless told, the largest numbers.

    >>> jnp.nan_to_num(jnp.array([1.0, jnp.nan, -jnp.inf]), neginf=-9.0)
    Array([ 1.,  0., -9.], dtype=float32)
    """
    dtype = type_of(x, "nan_to_num").dtype
    if not is_inexact(dtype):
        return as_operand(x, "nan_to_num")
    limits = ml_dtypes.finfo(np.zeros((), dtype).real.dtype)  # type: ignore[no-untyped-call]
    above, below = (float(limits.max) if posinf is None else posinf), (float(limits.min) if neginf is None else neginf)
    return _numbers_for(x, nan, above, below)


@composed
def _numbers_for(x: Any, nan: Any, above: Any, below: Any) -> Any:
    x = as_operand(x, "nan_to_num")
    if x.type.dtype.kind == "c":
        return Complex()(*(_numbers_for(part()(x), nan, above, below) for part in (Real, Imag)))
    for number, other in ((np.inf, above), (-np.inf, below)):
        x = Select()(Compare("EQ")(x, like(x, number)), _given(other, x), x)
    return Select()(isnan(x), _given(nan, x), x)


def _given(number: Any, x: Any) -> Any:
    return stretch(astype_weak(as_operand(number, "nan_to_num"), x.type.dtype, x.type.weak), x.type.shape)


@composed
def _times(x: Any, /, *, name: str, factor: float) -> Any:
    x = as_inexact(x, name)
    return Mul()(x, like(x, factor))


def deg2rad(x: Any, /) -> Any:
    """Angles in degrees as radians.

    >>> jnp.deg2rad(jnp.array([0.0, 180.0]))
    Array([0.       , 3.1415927], dtype=float32)
    """
    return _times(x, name="deg2rad", factor=math.pi / 180)


def rad2deg(x: Any, /) -> Any:
    """Angles in radians as degrees.

    >>> jnp.rad2deg(jnp.array([0.0, jnp.pi]))
    Array([  0., 180.], dtype=float32)
    """
    return _times(x, name="rad2deg", factor=180 / math.pi)


degrees, radians = rad2deg, deg2rad


def angle(z: Any, deg: bool = False) -> Any:
    """The angle of each complex number, in radians or degrees; of a real one 0, or half a turn where it is negative.

    >>> jnp.angle(jnp.array([1j, -1.0]), deg=True)
    Array([ 90., 180.], dtype=float32)
    """
    return _angle(z, deg=bool(deg))


@composed
def _angle(z: Any, *, deg: bool) -> Any:
    x, y = numeric.real(z), numeric.imag(z)
    if type_of(z, "angle").dtype.kind != "c":
        dtype = x.type.dtype if is_float(x.type.dtype) else default_dtype("float*")
        x, y = (astype_weak(part, dtype, False) for part in (x, y))
    found = Atan2()(y, x)
    return rad2deg(found) if deg else found


@composed
def sinc(x: Any, /) -> Any:
    """`sin(pi * x) / (pi * x)`, which is 1 at 0; derivatives there are right up to the eighth.

    >>> jnp.sinc(jnp.array([0.0, 0.5, 1.5]))
    Array([ 1.        ,  0.63661975, -0.21220659], dtype=float32)
    """
    x = as_inexact(x, "sinc")
    turned = Mul()(x, like(x, math.pi))
    is_zero = Compare("EQ")(turned, like(x, 0))
    other = Select()(is_zero, like(x, 1), turned)
    square, series = Mul()(turned, turned), like(x, 0)
    for order in (8, 6, 4, 2, 0):  # of the sine's series, divided by its first term
        sign = 1 if order % 4 == 0 else -1
        series = Add()(Mul()(series, square), like(x, sign / math.factorial(order + 1)))
    return Select()(is_zero, series, Div()(Sin()(other), other))


def sort_complex(a: Any) -> Any:
    """The elements along the last dim in order, as complex numbers: by real part, then by imaginary part.

    >>> jnp.sort_complex(jnp.array([2 + 1j, 1.0, 2 - 1j]))
    Array([1.+0.j, 2.-1.j, 2.+1.j], dtype=complex64)
    """
    return _sorted_complex(a)


@composed
def _sorted_complex(a: Any) -> Any:
    x = as_operand(a, "sort_complex")
    dtype, _ = meet("sort_complex", (x.type, ArrayType((), np.dtype(np.complex64))))
    return sorted_along(astype_weak(x, dtype, False))
