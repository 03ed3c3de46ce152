"""Elementwise ops that choose the larger or the smaller: max min clamp."""

from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.elementwise.arithmetic import Mul, add_tangents
from shardwise.compiler.ops.elementwise.base import REALS, Elementwise, full_like
from shardwise.compiler.ops.elementwise.bitwise import And, Or
from shardwise.compiler.ops.elementwise.select import Compare, Select, lower_compare
from shardwise.compiler.ops.shape.constants import zeros_like


class Extremum(Elementwise):
    """The larger or the smaller of two; NaN where either is. Complex numbers are ordered by real part, then by
    imaginary part. The derivative at a tie is shared by both; at NaN it is zero.
    """

    direction: ClassVar[str]  # how the result compares with what loses

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        x, y = primals
        z = self(x, y)
        # What loses gets zero by selection, not by a weight: a weight of zero would turn an infinite tangent into NaN.
        shared = Select()(Compare("EQ")(x, y), full_like(x, 0.5), full_like(x, 1))
        moved = None
        for tangent, mine in zip(tangents, primals, strict=True):
            if tangent is not None:
                kept = Select()(Compare("EQ")(mine, z), Mul()(tangent, shared), zeros_like(x))
                moved = add_tangents(moved, kept)
        return z, moved

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        x, y = operands
        if x.type.dtype.kind != "c":
            return super().lower(hlo, x, y)
        unordered = lower_compare(hlo, "NE", x, x)
        wins = hlo.op("stablehlo.or", (Compare(self.direction).lower(hlo, x, y), unordered), unordered.type)
        return hlo.op("stablehlo.select", (wins, x, y), self.out_type(x.type, y.type))


@final
@record
class Max(Extremum):
    """The larger of two."""

    name = "max"
    hlo_name = "maximum"
    direction = "GE"

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return np.maximum(*operands)


@final
@record
class Min(Extremum):
    """The smaller of two."""

    name = "min"
    hlo_name = "minimum"
    direction = "LE"

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return np.minimum(*operands)


@final
@record
class Relu(Elementwise):
    """The operand where it is above 0, else 0; NaN where it is. At 0 its derivative is 0."""

    name = "relu"
    arity = 1
    accepts = REALS

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        return self(x), Select()(Compare("GT")(x, full_like(x, 0)), dx, zeros_like(dx))

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        (x,) = operands
        return hlo.op("stablehlo.maximum", (x, hlo.constant(0, x.type.strong())), x.type)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        return np.maximum(x, np.zeros((), x.dtype))


@final
@record
class Clamp(Elementwise):
    """The second operand, but no less than the first, and then no more than the third; NaN where any is."""

    name = hlo_name = "clamp"
    arity = 3
    accepts = REALS

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        low, x, high = primals
        by_low = And()(Compare("GT")(low, x), Compare("LE")(low, high))
        inside = And()(Compare("GT")(x, low), Compare("LT")(x, high))
        by_high = Or()(Compare("LT")(high, x), Compare("LT")(high, low))
        moved = None
        for tangent, holds in zip(tangents, (by_low, inside, by_high), strict=True):
            if tangent is not None:
                moved = add_tangents(moved, Select()(holds, tangent, zeros_like(x)))
        return self(*primals), moved

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        low, x, high = operands
        return np.minimum(np.maximum(low, x), high)
