"""Elementwise exponentials, logarithms, trigonometric and hyperbolic functions and their inverses.

This module and `powers` import each other: the derivative of tan needs square, and the derivative of pow needs log.
"""

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.elementwise import powers  # the documented pair: see above
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.base import INEXACT, Elementwise
from shardwise.compiler.ops.elementwise.expr import Expr, unary_function
from shardwise.compiler.ops.elementwise.unary import Unary


@final
@record
class Exp(Unary):
    """The exponential function."""

    name = "exp"
    hlo_name = "exponential"
    fusion = Fusion(fuses=True, duplicates="on GPUs")
    numpy_function = np.exp

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * y


@final
@record
class Exp2(Unary):
    """`2 ** x`."""

    name = "exp2"
    numpy_function = np.exp2

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (y * math.log(2))

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        (x,) = operands
        power = hlo.op("stablehlo.multiply", (x, hlo.constant(math.log(2), x.type.strong())), x.type)
        return hlo.op("stablehlo.exponential", (power,), x.type)


@final
@record
class Expm1(Unary):
    """`exp(x) - 1`, accurate for small `x`."""

    name = "expm1"
    hlo_name = "exponential_minus_one"
    numpy_function = np.expm1

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (y + 1)


@final
@record
class Log(Unary):
    """The natural logarithm."""

    name = hlo_name = "log"
    numpy_function = np.log

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx / x


@final
@record
class Log2(Unary):
    """The logarithm to base 2."""

    name = "log2"
    numpy_function = np.log2

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx / (x * math.log(2))

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        (x,) = operands
        natural = hlo.op("stablehlo.log", (x,), x.type)
        return hlo.op("stablehlo.divide", (natural, hlo.constant(math.log(2), x.type.strong())), x.type)


@final
@record
class Log1p(Unary):
    """`log(1 + x)`, accurate for small `x`."""

    name = "log1p"
    hlo_name = "log_plus_one"
    numpy_function = np.log1p

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx / (x + 1)


@final
@record
class Logistic(Unary):
    """The logistic function `1 / (1 + exp(-x))`."""

    fusion = Fusion(fuses=True, duplicates="on GPUs")
    name = hlo_name = "logistic"

    @staticmethod
    def numpy_function(x: NumpyArray) -> Any:
        return 1 / (1 + np.exp(-x))

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (y * (1 - y))


@final
@record
class Sin(Unary):
    """The sine of an angle in radians."""

    name = "sin"
    hlo_name = "sine"
    numpy_function = np.sin

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * cos(x)


@final
@record
class Cos(Unary):
    """The cosine of an angle in radians."""

    name = "cos"
    hlo_name = "cosine"
    numpy_function = np.cos

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return -(dx * sin(x))


@final
@record
class Tan(Unary):
    """The tangent of an angle in radians."""

    name = hlo_name = "tan"
    numpy_function = np.tan

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (powers.square(y) + 1)


@final
@record
class Asin(Unary):
    """The inverse sine."""

    name = hlo_name = "asin"
    dialect = "chlo"
    numpy_function = np.arcsin

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * powers.rsqrt(_one_minus_square(x))


@final
@record
class Acos(Unary):
    """The inverse cosine."""

    name = hlo_name = "acos"
    dialect = "chlo"
    numpy_function = np.arccos

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return -(dx * powers.rsqrt(_one_minus_square(x)))


@final
@record
class Atan(Unary):
    """The inverse tangent."""

    name = hlo_name = "atan"
    dialect = "chlo"
    numpy_function = np.arctan

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx / (powers.square(x) + 1)


@final
@record
class Atan2(Elementwise):
    """The angle of the point (x, y), where y is the first operand and x the second; complex by continuation."""

    name = hlo_name = "atan2"
    accepts = INEXACT

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (y, x), (dy, dx) = map(Expr, primals), tangents
        square = powers.square(x) + powers.square(y)
        from_y = None if dy is None else (Expr(dy) * (x / square)).array
        from_x = None if dx is None else (Expr(dx) * -(y / square)).array
        return self(*primals), add_tangents(from_y, from_x)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        y, x = (operand.astype(numpy_carrier(operand.dtype)) for operand in operands)
        is_complex = operands[0].dtype.kind == "c"
        angle = -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)) if is_complex else np.arctan2(y, x)
        return np.asarray(angle).astype(operands[0].dtype)


@final
@record
class Sinh(Unary):
    """The hyperbolic sine."""

    name = hlo_name = "sinh"
    dialect = "chlo"
    numpy_function = np.sinh

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * cosh(x)


@final
@record
class Cosh(Unary):
    """The hyperbolic cosine."""

    name = hlo_name = "cosh"
    dialect = "chlo"
    numpy_function = np.cosh

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * sinh(x)


@final
@record
class Tanh(Unary):
    """The hyperbolic tangent."""

    name = hlo_name = "tanh"
    numpy_function = np.tanh

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * _one_minus_square(y)


@final
@record
class Asinh(Unary):
    """The inverse hyperbolic sine."""

    name = hlo_name = "asinh"
    dialect = "chlo"
    numpy_function = np.arcsinh

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * powers.rsqrt(powers.square(x) + 1)


@final
@record
class Acosh(Unary):
    """The inverse hyperbolic cosine."""

    name = hlo_name = "acosh"
    dialect = "chlo"
    numpy_function = np.arccosh

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        # Not rsqrt of the product, which has the opposite sign for complex numbers left of -1.
        return dx * (powers.rsqrt(x - 1) * powers.rsqrt(x + 1))


@final
@record
class Atanh(Unary):
    """The inverse hyperbolic tangent."""

    name = hlo_name = "atanh"
    dialect = "chlo"
    numpy_function = np.arctanh

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx / _one_minus_square(x)


def _one_minus_square(x: Expr) -> Expr:
    """Return `1 - x²`, accurate where it is close to zero."""
    return (1 - x) * (1 + x)


exp, log, log1p = unary_function(Exp), unary_function(Log), unary_function(Log1p)
sin, cos = unary_function(Sin), unary_function(Cos)
sinh, cosh = unary_function(Sinh), unary_function(Cosh)
