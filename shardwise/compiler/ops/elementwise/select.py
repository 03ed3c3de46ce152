"""Elementwise select and compare."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_inexact, is_integer, is_key, short_name
from shardwise.compiler.ir.fusion import CHEAP
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Primal, UndefinedPrimal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.shape.constants import zeros_like

DIRECTIONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@final
@record
class Select(Elementwise):
    """The second operand where the first is true, else the third."""

    fusion = CHEAP
    name = hlo_name = "select"
    accepts_keys = True
    arity = 3

    def result_type(self, *types: ArrayType) -> ArrayType:
        condition, *cases = types
        if condition.dtype != np.bool_ or condition.shape != cases[0].shape:
            raise TypeError(f"select: the condition must be booleans of shape {cases[0].shape}, not {condition}")
        return super().result_type(*cases)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((1, 2),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        condition, *cases = primals
        zero = zeros_like(cases[0])
        return self(*primals), self(condition, *(zero if tangent is None else tangent for tangent in tangents[1:]))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        condition, x, y = operands
        zero = zeros_like(cotangent)
        to_x = self(condition, cotangent, zero) if isinstance(x, UndefinedPrimal) else None
        return None, to_x, self(condition, zero, cotangent) if isinstance(y, UndefinedPrimal) else None

    def reference(self, *operands: NumpyArray) -> Any:
        return np.where(*operands)


@final
@record
class Compare(Elementwise):
    """Elementwise comparison. `direction` is EQ, NE, LT, LE, GT or GE. NaN is unequal to everything.

    Complex numbers are ordered by real part, then by imaginary part. A number with NaN in either part is NaN.
    """

    fusion = CHEAP
    name = hlo_name = "compare"
    accepts_keys = True
    direction: str

    def out_type(self, *types: ArrayType) -> ArrayType:
        if self.direction not in DIRECTIONS:
            raise TypeError(f"compare: direction {self.direction!r} is not one of {', '.join(DIRECTIONS)}")
        if self.direction not in ("EQ", "NE") and is_key(types[0].dtype):
            raise TypeError(f"compare: PRNG keys can be compared with EQ and NE only, not {self.direction}: {types[0]}")
        operand = super().out_type(*types)
        return ArrayType(operand.shape, np.bool_, operand.weak)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        x, y = operands
        if x.type.dtype.kind != "c" or self.direction in ("EQ", "NE"):
            return lower_compare(hlo, self.direction, x, y)
        part = complex_part_type(x.type)
        (a, c), (b, d) = ([hlo.op(f"stablehlo.{name}", (z,), part) for z in operands] for name in ("real", "imag"))
        strict = lower_compare(hlo, self.direction[0] + "T", a, c)

        def logical(name: str, left: HloValue, right: HloValue) -> Any:
            return hlo.op(f"stablehlo.{name}", (left, right), strict.type)

        ordered = logical("and", lower_compare(hlo, "EQ", b, b), lower_compare(hlo, "EQ", d, d))
        tie = logical("and", lower_compare(hlo, "EQ", a, c), lower_compare(hlo, self.direction, b, d))
        return logical("or", logical("and", strict, ordered), tie)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return DIRECTIONS[self.direction](*operands)


def complex_part_type(type: ArrayType) -> ArrayType:
    """Return the type of the real or imaginary part of a complex array."""
    return ArrayType(type.shape, np.float32 if type.dtype == np.complex64 else np.float64, type.weak)


def lower_compare(hlo: Hlo, direction: str, x: HloValue, y: HloValue) -> Any:
    """Emit one StableHLO compare. StableHLO does not order complex numbers."""
    dtype = x.type.dtype
    signed = is_integer(dtype) and short_name(dtype)[0] != "u"
    compare_type = "FLOAT" if is_inexact(dtype) else "SIGNED" if signed else "UNSIGNED"
    attributes = (
        f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {compare_type}>"
    )
    return hlo.op("stablehlo.compare", (x, y), ArrayType(x.type.shape, np.bool_), attributes)
