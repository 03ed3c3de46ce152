"""Functions on each element, composed of ops: they promote and broadcast as numpy and JAX do. `methods` and `numpy`
give them to users.
"""

from typing import Any

import numpy as np

from shardwise.compiler.ir.types import carrier, is_inexact, is_integer
from shardwise.compiler.ops.bitwise import (
    And,
    Not,
    Or,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Xor,
    bit_width,
)
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Div, Mul, Neg, Rem, Select, Sub, like
from shardwise.compiler.ops.extremum import Max, Min
from shardwise.compiler.ops.operands import aligned, as_inexact, as_operand, astype_weak, composed, type_of
from shardwise.compiler.ops.parts import SIGNED, Abs, Complex, Conj, Imag, Real
from shardwise.compiler.ops.powers import IntegerPow, Pow
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.rounding import Round
from shardwise.compiler.ops.shape import full
from shardwise.compiler.ops.transcendental import Exp


@composed
def add(x: Any, y: Any) -> Any:
    """`x + y`, element by element."""
    return Add()(*aligned("add", (x, y)))


@composed
def subtract(x: Any, y: Any) -> Any:
    """`x - y`, element by element."""
    return Sub()(*aligned("subtract", (x, y)))


@composed
def multiply(x: Any, y: Any) -> Any:
    """`x * y`, element by element."""
    return Mul()(*aligned("multiply", (x, y)))


@composed
def divide(x: Any, y: Any) -> Any:
    """`x / y`, element by element; integers become floats."""
    dtype, weak = meet("divide", (type_of(x, "divide"), type_of(y, "divide")))
    if not is_inexact(dtype):
        dtype = default_dtype("float*")
    return Div()(*aligned("divide", (x, y), dtype, weak))


@composed
def negative(x: Any) -> Any:
    """`-x`, element by element."""
    return Neg()(as_operand(x, "negative"))


@composed
def exp(x: Any) -> Any:
    """e to the power of each element; integers become floats."""
    return Exp()(as_inexact(x, "exp"))


@composed
def absolute(x: Any) -> Any:
    """The magnitude of each element."""
    x = as_operand(x, "absolute")
    return Abs()(x) if SIGNED.holds(x.type.dtype) else x


@composed
def floor_divide(x: Any, y: Any) -> Any:
    """The largest integer that is not above `x / y`; an integer by 0 gives 0."""
    x, y = numbers("floor_divide", x, y)
    left = Rem()(x, y)
    if is_integer(x.type.dtype):
        down = Sub()(Div()(x, y), Convert(x.type.dtype, x.type.weak)(_is_under(left, y)))
        return Select()(Compare("EQ")(y, like(y, 0)), like(y, 0), down)
    quotient = Div()(Sub()(x, left), y)
    down = Round()(Select()(_is_under(left, y), Sub()(quotient, like(quotient, 1)), quotient))
    return Select()(Compare("EQ")(y, like(y, 0)), Div()(x, y), down)


def _is_under(left: Any, y: Any) -> Any:
    """Whether what is left, once `y` was taken away as often as it goes, has the other sign: then once too few."""
    zero, below = like(y, 0), Compare("LT")
    return And()(Compare("NE")(left, zero), Xor()(below(left, zero), below(y, zero)))


@composed
def remainder(x: Any, y: Any) -> Any:
    """What is left of `x` after whole times `y`, with the sign of `y`; an integer by 0 leaves 0."""
    x, y = numbers("remainder", x, y)
    left = Rem()(x, y)
    found = Select()(_is_under(left, y), Add()(left, y), left)
    return Select()(Compare("EQ")(y, like(y, 0)), like(y, 0), found) if is_integer(y.type.dtype) else found


def power(x: Any, y: Any) -> Any:
    """`x ** y`, element by element. A negative power of integers that is not known beforehand is 0, but of 1 and -1."""
    if isinstance(y, int) and not isinstance(y, bool):
        return integer_power(x, y=y)
    return _power(x, y)


@composed
def integer_power(x: Any, *, y: int) -> Any:
    """`x ** y` for a known integer `y`."""
    return IntegerPow(y)(*numbers("power", x))


