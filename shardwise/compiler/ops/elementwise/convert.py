"""Elementwise dtype conversion."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, integer_range, is_float, is_inexact, is_integer, is_key, numpy_carrier
from shardwise.compiler.ir.fusion import ALWAYS_FUSED
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Primal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.elementwise.select import complex_part_type, lower_compare


@final
@record
class Convert(Elementwise):
    """Convert to `dtype`.

    Conversion to bool tests for nonzero. Conversion of a complex number to a real dtype keeps the real part. Conversion
    of a float to an integer truncates and saturates; NaN becomes 0. With `of_terms`, the operand's type is unreduced,
    and each device rounds its own term.
    """

    fusion = ALWAYS_FUSED
    name = hlo_name = "convert"
    arity = 1
    dtype: DType
    weak: bool = False
    of_terms: bool = field(default=False, repr=False)

    def result_type(self, *types: ArrayType) -> ArrayType:
        if is_key(self.dtype):
            raise TypeError(f"convert: {types[0]} cannot be converted to PRNG keys; use `random.wrap_key_data`")
        return ArrayType(types[0].shape, self.dtype, self.weak)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        # Rounding partial sums differs from rounding the sum, so only the user's types may request it.
        before, explicit = types[0].dtype, types[0].explicit
        rounds = self.of_terms or (explicit is not None and bool(explicit.unreduced))
        widens = self.dtype.itemsize > before.itemsize
        is_linear = is_float(before) and is_float(self.dtype) and (rounds or widens)
        return ((0,),) if is_linear or before == self.dtype else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents) if is_inexact(self.dtype) else None

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (Convert(operands[0].type.dtype)(cotangent),)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        (x,) = operands
        if self.dtype == np.bool_:  # StableHLO tests only the real part
            return lower_compare(hlo, "NE", x, hlo.constant(0, x.type.strong()))
        if x.type.dtype.kind == "c" and self.dtype.kind != "c":  # XLA crashes when it constant-folds this convert
            x = hlo.op("stablehlo.real", (x,), complex_part_type(x.type))
        return super().lower(hlo, x)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        if self.dtype == np.bool_:
            return x != np.zeros((), x.dtype)
        x = x.real if x.dtype.kind == "c" and self.dtype.kind != "c" else x.astype(numpy_carrier(x.dtype))
        return (
            _saturating_convert(x, self.dtype) if is_float(x.dtype) and is_integer(self.dtype) else x.astype(self.dtype)
        )


def _saturating_convert(x: NumpyArray, dtype: DType) -> NumpyArray:
    """Convert floats to integers with saturation. numpy's result for numbers out of range depends on the platform."""
    low, high = integer_range(dtype)
    wide = np.uint64 if low == 0 else np.int64
    exact = np.where(np.isnan(x), 0, x.astype(np.float64))
    inside = (exact >= low) & (exact < float(high) + 1)
    ends = np.where(exact > 0, np.array(high, wide), np.array(low, wide))
    return np.where(inside, np.where(inside, exact, 0).astype(wide), ends).astype(dtype)
