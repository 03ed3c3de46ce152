"""Functions that are one elementwise op each: its docstring is theirs.

They do not promote: operands have one dtype. A scalar, and a dim of size 1, is repeated to fit the others.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import is_inexact, is_integer
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.elementwise import bitwise, complex_parts, min_max, powers, rounding, transcendental
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Rem, Sub
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.special import gamma_erf
from shardwise.lax.precision import check_accuracy

_Function = TypeVar("_Function", bound=Callable[..., Any])


class RoundingMethod(enum.IntEnum):
    """Where `round` goes from halfway between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def _of_one(name: str, op: Op, *example: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return op(as_operand(x, name))

    return _named(function, name, op, example)


def _of_one_told(name: str, op: Op, *example: str) -> Callable[..., Any]:
    """Of which users may say how exact it is to be."""

    def function(x: Any, *, accuracy: Any = None) -> Any:
        check_accuracy(name, accuracy)
        return op(as_operand(x, name))

    return _named(function, name, op, example)


def _of_two(name: str, op: Op, *example: str) -> Callable[[Any, Any], Any]:
    def function(x: Any, y: Any) -> Any:
        return op(*fitted(name, x, y))

    return compiled_function(_named(function, name, op, example))


def _named(function: _Function, name: str, op: Op, example: Sequence[str]) -> _Function:
    """`function` under its name, with the op's docstring and an example: a call, and what it gives."""
    call, *shown = example
    function.__name__ = function.__qualname__ = name
    function.__doc__ = "\n    ".join([f"{op.__doc__}\n", f">>> {call}", *shown])
    return function


def fitted(name: str, *operands: Any) -> list[Any]:
    """Operands of one dtype, repeated to one shape."""
    types = [type_of(x, name) for x in operands]
    if len({type.dtype for type in types}) != 1:
        listed = ", ".join(map(str, types))
        raise TypeError(f"lax.{name}: operands must have one dtype, not {listed}; shardwise.numpy promotes them")
    if len({type.ndim for type in types if type.ndim}) > 1:
        raise TypeError(f"lax.{name}: operands must have one rank, or be scalars: {', '.join(map(str, types))}")
    shape = broadcast_shapes(f"lax.{name}", *(type.shape for type in types))
    return [broadcast_to_shape(as_operand(x, name), shape) for x in operands]


add = _of_two("add", Add(), "lax.add(jnp.array([1, 2]), jnp.array([3, 4]))", "Array([4, 6], dtype=int32)")
sub = _of_two("sub", Sub(), "lax.sub(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))", "Array([-2,  0,  2], dtype=int32)")
div = _of_two("div", Div(), "lax.div(jnp.array([7, -7]), jnp.array([2, 2]))", "Array([ 3, -3], dtype=int32)")
rem = _of_two("rem", Rem(), "lax.rem(jnp.array([7, -7]), jnp.array([3, 3]))", "Array([ 1, -1], dtype=int32)")
neg = _of_one("neg", Neg(), "lax.neg(jnp.array([1.0, 2.0]))", "Array([-1., -2.], dtype=float32)")
max = _of_two(
    "max", min_max.Max(), "lax.max(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))", "Array([3, 2, 3], dtype=int32)"
)
min = _of_two(
    "min", min_max.Min(), "lax.min(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))", "Array([1, 2, 1], dtype=int32)"
)
eq = _of_two(
    "eq",
    Compare("EQ"),
    "lax.eq(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))",
    "Array([False,  True, False], dtype=bool)",
)
ne = _of_two(
    "ne",
    Compare("NE"),
    "lax.ne(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))",
    "Array([ True, False,  True], dtype=bool)",
)
lt = _of_two(
    "lt",
    Compare("LT"),
    "lax.lt(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))",
    "Array([ True, False, False], dtype=bool)",
)
le = _of_two(
    "le",
    Compare("LE"),
    "lax.le(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))",
    "Array([ True,  True, False], dtype=bool)",
)
gt = _of_two(
    "gt",
    Compare("GT"),
    "lax.gt(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))",
    "Array([False, False,  True], dtype=bool)",
)
ge = _of_two(
    "ge",
    Compare("GE"),
    "lax.ge(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))",
    "Array([False,  True,  True], dtype=bool)",
)

exp = _of_one_told(
    "exp", transcendental.Exp(), "lax.exp(jnp.array([0.0, 1.0]))", "Array([1.       , 2.7182817], dtype=float32)"
)
exp2 = _of_one_told("exp2", transcendental.Exp2(), "lax.exp2(jnp.array([0.0, 3.0]))", "Array([1., 8.], dtype=float32)")
expm1 = _of_one_told(
    "expm1", transcendental.Expm1(), "lax.expm1(jnp.array([0.0, 1e-8]))", "Array([0.e+00, 1.e-08], dtype=float32)"
)
log = _of_one_told(
    "log", transcendental.Log(), "lax.log(jnp.array([1.0, 10.0]))", "Array([0.       , 2.3025851], dtype=float32)"
)
log1p = _of_one_told(
    "log1p", transcendental.Log1p(), "lax.log1p(jnp.array([0.0, 1e-8]))", "Array([0.e+00, 1.e-08], dtype=float32)"
)
logistic = _of_one_told(
    "logistic",
    transcendental.Logistic(),
    "lax.logistic(jnp.array([0.0, 2.0]))",
    "Array([0.5     , 0.880797], dtype=float32)",
)
sin = _of_one_told(
    "sin", transcendental.Sin(), "lax.sin(jnp.array([0.0, 1.0]))", "Array([0.        , 0.84147096], dtype=float32)"
)
cos = _of_one_told(
    "cos", transcendental.Cos(), "lax.cos(jnp.array([0.0, 1.0]))", "Array([1.       , 0.5403023], dtype=float32)"
)
tan = _of_one_told(
    "tan", transcendental.Tan(), "lax.tan(jnp.array([0.0, 1.0]))", "Array([0.       , 1.5574077], dtype=float32)"
)
asin = _of_one(
    "asin", transcendental.Asin(), "lax.asin(jnp.array([0.0, 1.0]))", "Array([0.       , 1.5707964], dtype=float32)"
)
acos = _of_one(
    "acos", transcendental.Acos(), "lax.acos(jnp.array([1.0, 0.0]))", "Array([0.       , 1.5707964], dtype=float32)"
)
atan = _of_one(
    "atan", transcendental.Atan(), "lax.atan(jnp.array([0.0, 1.0]))", "Array([0.       , 0.7853981], dtype=float32)"
)
atan2 = _of_two(
    "atan2",
    transcendental.Atan2(),
    "lax.atan2(jnp.array([1.0, 0.0]), jnp.array([1.0, -1.0]))",
    "Array([0.7853982, 3.1415927], dtype=float32)",
)
sinh = _of_one(
    "sinh", transcendental.Sinh(), "lax.sinh(jnp.array([0.0, 1.0]))", "Array([0.       , 1.1752012], dtype=float32)"
)
cosh = _of_one(
    "cosh", transcendental.Cosh(), "lax.cosh(jnp.array([0.0, 1.0]))", "Array([1.       , 1.5430806], dtype=float32)"
)
tanh = _of_one_told(
    "tanh", transcendental.Tanh(), "lax.tanh(jnp.array([0.0, 1.0]))", "Array([0.       , 0.7615942], dtype=float32)"
)
asinh = _of_one(
    "asinh",
    transcendental.Asinh(),
    "lax.asinh(jnp.array([0.0, 1.0]))",
    "Array([0.        , 0.88137364], dtype=float32)",
)
acosh = _of_one(
    "acosh", transcendental.Acosh(), "lax.acosh(jnp.array([1.0, 2.0]))", "Array([0.      , 1.316958], dtype=float32)"
)
atanh = _of_one(
    "atanh",
    transcendental.Atanh(),
    "lax.atanh(jnp.array([0.0, 0.5]))",
    "Array([0.        , 0.54930615], dtype=float32)",
)

square = _of_one("square", powers.Square(), "lax.square(jnp.array([2, -3]))", "Array([4, 9], dtype=int32)")
sqrt = _of_one_told("sqrt", powers.Sqrt(), "lax.sqrt(jnp.array([4.0, 9.0]))", "Array([2., 3.], dtype=float32)")
rsqrt = _of_one_told("rsqrt", powers.Rsqrt(), "lax.rsqrt(jnp.array([4.0, 0.25]))", "Array([0.5, 2. ], dtype=float32)")
cbrt = _of_one_told("cbrt", powers.Cbrt(), "lax.cbrt(jnp.array([8.0, 27.0]))", "Array([2., 3.], dtype=float32)")

erf = _of_one("erf", gamma_erf.Erf(), "lax.erf(jnp.array([0.0, 0.5]))", "Array([0.       , 0.5204999], dtype=float32)")
erfc = _of_one(
    "erfc", gamma_erf.Erfc(), "lax.erfc(jnp.array([0.0, 0.5]))", "Array([1.        , 0.47950017], dtype=float32)"
)
erf_inv = _of_one(
    "erf_inv",
    gamma_erf.ErfInv(),
    "lax.erf_inv(jnp.array([0.0, 0.5]))",
    "Array([0.        , 0.47693628], dtype=float32)",
)
lgamma = _of_one(
    "lgamma",
    gamma_erf.Lgamma(),
    "lax.lgamma(jnp.array([1.0, 5.0]))",
    "Array([4.7683716e-07, 3.1780548e+00], dtype=float32)",
)
digamma = _of_one(
    "digamma",
    gamma_erf.Digamma(),
    "lax.digamma(jnp.array([1.0, 2.0]))",
    "Array([-0.5772154 ,  0.42278463], dtype=float32)",
)

abs = _of_one("abs", complex_parts.Abs(), "lax.abs(jnp.array([-2, 3]))", "Array([2, 3], dtype=int32)")
sign = _of_one("sign", complex_parts.Sign(), "lax.sign(jnp.array([-2, 0, 3]))", "Array([-1,  0,  1], dtype=int32)")
real = _of_one("real", complex_parts.Real(), "lax.real(jnp.array([1 + 2j]))", "Array([1.], dtype=float32)")
imag = _of_one("imag", complex_parts.Imag(), "lax.imag(jnp.array([1 + 2j]))", "Array([2.], dtype=float32)")
complex = _of_two(
    "complex",
    complex_parts.Complex(),
    "lax.complex(jnp.array([1.0]), jnp.array([2.0]))",
    "Array([1.+2.j], dtype=complex64)",
)

floor = _of_one("floor", rounding.Floor(), "lax.floor(jnp.array([1.5, -1.5]))", "Array([ 1., -2.], dtype=float32)")
ceil = _of_one("ceil", rounding.Ceil(), "lax.ceil(jnp.array([1.5, -1.5]))", "Array([ 2., -1.], dtype=float32)")
is_finite = _of_one(
    "is_finite", rounding.IsFinite(), "lax.is_finite(jnp.array([1.0, np.inf]))", "Array([ True, False], dtype=bool)"
)


bitwise_and = _of_two(
    "bitwise_and", bitwise.And(), "lax.bitwise_and(jnp.array([12]), jnp.array([10]))", "Array([8], dtype=int32)"
)
bitwise_or = _of_two(
    "bitwise_or", bitwise.Or(), "lax.bitwise_or(jnp.array([12]), jnp.array([10]))", "Array([14], dtype=int32)"
)
bitwise_xor = _of_two(
    "bitwise_xor", bitwise.Xor(), "lax.bitwise_xor(jnp.array([12]), jnp.array([10]))", "Array([6], dtype=int32)"
)
bitwise_not = _of_one(
    "bitwise_not", bitwise.Not(), "lax.bitwise_not(jnp.array([0, 5]))", "Array([-1, -6], dtype=int32)"
)
shift_left = _of_two(
    "shift_left",
    bitwise.ShiftLeft(),
    "lax.shift_left(jnp.array([1, 3]), jnp.array([4, 1]))",
    "Array([16,  6], dtype=int32)",
)
shift_right_logical = _of_two(
    "shift_right_logical",
    bitwise.ShiftRightLogical(),
    "lax.shift_right_logical(jnp.array([-8]), jnp.array([28]))",
    "Array([15], dtype=int32)",
)
shift_right_arithmetic = _of_two(
    "shift_right_arithmetic",
    bitwise.ShiftRightArithmetic(),
    "lax.shift_right_arithmetic(jnp.array([-8]), jnp.array([1]))",
    "Array([-4], dtype=int32)",
)
population_count = _of_one(
    "population_count",
    bitwise.PopulationCount(),
    "lax.population_count(jnp.array([7, 8]))",
    "Array([3, 1], dtype=int32)",
)
clz = _of_one("clz", bitwise.Clz(), "lax.clz(jnp.array([1, 8]))", "Array([31, 28], dtype=int32)")


def mul(x: Any, y: Any, *, out_dtype: Any = None) -> Any:
    """`x * y`; of booleans, and. With `out_dtype`, of both converted to it.

    >>> lax.mul(jnp.array([1, 2, 3]), jnp.array([3, 2, 1]))
    Array([3, 4, 3], dtype=int32)
    """
    return _product(x, y, dtype=None if out_dtype is None else canonical_dtype(out_dtype))


@compiled_function
def _product(x: Any, y: Any, *, dtype: Any) -> Any:
    if dtype is not None:
        x, y = (astype_weak(as_operand(z, "mul"), dtype, False) for z in (x, y))
    return Mul()(*fitted("mul", x, y))


@compiled_function
def mulhi(x: Any, y: Any, /) -> Any:
    """The high half of the bits of `x * y`, which has twice as many as either.

    >>> lax.mulhi(jnp.array([2**30]), jnp.array([12]))
    Array([3], dtype=int32)
    """
    return bitwise.MulHigh()(*fitted("mulhi", x, y))


def nextafter(x1: Any, x2: Any) -> Any:
    """The next float after `x1` towards `x2`.

    >>> lax.nextafter(jnp.array([1.0]), jnp.array([2.0]))
    Array([1.0000001], dtype=float32)
    """
    return _nextafter(x1, x2)


@compiled_function
def _nextafter(x: Any, y: Any) -> Any:
    return rounding.Nextafter()(*fitted("nextafter", x, y))


def reciprocal(x: Any) -> Any:
    """`1 / x`.

    >>> lax.reciprocal(jnp.array([2.0, 4.0]))
    Array([0.5 , 0.25], dtype=float32)
    """
    return integer_pow(x, -1)


def integer_pow(x: Any, y: int) -> Any:
    """`x ** y` for a known integer `y`.

    >>> lax.integer_pow(jnp.array([2, 3]), 3)
    Array([ 8, 27], dtype=int32)
    """
    return powers.IntegerPow(int(y))(as_operand(x, "integer_pow"))


@compiled_function
def pow(x: Any, y: Any) -> Any:
    """`x ** y`, of floats or complex numbers; `y` may be integers.

    >>> lax.pow(jnp.array([2.0, 3.0]), 2)
    Array([4., 9.], dtype=float32)
    """
    x, y = as_operand(x, "pow"), as_operand(y, "pow")
    if is_integer(y.type.dtype) and is_inexact(x.type.dtype):
        y = astype_weak(y, x.type.dtype, y.type.weak)
    return powers.Pow()(*fitted("pow", x, y))


@compiled_function
def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x`, but no less than `min`, and then no more than `max`; NaN where any is.

    >>> lax.clamp(0, jnp.array([-1, 3, 9]), 5)
    Array([0, 3, 5], dtype=int32)
    """
    return min_max.Clamp()(*fitted("clamp", min, x, max))


def round(x: Any, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """The nearest integer; halfway between two, as `rounding_method` says.

    >>> lax.round(jnp.array([1.5, 2.5, -0.4]))
    Array([ 2.,  3., -0.], dtype=float32)
    """
    half = "even" if RoundingMethod(rounding_method) == RoundingMethod.TO_NEAREST_EVEN else "away"
    return rounding.Round(half)(as_operand(x, "round"))


@compiled_function
def conj(x: Any) -> Any:
    """The number with its imaginary part negated; a real one becomes complex.

    >>> lax.conj(jnp.array([1 + 2j]))
    Array([1.-2.j], dtype=complex64)
    """
    x = as_operand(x, "conj")
    return complex_parts.Conj()(x) if x.type.dtype.kind == "c" else complex_parts.Complex()(x, zeros_like(x))


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """The nearest float that these many bits of exponent and mantissa can hold.

    >>> lax.reduce_precision(jnp.array([1.2345]), 8, 7)
    Array([1.234375], dtype=float32)
    """
    return rounding.ReducePrecision(int(exponent_bits), int(mantissa_bits))(as_operand(operand, "reduce_precision"))


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The same bits as another dtype. A narrower one adds a last dim, for the parts; a wider one takes it away.

    >>> lax.bitcast_convert_type(jnp.array([1.0]), jnp.int32)
    Array([1065353216], dtype=int32)
    """
    x, dtype = as_operand(operand, "bitcast_convert_type"), canonical_dtype(new_dtype)
    return x if x.type.dtype == dtype else bitwise.BitcastConvert(dtype)(x)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """Each element as `new_dtype`.

    >>> lax.convert_element_type(jnp.array([1.7, -1.7]), jnp.int32)
    Array([ 1, -1], dtype=int32)
    """
    return astype_weak(as_operand(operand, "convert_element_type"), canonical_dtype(new_dtype), False)


@compiled_function
def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """Where `pred` holds `on_true`, else `on_false`; one boolean chooses a whole array.

    >>> lax.select(jnp.array([True, False]), jnp.array([1, 2]), jnp.array([3, 4]))
    Array([1, 4], dtype=int32)
    """
    which, *cases = (as_operand(x, "select") for x in (pred, on_true, on_false))
    return Select()(broadcast_to_shape(which, cases[0].type.shape) if not which.type.ndim else which, *cases)
