"""Elementwise abs and sign, and the parts of complex numbers: real, imag, conj, complex."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_integer, numpy_carrier, short_name
from shardwise.compiler.ir.fusion import CHEAP_ON_CPU
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Primal, UndefinedPrimal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.ops.elementwise.base import NUMBERS, DtypeSet, Elementwise
from shardwise.compiler.ops.elementwise.expr import Expr, unary_function, where
from shardwise.compiler.ops.elementwise.select import complex_part_type
from shardwise.compiler.ops.elementwise.unary import Unary
from shardwise.compiler.ops.shape.constants import zeros_like

COMPLEX = DtypeSet("complex numbers", lambda dtype: dtype.kind == "c")
COMPLEX_PARTS = DtypeSet("f32 or f64", lambda dtype: dtype in (np.float32, np.float64))
SIGNED = DtypeSet(
    "signed numbers", lambda dtype: dtype != np.bool_ and not (is_integer(dtype) and short_name(dtype)[0] == "u")
)


@final
@record
class Abs(Unary):
    """The absolute value, real for complex operands. The smallest integer is its own absolute value."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "abs"
    accepts = SIGNED

    def result_type(self, *types: ArrayType) -> ArrayType:
        type = super().result_type(*types)
        return complex_part_type(type) if type.dtype.kind == "c" else type

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        if x.dtype.kind == "c":
            return real(dx * conj(sign(x)))
        return where(x >= 0, dx, -dx)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        magnitude = np.abs(x.astype(numpy_carrier(x.dtype)))
        return magnitude if x.dtype.kind == "c" else magnitude.astype(x.dtype)


@final
@record
class Sign(Unary):
    """-1, 0 or 1; NaN for NaN. For complex numbers `x / |x|`, and 0 for 0."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "sign"
    accepts = NUMBERS
    numpy_function = np.sign

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr | None:
        if x.dtype.kind != "c":
            return None
        # The magnitude is constant, so only the component of the tangent perpendicular to the direction counts.
        perpendicular = imag(conj(y) * dx) / absolute(x)
        return y * Expr(Complex()(zeros_like(perpendicular.array), perpendicular.array))

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        if is_integer(x.type.dtype) and short_name(x.type.dtype)[0] == "u":
            return hlo.op("stablehlo.minimum", (x, hlo.constant(1, x.type)), x.type)
        return hlo.op("stablehlo.sign", (x,), x.type)


@final
@record
class Real(Elementwise):
    """The real part."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "real"
    arity = 1
    accepts = COMPLEX

    def result_type(self, *types: ArrayType) -> ArrayType:
        return complex_part_type(super().result_type(*types))

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (Complex()(cotangent, zeros_like(cotangent)),)

    def reference(self, *operands: NumpyArray) -> Any:
        return np.real(*operands)


@final
@record
class Imag(Elementwise):
    """The imaginary part."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "imag"
    arity = 1
    accepts = COMPLEX

    def result_type(self, *types: ArrayType) -> ArrayType:
        return complex_part_type(super().result_type(*types))

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (Complex()(zeros_like(cotangent), Neg()(cotangent)),)

    def reference(self, *operands: NumpyArray) -> Any:
        return np.imag(*operands)


@final
@record
class Conj(Elementwise):
    """The complex conjugate."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "conj"
    dialect = "chlo"
    arity = 1
    accepts = COMPLEX

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (self(cotangent),)

    def reference(self, *operands: NumpyArray) -> Any:
        return np.conj(*operands)


@final
@record
class Complex(Elementwise):
    """The complex number with the given real and imaginary parts."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "complex"
    accepts = COMPLEX_PARTS

    def result_type(self, *types: ArrayType) -> ArrayType:
        part = super().result_type(*types)
        return ArrayType(part.shape, np.complex64 if part.dtype == np.float32 else np.complex128, part.weak)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        zero = zeros_like(primals[0])
        return self(*primals), self(*(zero if tangent is None else tangent for tangent in tangents))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        to_real, to_imag = (isinstance(x, UndefinedPrimal) for x in operands)
        return (Real()(cotangent) if to_real else None, Neg()(Imag()(cotangent)) if to_imag else None)

    def reference(self, *operands: NumpyArray) -> Any:
        real, imag = operands
        result = np.empty(np.shape(real), np.complex64 if real.dtype == np.float32 else np.complex128)
        result.real, result.imag = real, imag  # real + 1j * imag would turn inf * 0 into NaN
        return result


absolute, sign = unary_function(Abs), unary_function(Sign)
real, imag, conj = unary_function(Real), unary_function(Imag), unary_function(Conj)
