"""Elementwise powers and roots: square, sqrt, rsqrt, cbrt, integer_pow, pow.

This module and `transcendental` import each other: the derivative of pow needs log, and the derivative of tan needs
square.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_inexact, numpy_carrier
from shardwise.compiler.ir.fusion import CHEAP_ON_CPU
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise import transcendental  # the documented pair: see above
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.base import FLOATS, INEXACT, NUMBERS, Elementwise
from shardwise.compiler.ops.elementwise.expr import Expr, apply, unary_function, where
from shardwise.compiler.ops.elementwise.unary import Unary


@final
@record
class Square(Unary):
    """`x * x`."""

    fusion = CHEAP_ON_CPU
    name = "square"
    accepts = NUMBERS
    numpy_function = np.square

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (x + x)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return hlo.op("stablehlo.multiply", (x, x), x.type)


@final
@record
class OneMinusSquare(Unary):
    """`1 - x * x`, without cancellation near 1 and -1; its derivative has none near 0."""

    fusion = CHEAP_ON_CPU
    name = "one_minus_square"
    accepts = NUMBERS

    @staticmethod
    def numpy_function(x: NumpyArray) -> Any:
        return (1 + x) * (1 - x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (x * -2)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        one = hlo.constant(1, x.type.strong())
        factors = [hlo.op(f"stablehlo.{name}", (one, x), x.type) for name in ("add", "subtract")]
        return hlo.op("stablehlo.multiply", factors, x.type)


@final
@record
class Sqrt(Unary):
    """The square root."""

    name = hlo_name = "sqrt"
    numpy_function = np.sqrt

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (0.5 / y)


@final
@record
class Rsqrt(Unary):
    """The reciprocal of the square root."""

    name = hlo_name = "rsqrt"

    @staticmethod
    def numpy_function(x: NumpyArray) -> Any:
        return 1 / np.sqrt(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (-0.5 * (y / x))


@final
@record
class Cbrt(Unary):
    """The real cube root."""

    name = hlo_name = "cbrt"
    accepts = FLOATS
    numpy_function = np.cbrt

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (1 / 3 / square(y))


@final
@record
class IntegerPow(Unary):
    """`x ** y` for a static integer `y`, by repeated squaring. For integer `x`, `y` must not be negative."""

    fusion = CHEAP_ON_CPU
    name = "integer_pow"
    accepts = NUMBERS
    y: int

    def out_type(self, *types: ArrayType) -> ArrayType:
        type = super().out_type(*types)
        if self.y < 0 and not is_inexact(type.dtype):
            raise TypeError(f"integer_pow: integers cannot have the negative power {self.y}: {type}; convert to floats")
        return type

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr | None:
        if self.y == 0:
            return None
        return dx if self.y == 1 else dx * (self.y * apply(IntegerPow(self.y - 1), x))

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        one = hlo.constant(1, x.type)
        product, square, exponent = None, x, abs(self.y)
        while exponent:
            if exponent % 2:
                product = square if product is None else hlo.op("stablehlo.multiply", (product, square), x.type)
            exponent //= 2
            if exponent:
                square = hlo.op("stablehlo.multiply", (square, square), x.type)
        if product is None:
            return one
        return hlo.op("stablehlo.divide", (one, product), x.type) if self.y < 0 else product

    def numpy_function(self, x: NumpyArray) -> Any:
        return np.power(x, self.y)


@final
@record
class Pow(Elementwise):
    """`x ** y`."""

    name = "pow"
    hlo_name = "power"
    accepts = INEXACT  # XLA computes integer powers wrongly for large exponents

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = map(Expr, primals), tangents
        z = apply(self, x, y)
        one, zero = x.full_like(1), x.full_like(0)
        tangent = None
        if dx is not None:
            # x ** 0 is constant even at x = 0, where the formula would be 0 * inf.
            is_flat = y == zero
            slope = y * apply(self, x, where(is_flat, one, y - one))
            tangent = (Expr(dx) * where(is_flat, zero, slope)).array
        if dy is not None:
            # At x = 0 the logarithm is infinite, but the derivative is 0 for positive y.
            log = transcendental.log(where(x == zero, one, x))
            tangent = add_tangents(tangent, (Expr(dy) * (z * log)).array)
        return z.array, tangent

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        x, y = (operand.astype(numpy_carrier(operand.dtype)) for operand in operands)
        return np.asarray(np.power(x, y)).astype(operands[0].dtype)


square, sqrt, rsqrt = unary_function(Square), unary_function(Sqrt), unary_function(Rsqrt)
