"""Elementwise ops that raise to a power: square sqrt rsqrt cbrt integer_pow pow."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_inexact, numpy_carrier
from shardwise.compiler.ir.op import Hlo, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise import transcendental  # each has derivatives that need the other
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Sub, add_tangents
from shardwise.compiler.ops.elementwise.base import FLOATS, INEXACT, NUMBERS, Elementwise, Unary, full_like
from shardwise.compiler.ops.elementwise.select import Compare, Select


@final
@record
class Square(Unary):
    """`x * x`."""

    name = "square"
    accepts = NUMBERS
    numpy_function = np.square

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, Add()(x, x))

    def lower(self, hlo: Hlo, x: Any) -> Any:
        return hlo.op("stablehlo.multiply", (x, x), x.type)


@final
@record
class Sqrt(Unary):
    """The square root."""

    name = hlo_name = "sqrt"
    numpy_function = np.sqrt

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, Div()(full_like(y, 0.5), y))


@final
@record
class Rsqrt(Unary):
    """One over the square root."""

    name = hlo_name = "rsqrt"

    @staticmethod
    def numpy_function(x: NumpyArray) -> Any:
        return 1 / np.sqrt(x)

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, Mul()(full_like(y, -0.5), Div()(y, x)))


@final
@record
class Cbrt(Unary):
    """The real cube root."""

    name = hlo_name = "cbrt"
    accepts = FLOATS
    numpy_function = np.cbrt

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, Div()(full_like(y, 1 / 3), Square()(y)))


@final
@record
class IntegerPow(Unary):
    """`x ** y` for a known integer `y`, by multiplications; of integers, `y` is not negative."""

    name = "integer_pow"
    accepts = NUMBERS
    y: int

    def out_type(self, *types: ArrayType) -> ArrayType:
        found = super().out_type(*types)
        if self.y < 0 and not is_inexact(found.dtype):
            raise TypeError(f"integer_pow: integers have no power {self.y}: {found}; convert them to floats")
        return found

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        if self.y == 0:
            return None
        return dx if self.y == 1 else Mul()(dx, Mul()(full_like(x, self.y), IntegerPow(self.y - 1)(x)))

    def lower(self, hlo: Hlo, x: Any) -> Any:
        one = hlo.constant(1, x.type)
        found, square, left = None, x, abs(self.y)
        while left:
            if left % 2:
                found = square if found is None else hlo.op("stablehlo.multiply", (found, square), x.type)
            left //= 2
            if left:
                square = hlo.op("stablehlo.multiply", (square, square), x.type)
        if found is None:
            return one
        return hlo.op("stablehlo.divide", (one, found), x.type) if self.y < 0 else found

    def numpy_function(self, x: NumpyArray) -> Any:
        return np.power(x, self.y)


@final
@record
class Pow(Elementwise):
    """`x ** y`."""

    name = "pow"
    hlo_name = "power"
    accepts = INEXACT  # XLA's powers of integers are wrong for large exponents

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        z = self(x, y)
        one, zero = full_like(x, 1), full_like(x, 0)
        moved = None
        if dx is not None:
            # A power of 0 is 1 everywhere, at 0 too, where the formula is 0 · inf.
            is_flat = Compare("EQ")(y, zero)
            slope = Mul()(y, self(x, Select()(is_flat, one, Sub()(y, one))))
            moved = Mul()(dx, Select()(is_flat, zero, slope))
        if dy is not None:
            # 0 to any positive power is 0.
            at_zero = Compare("EQ")(x, zero)
            log = transcendental.Log()(Select()(at_zero, one, x))
            moved = add_tangents(moved, Mul()(dy, Mul()(z, log)))
        return z, moved

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        x, y = (operand.astype(numpy_carrier(operand.dtype)) for operand in operands)
        return np.asarray(np.power(x, y)).astype(operands[0].dtype)
