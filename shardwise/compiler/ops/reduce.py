"""Reductions over dims: sum."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, quiet
from shardwise.compiler.ir.types import ArrayType, carrier, is_float
from shardwise.compiler.ops import shape
from shardwise.compiler.shardings.factors import FactorRule


@final
@dataclass(frozen=True)
class Sum(Op):
    """The sum of the elements along `dims`. Small floats are summed in f32 and rounded once."""

    name = "sum"
    dims: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if missing := [dim for dim in self.dims if not 0 <= dim < x.ndim]:
            raise TypeError(f"sum: dims {missing} do not exist in {x}")
        if len(set(self.dims)) != len(self.dims):
            raise TypeError(f"sum: a dim repeats in {self.dims}")
        return x.without(self.dims)

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule.reducing(x.shape, self.dims, "sum")

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        (x,) = operands
        kept = tuple(dim for dim in range(x.type.ndim) if dim not in self.dims)
        return (shape.Broadcast(x.type.shape, kept)(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = shape.batch_at(operands[0], dims[0], 0, axis.size)
        return Sum(tuple(dim + 1 for dim in self.dims))(x), 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        wide = carrier(x.type.dtype) if is_float(x.type.dtype) else x.type.dtype
        if wide != x.type.dtype:
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide))
        zero = hlo.constant(0, ArrayType((), wide))
        dims = f"dimensions = {shape.int_list(self.dims)}"
        total = hlo.op("stablehlo.reduce", (x, zero), out.with_dtype(wide), dims, (hlo.reducer("sum", wide),))
        return total if wide == out.dtype else hlo.op("stablehlo.convert", (total,), out)

    @quiet
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.sum(x, self.dims, dtype=carrier(x.dtype))).astype(x.dtype)
