"""Elementwise arithmetic: add, sub, mul, div, rem, neg and stop_gradient."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_inexact, is_integer, numpy_carrier
from shardwise.compiler.ir.fusion import CHEAP, Fusion
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Primal, UndefinedPrimal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import NUMBERS, REALS, Elementwise
from shardwise.compiler.ops.elementwise.select import lower_compare


def add_tangents(a: Operand | None, b: Operand | None) -> Any:
    """Add two tangents or cotangents. None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return Add()(a, b)


@final
@record
class Add(Elementwise):
    """`x + y`. Booleans are combined with OR."""

    fusion = CHEAP
    name = hlo_name = "add"

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), add_tangents(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return tuple(cotangent if isinstance(x, UndefinedPrimal) else None for x in operands)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return np.add(*operands)


@final
@record
class Sub(Elementwise):
    """`x - y`."""

    fusion = CHEAP
    name = "sub"
    hlo_name = "subtract"

    def out_type(self, *types: ArrayType) -> ArrayType:
        type = super().out_type(*types)
        if type.dtype == np.bool_:
            raise TypeError("sub: booleans cannot be subtracted; use logical xor, or convert them to integers")
        return type

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        dx, dy = tangents
        if dx is None or dy is None:
            return self(*primals), Neg()(dy) if dx is None else dx
        return self(*primals), self(dx, dy)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, y = operands
        to_x = cotangent if isinstance(x, UndefinedPrimal) else None
        return to_x, Neg()(cotangent) if isinstance(y, UndefinedPrimal) else None

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return np.subtract(*operands)


@final
@record
class Mul(Elementwise):
    """`x * y`. Booleans are combined with AND."""

    fusion = CHEAP
    name = "mul"
    hlo_name = "multiply"

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,), (1,))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        return self(x, y), add_tangents(None if dx is None else self(dx, y), None if dy is None else self(x, dy))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, y = operands
        return (self(cotangent, y), None) if isinstance(x, UndefinedPrimal) else (None, self(x, cotangent))

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        return np.multiply(*operands)


@final
@record
class Div(Elementwise):
    """`x / y`. Integer division truncates; an integer divided by 0 is a number with all bits set."""

    name = "div"
    hlo_name = "divide"
    accepts = NUMBERS

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if is_inexact(types[0].dtype) else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        z = self(x, y)
        from_x = None if dx is None else self(dx, y)
        return z, add_tangents(from_x, None if dy is None else Mul()(dy, Neg()(self(z, y))))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return self(cotangent, operands[1]), None

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        x, y = operands
        if is_inexact(x.type.dtype):
            return super().lower(hlo, x, y)
        # XLA's constant folding and its runtime disagree on the result of a division by 0.
        zero, one, ones = (hlo.constant(number, y.type) for number in (0, 1, -1))
        is_zero = lower_compare(hlo, "EQ", y, zero)
        quotient = super().lower(hlo, x, hlo.op("stablehlo.select", (is_zero, one, y), y.type))
        return hlo.op("stablehlo.select", (is_zero, ones, quotient), quotient.type)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        if is_inexact(operands[0].dtype):
            return np.divide(*operands)
        x, y = (operand.astype(numpy_carrier(operand.dtype)) for operand in operands)
        divisor = np.where(y == 0, 1, y).astype(y.dtype)
        floor = x // divisor
        quotient = floor + ((x - floor * divisor != 0) & ((x < 0) != (divisor < 0))).astype(x.dtype)
        return np.where(y == 0, ~np.zeros_like(x), quotient).astype(operands[0].dtype)


@final
@record
class Rem(Elementwise):
    """The remainder of a truncating division, with the sign of `x`. An integer `x` modulo 0 is `x`."""

    name = "rem"
    hlo_name = "remainder"
    accepts = REALS

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        z = self(x, y)
        slope = None if dy is None else Div()(Sub()(z, x), y)
        return z, add_tangents(dx, None if dy is None else Mul()(dy, slope))

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        x, y = operands
        if not is_integer(y.type.dtype):
            return super().lower(hlo, *operands)
        # XLA's constant folding of an integer remainder by 0 crashes the process.
        is_zero = lower_compare(hlo, "EQ", y, hlo.constant(0, y.type))
        divisor = hlo.op("stablehlo.select", (is_zero, hlo.constant(1, y.type), y), y.type)
        remainder = super().lower(hlo, x, divisor)
        return hlo.op("stablehlo.select", (is_zero, x, remainder), remainder.type)  # `x` may be weakly typed

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        x, y = (operand.astype(numpy_carrier(operand.dtype)) for operand in operands)
        if is_integer(x.dtype):
            remainder = np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y).astype(y.dtype)))
        else:
            remainder = np.fmod(x, y)
        return np.asarray(remainder).astype(operands[0].dtype)


@final
@record
class Neg(Elementwise):
    """`-x`."""

    fusion = CHEAP
    name = "neg"
    hlo_name = "negate"
    arity = 1

    def out_type(self, *types: ArrayType) -> ArrayType:
        type = super().out_type(*types)
        if type.dtype == np.bool_:
            raise TypeError("neg: a boolean has no negative; use logical not")
        return type

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (self(cotangent),)

    def reference(self, *operands: NumpyArray) -> Any:
        return np.negative(*operands)


@final
@record
class StopGradient(Elementwise):
    """The operand, with a zero derivative."""

    fusion = Fusion(fuses=True, duplicates="always", is_view=True)
    name = "stop_gradient"
    accepts_keys = True
    arity = 1

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return x

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]
