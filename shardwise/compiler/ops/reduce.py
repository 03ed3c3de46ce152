"""Reductions over dims: sum."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, NumpyArray, Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops import shape
from shardwise.compiler.shardings.factors import FactorRule


@final
@dataclass(frozen=True)
class Sum(Op):
    """The sum of the elements along `dims`."""

    name = "sum"
    dims: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if missing := [dim for dim in self.dims if not 0 <= dim < x.ndim]:
            raise TypeError(f"sum: dims {missing} do not exist in {x}")
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

    def vmap(self, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = shape.batch_at(operands[0], dims[0], 0, size)
        return Sum(tuple(dim + 1 for dim in self.dims))(x), 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        zero = hlo.constant(0, ArrayType((), x.type.dtype))
        dims = shape.int_list(self.dims)
        reducer = hlo.reducer("sum", x.type.dtype)
        return hlo.op("stablehlo.reduce", (x, zero), self.out_type(x.type), f"dimensions = {dims}", (reducer,))

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.sum(x, self.dims, dtype=x.dtype))
