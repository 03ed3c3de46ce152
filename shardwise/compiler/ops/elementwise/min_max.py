"""Elementwise maximum, minimum, relu and clamp."""

from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.ir.fusion import CHEAP_ON_CPU
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.base import REALS, Elementwise
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.select import Compare, lower_compare


class Extremum(Elementwise):
    """Maximum or minimum of two operands. NaN propagates.

    Complex numbers are ordered by real part, then by imaginary part. The derivative at a tie is split evenly between
    the operands; at NaN it is zero.
    """

    direction: ClassVar[str]  # how the result compares with the other operand

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        x, y = map(Expr, primals)
        z = apply(self, x, y)
        # Mask the other operand's tangent with a select, because a weight of zero would turn an infinite tangent into
        # NaN.
        weight = where(x == y, x.full_like(0.5), 1)
        total = None
        for tangent, operand in zip(tangents, (x, y), strict=True):
            if tangent is not None:
                total = add_tangents(total, where(operand == z, Expr(tangent) * weight, 0).array)
        return z.array, total

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        x, y = operands
        if x.type.dtype.kind != "c":
            return super().lower(hlo, x, y)
        unordered = lower_compare(hlo, "NE", x, x)
        takes_x = hlo.op("stablehlo.or", (Compare(self.direction).lower(hlo, x, y), unordered), unordered.type)
        return hlo.op("stablehlo.select", (takes_x, x, y), self.out_type(x.type, y.type))


@final
@record
class Max(Extremum):
    """The elementwise maximum."""

    fusion = CHEAP_ON_CPU
    name = "max"
    hlo_name = "maximum"
    direction = "GE"

    def maxima_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return np.maximum(*operands)


@final
@record
class Min(Extremum):
    """The elementwise minimum."""

    fusion = CHEAP_ON_CPU
    name = "min"
    hlo_name = "minimum"
    direction = "LE"

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return np.minimum(*operands)


@final
@record
class Relu(Elementwise):
    """The maximum of the operand and 0. NaN propagates. The derivative at 0 is 0."""

    fusion = CHEAP_ON_CPU
    name = "relu"
    arity = 1
    accepts = REALS

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = map(Expr, primals), map(Expr, tangents)
        return self(*primals), where(x > 0, dx, 0).array

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        (x,) = operands
        return hlo.op("stablehlo.maximum", (x, hlo.constant(0, x.type.strong())), x.type)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        return np.maximum(x, np.zeros((), x.dtype))


@final
@record
class Clamp(Elementwise):
    """The second operand limited to at least the first, then to at most the third. NaN propagates."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "clamp"
    arity = 3
    accepts = REALS

    def types_as_jax(self, low: ArrayType, x: ArrayType, high: ArrayType) -> tuple[ArrayType, ...]:
        return low.with_explicit(None), x, high.with_explicit(None)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        low, x, high = map(Expr, primals)
        is_low = (low > x) & (low <= high)
        inside = (x > low) & (x < high)
        is_high = (high < x) | (high < low)
        total = None
        for tangent, is_result in zip(tangents, (is_low, inside, is_high), strict=True):
            if tangent is not None:
                total = add_tangents(total, where(is_result, Expr(tangent), 0).array)
        return self(*primals), total

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        low, x, high = operands
        return np.minimum(np.maximum(low, x), high)
