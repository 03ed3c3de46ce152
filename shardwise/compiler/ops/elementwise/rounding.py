"""Rounding and float representation: floor, ceil, round, is_finite, nextafter, reduce_precision."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ir.fusion import CHEAP_ON_CPU
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Primal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import FLOATS, Elementwise
from shardwise.compiler.ops.elementwise.expr import Expr, unary_function
from shardwise.compiler.ops.elementwise.unary import Unary

HLO_NAMES = {"even": "round_nearest_even", "away": "round_nearest_afz"}


class Rounding(Unary):
    """A piecewise constant function: its derivative is zero."""

    accepts = FLOATS

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> None:
        return None


@final
@record
class Floor(Rounding):
    """Round down to an integer."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "floor"
    numpy_function = np.floor


@final
@record
class Ceil(Rounding):
    """Round up to an integer."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "ceil"
    numpy_function = np.ceil


@final
@record
class Round(Rounding):
    """Round to the nearest integer. Ties go to the even integer, or away from zero if `half` is "away"."""

    fusion = CHEAP_ON_CPU
    name = "round"
    half: str = "even"

    def out_type(self, *types: ArrayType) -> ArrayType:
        if self.half not in HLO_NAMES:
            raise TypeError(f"round: half {self.half!r} is not one of {', '.join(HLO_NAMES)}")
        return super().out_type(*types)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return hlo.op(f"stablehlo.{HLO_NAMES[self.half]}", (x,), x.type)

    def numpy_function(self, x: NumpyArray) -> Any:
        if self.half == "even":
            return np.rint(x)
        truncated = np.trunc(x)
        return np.where(np.abs(x - truncated) >= 0.5, truncated + np.copysign(1, x), truncated)


@final
@record
class IsFinite(Elementwise):
    """Whether the element is neither infinite nor NaN."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "is_finite"
    arity = 1
    accepts = FLOATS

    def out_type(self, *types: ArrayType) -> ArrayType:
        operand = super().out_type(*types)
        return ArrayType(operand.shape, np.bool_, operand.weak)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        return np.isfinite(x.astype(numpy_carrier(x.dtype)))


@final
@record
class Nextafter(Elementwise):
    """The next float after the first operand in the direction of the second; the second if they are equal."""

    name = "nextafter"
    hlo_name = "next_after"
    dialect = "chlo"
    accepts = FLOATS

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return np.nextafter(*operands)


@final
@record
class ReducePrecision(Elementwise):
    """Round to a float format with this many exponent and mantissa bits.

    Overflow results in infinity, underflow in zero. The tangent and the cotangent are rounded to the same format.
    """

    fusion = CHEAP_ON_CPU
    name = "reduce_precision"
    arity = 1
    accepts = FLOATS
    exponent_bits: int
    mantissa_bits: int

    def out_type(self, *types: ArrayType) -> ArrayType:
        if self.exponent_bits < 1 or self.mantissa_bits < 0:
            raise TypeError(
                "reduce_precision: exponent_bits must be at least 1 and mantissa_bits at least 0, "
                f"not {self.exponent_bits} and {self.mantissa_bits}"
            )
        return super().out_type(*types)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (self(cotangent),)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        bits = f"exponent_bits = {self.exponent_bits} : i32, mantissa_bits = {self.mantissa_bits} : i32"
        return hlo.op("stablehlo.reduce_precision", (x,), x.type, bits)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        exact = x.astype(np.float64)
        fraction, exponent = np.frexp(exact)
        scale = 2.0 ** min(self.mantissa_bits + 1, 53)
        rounded = np.ldexp(np.rint(fraction * scale) / scale, exponent)
        bias = 2 ** (self.exponent_bits - 1) - 1
        largest = (2 - 2.0 ** -min(self.mantissa_bits, 52)) * 2.0**bias
        smallest = 2.0 ** (1 - bias)
        rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, exact), rounded)
        rounded = np.where(np.abs(rounded) < smallest, np.copysign(0, exact), rounded)
        return np.where(np.isfinite(exact), rounded, exact).astype(x.dtype)


floor = unary_function(Floor)