@composed
def _power(x: Any, y: Any) -> Any:
    x, y = numbers("power", x, y)
    if is_inexact(x.type.dtype):
        return Pow()(x, y)
    zero, one = like(x, 0), like(x, 1)
    found, square = one, x
    for place in range(bit_width(x.type.dtype)):
        bit = And()(ShiftRightLogical()(y, like(y, place)), one)
        found = Select()(Compare("EQ")(bit, one), Mul()(found, square), found)
        square = Mul()(square, square)
    is_unit = Compare("EQ")(Mul()(x, x), one)
    is_whole = Or()(Compare("GE")(y, zero), is_unit)
    return Select()(is_whole, found, zero)


def numbers(name: str, *operands: Any) -> list[Any]:
    """Operands promoted and broadcast; booleans count as integers."""
    dtype, weak = meet(name, [type_of(x, name) for x in operands])
    return aligned(name, operands, default_dtype("int*") if dtype == np.bool_ else dtype, weak)


@composed
def bitwise_and(x: Any, y: Any) -> Any:
    """The bits that both have; of booleans, whether both are true."""
    return And()(*aligned("bitwise_and", (x, y)))


@composed
def bitwise_or(x: Any, y: Any) -> Any:
    """The bits that either has; of booleans, whether either is true."""
    return Or()(*aligned("bitwise_or", (x, y)))


@composed
def bitwise_xor(x: Any, y: Any) -> Any:
    """The bits that one of them has; of booleans, whether one of them is true."""
    return Xor()(*aligned("bitwise_xor", (x, y)))


@composed
def invert(x: Any) -> Any:
    """The bits that it does not have; of booleans, whether it is false."""
    return Not()(as_operand(x, "invert"))


@composed
def left_shift(x: Any, y: Any) -> Any:
    """The bits of `x` moved by `y` places towards the high ones."""
    return ShiftLeft()(*numbers("left_shift", x, y))


@composed
def right_shift(x: Any, y: Any) -> Any:
    """The bits of `x` moved by `y` places towards the low ones; a negative number stays negative."""
    x, y = numbers("right_shift", x, y)
    return (ShiftRightArithmetic() if SIGNED.holds(x.type.dtype) else ShiftRightLogical())(x, y)


@composed
def maximum(x: Any, y: Any) -> Any:
    """The larger of two, element by element; NaN where either is."""
    return Max()(*aligned("maximum", (x, y)))


@composed
def minimum(x: Any, y: Any) -> Any:
    """The smaller of two, element by element; NaN where either is."""
    return Min()(*aligned("minimum", (x, y)))


def clip(x: Any, min: Any = None, max: Any = None) -> Any:
    """`x`, but no less than `min`, and then no more than `max`; None is no bound."""
    x = x if min is None else maximum(min, x)
    return as_operand(x, "clip") if max is None else minimum(max, x)


@composed
def around(x: Any, *, decimals: int = 0) -> Any:
    """The nearest number of so many decimals; halfway between two, the one whose last digit is even."""
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
    wide = astype_weak(x, carrier(dtype), x.type.weak)
    scale = like(wide, 10.0**decimals)
    return astype_weak(Div()(Round()(Mul()(wide, scale)), scale), dtype, x.type.weak)


@composed
def real(x: Any) -> Any:
    """The real part of each element."""
    x = as_operand(x, "real")
    return Real()(x) if x.type.dtype.kind == "c" else x


@composed
def imag(x: Any) -> Any:
    """The imaginary part of each element: 0 of a real one."""
    x = as_operand(x, "imag")
    return Imag()(x) if x.type.dtype.kind == "c" else full(x.type.shape, 0, x.type.dtype, x.type.weak)


@composed
def conjugate(x: Any) -> Any:
    """Each element with its imaginary part negated."""
    x = as_operand(x, "conjugate")
    return Conj()(x) if x.type.dtype.kind == "c" else x


def truth(x: Any, name: str) -> Any:
    """Whether each element differs from 0."""
    x = as_operand(x, name)
    return x if x.type.dtype == np.bool_ else Compare("NE")(x, like(x, 0))
