"""Functions that are one elementwise op each: its docstring is theirs.

They do not promote: operands have one dtype. A scalar, and a dim of size 1, is repeated to fit the others.
"""

import enum
from collections.abc import Callable
from typing import Any

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import is_inexact, is_integer
from shardwise.compiler.ops import (
    bitwise,
    elementwise,
    extremum,
    parts,
    powers,
    rounding,
    special,
    transcendental,
)
from shardwise.compiler.ops.operands import as_operand, astype_weak, broadcast_shapes, composed, stretch, type_of
from shardwise.compiler.ops.promote import canonical_dtype
from shardwise.compiler.ops.shape import zeros_like


class RoundingMethod(enum.IntEnum):
    """Where `round` goes from halfway between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def _of_one(name: str, op: Op) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return op(as_operand(x, name))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = op.__doc__
    return function


def _of_two(name: str, op: Op) -> Callable[[Any, Any], Any]:
    def function(x: Any, y: Any) -> Any:
        return op(*_fitted(name, x, y))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = op.__doc__
    return composed(function)


def _fitted(name: str, *operands: Any) -> list[Any]:
    """Operands of one dtype, repeated to one shape."""
    types = [type_of(x, name) for x in operands]
    if len({type.dtype for type in types}) != 1:
        listed = ", ".join(map(str, types))
        raise TypeError(f"lax.{name}: operands must have one dtype, not {listed}; shardwise.numpy promotes them")
    if len({type.ndim for type in types if type.ndim}) > 1:
        raise TypeError(f"lax.{name}: operands must have one rank, or be scalars: {', '.join(map(str, types))}")
    shape = broadcast_shapes(f"lax.{name}", *(type.shape for type in types))
    return [stretch(as_operand(x, name), shape) for x in operands]


add = _of_two("add", elementwise.Add())
sub = _of_two("sub", elementwise.Sub())
mul = _of_two("mul", elementwise.Mul())
div = _of_two("div", elementwise.Div())
rem = _of_two("rem", elementwise.Rem())
neg = _of_one("neg", elementwise.Neg())
max = _of_two("max", extremum.Max())
min = _of_two("min", extremum.Min())
eq = _of_two("eq", elementwise.Compare("EQ"))
ne = _of_two("ne", elementwise.Compare("NE"))
lt = _of_two("lt", elementwise.Compare("LT"))
le = _of_two("le", elementwise.Compare("LE"))
gt = _of_two("gt", elementwise.Compare("GT"))
ge = _of_two("ge", elementwise.Compare("GE"))

exp = _of_one("exp", transcendental.Exp())
expm1 = _of_one("expm1", transcendental.Expm1())
log = _of_one("log", transcendental.Log())
log1p = _of_one("log1p", transcendental.Log1p())
logistic = _of_one("logistic", transcendental.Logistic())
sin = _of_one("sin", transcendental.Sin())
cos = _of_one("cos", transcendental.Cos())
tan = _of_one("tan", transcendental.Tan())
asin = _of_one("asin", transcendental.Asin())
acos = _of_one("acos", transcendental.Acos())
atan = _of_one("atan", transcendental.Atan())
atan2 = _of_two("atan2", transcendental.Atan2())
sinh = _of_one("sinh", transcendental.Sinh())
cosh = _of_one("cosh", transcendental.Cosh())
tanh = _of_one("tanh", transcendental.Tanh())
asinh = _of_one("asinh", transcendental.Asinh())
acosh = _of_one("acosh", transcendental.Acosh())
atanh = _of_one("atanh", transcendental.Atanh())

square = _of_one("square", powers.Square())
sqrt = _of_one("sqrt", powers.Sqrt())
rsqrt = _of_one("rsqrt", powers.Rsqrt())
cbrt = _of_one("cbrt", powers.Cbrt())

erf = _of_one("erf", special.Erf())
erfc = _of_one("erfc", special.Erfc())
erf_inv = _of_one("erf_inv", special.ErfInv())
lgamma = _of_one("lgamma", special.Lgamma())
digamma = _of_one("digamma", special.Digamma())

abs = _of_one("abs", parts.Abs())
sign = _of_one("sign", parts.Sign())
real = _of_one("real", parts.Real())
imag = _of_one("imag", parts.Imag())
complex = _of_two("complex", parts.Complex())

floor = _of_one("floor", rounding.Floor())
ceil = _of_one("ceil", rounding.Ceil())
is_finite = _of_one("is_finite", rounding.IsFinite())
nextafter = _of_two("nextafter", rounding.Nextafter())

bitwise_and = _of_two("bitwise_and", bitwise.And())
bitwise_or = _of_two("bitwise_or", bitwise.Or())
bitwise_xor = _of_two("bitwise_xor", bitwise.Xor())
bitwise_not = _of_one("bitwise_not", bitwise.Not())
shift_left = _of_two("shift_left", bitwise.ShiftLeft())
shift_right_logical = _of_two("shift_right_logical", bitwise.ShiftRightLogical())
shift_right_arithmetic = _of_two("shift_right_arithmetic", bitwise.ShiftRightArithmetic())
population_count = _of_one("population_count", bitwise.PopulationCount())
clz = _of_one("clz", bitwise.Clz())


def reciprocal(x: Any) -> Any:
    """`1 / x`."""
    return integer_pow(x, -1)


def integer_pow(x: Any, y: int) -> Any:
    """`x ** y` for a known integer `y`."""
    return powers.IntegerPow(int(y))(as_operand(x, "integer_pow"))


@composed
def pow(x: Any, y: Any) -> Any:
    """`x ** y`, of floats or complex numbers; `y` may be integers."""
    x, y = as_operand(x, "pow"), as_operand(y, "pow")
    if is_integer(y.type.dtype) and is_inexact(x.type.dtype):
        y = astype_weak(y, x.type.dtype, y.type.weak)
    return powers.Pow()(*_fitted("pow", x, y))


@composed
def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x`, but no less than `min`, and then no more than `max`; NaN where any is."""
    return extremum.Clamp()(*_fitted("clamp", min, x, max))


def round(x: Any, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """The nearest integer; halfway between two, as `rounding_method` says."""
    half = "even" if RoundingMethod(rounding_method) == RoundingMethod.TO_NEAREST_EVEN else "away"
    return rounding.Round(half)(as_operand(x, "round"))


@composed
def conj(x: Any) -> Any:
    """The number with its imaginary part negated; a real one becomes complex."""
    x = as_operand(x, "conj")
    return parts.Conj()(x) if x.type.dtype.kind == "c" else parts.Complex()(x, zeros_like(x))


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """The nearest float that these many bits of exponent and mantissa can hold."""
    return rounding.ReducePrecision(int(exponent_bits), int(mantissa_bits))(as_operand(operand, "reduce_precision"))


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The same bits as another dtype. A narrower one adds a last dim, for the parts; a wider one takes it away."""
    x, dtype = as_operand(operand, "bitcast_convert_type"), canonical_dtype(new_dtype)
    return x if x.type.dtype == dtype else bitwise.BitcastConvert(dtype)(x)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """Each element as `new_dtype`."""
    return astype_weak(as_operand(operand, "convert_element_type"), canonical_dtype(new_dtype), False)


@composed
def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """Where `pred` holds `on_true`, else `on_false`; one boolean chooses a whole array."""
    which, *cases = (as_operand(x, "select") for x in (pred, on_true, on_false))
    return elementwise.Select()(stretch(which, cases[0].type.shape) if not which.type.ndim else which, *cases)
