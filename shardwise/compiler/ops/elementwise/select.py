"""select and compare."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_inexact, is_integer, is_key, short_name
from shardwise.compiler.ir.op import Hlo, NumpyArray, UndefinedPrimal, ignore_float_errors
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
    """Where the first operand is true the second, else the third."""

    name = hlo_name = "select"
    accepts_keys = True
    arity = 3

    def result_type(self, *types: ArrayType) -> ArrayType:
        which, *cases = types
        if which.dtype != np.bool_ or which.shape != cases[0].shape:
            raise TypeError(f"select: needs booleans of shape {cases[0].shape} to choose by, not {which}")
        return super().result_type(*cases)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((1, 2),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        which, *cases = primals
        zero = zeros_like(cases[0])
        return self(*primals), self(which, *(zero if tangent is None else tangent for tangent in tangents[1:]))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        which, x, y = operands
        zero = zeros_like(cotangent)
        to_x = self(which, cotangent, zero) if isinstance(x, UndefinedPrimal) else None
        return None, to_x, self(which, zero, cotangent) if isinstance(y, UndefinedPrimal) else None

    def reference(self, *operands: NumpyArray) -> Any:
        return np.where(*operands)


@final
@record
class Compare(Elementwise):
    """`x < y` and its kin, by `direction`: EQ NE LT LE GT GE. NaN compares unequal to all.

    Complex numbers are ordered by real part, then by imaginary part; one with NaN in either is NaN.
    """

    name = hlo_name = "compare"
    accepts_keys = True
    direction: str

    def out_type(self, *types: ArrayType) -> ArrayType:
        if self.direction not in DIRECTIONS:
            raise TypeError(f"compare: direction {self.direction!r} is not one of {', '.join(DIRECTIONS)}")
        if self.direction not in ("EQ", "NE") and is_key(types[0].dtype):
            raise TypeError(f"compare: keys are equal or not, and have no order: {types[0]}")
        return ArrayType(super().out_type(*types).shape, np.bool_)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        x, y = operands
        if x.type.dtype.kind != "c" or self.direction in ("EQ", "NE"):
            return lower_compare(hlo, self.direction, x, y)
        part = complex_part_type(x.type)
        (a, c), (b, d) = ([hlo.op(f"stablehlo.{name}", (z,), part) for z in operands] for name in ("real", "imag"))
        strict = lower_compare(hlo, self.direction[0] + "T", a, c)

        def joined(how: str, left: Any, right: Any) -> Any:
            return hlo.op(f"stablehlo.{how}", (left, right), strict.type)

        ordered = joined("and", lower_compare(hlo, "EQ", b, b), lower_compare(hlo, "EQ", d, d))
        tie = joined("and", lower_compare(hlo, "EQ", a, c), lower_compare(hlo, self.direction, b, d))
        return joined("or", joined("and", strict, ordered), tie)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return DIRECTIONS[self.direction](*operands)


def complex_part_type(type: ArrayType) -> ArrayType:
    """The type of the real and of the imaginary parts of complex numbers."""
    return ArrayType(type.shape, np.float32 if type.dtype == np.complex64 else np.float64, type.weak)


def lower_compare(hlo: Hlo, direction: str, x: Any, y: Any) -> Any:
    """One compare in StableHLO, which knows no order of complex numbers."""
    dtype = x.type.dtype
    signed = is_integer(dtype) and short_name(dtype)[0] != "u"
    kind = "FLOAT" if is_inexact(dtype) else "SIGNED" if signed else "UNSIGNED"
    attributes = (
        f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {kind}>"
    )
    return hlo.op("stablehlo.compare", (x, y), ArrayType(x.type.shape, np.bool_), attributes)
