"""Reductions over dims: the family, and sum. More of it: aggregate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, quiet
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, DType, carrier, reduced_in
from shardwise.compiler.ops import elementwise, shape
from shardwise.compiler.shardings.factors import FactorRule


@record
class Reduction(Op):
    """One element of all those along `dims`, by an op of two elements. Small floats are reduced in f32, and rounded
    once.
    """

    dims: tuple[int, ...]

    def pair(self) -> Op:
        """The op that makes one element of two."""
        raise self.missing("pair")

    def start(self, dtype: DType) -> Any:
        """The element that changes nothing."""
        raise self.missing("start")

    def how(self, dtype: DType) -> str | None:
        """How pieces of the operand are joined, by name; None where it needs all elements in one place."""
        return None

    def out_type(self, x: ArrayType) -> ArrayType:
        if missing := [dim for dim in self.dims if not 0 <= dim < x.ndim]:
            raise TypeError(f"{self.name}: dims {missing} do not exist in {x}")
        if len(set(self.dims)) != len(self.dims):
            raise TypeError(f"{self.name}: a dim repeats in {self.dims}")
        return x.without(self.dims)

    def factors(self, x: ArrayType) -> FactorRule:
        how = self.how(x.dtype)
        rule = FactorRule.reducing(x.shape, self.dims, how or "")
        return rule if how else replace(rule, reduce={}, whole=frozenset(self.dims))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = shape.batch_at(operands[0], dims[0], 0, axis.size)
        return replace(self, dims=tuple(dim + 1 for dim in self.dims))(x), 0

    def spread(self, y: Any, x: Any) -> Any:
        """A value with the type of the result, repeated along the dims that it lacks."""
        kept = tuple(dim for dim in range(x.type.ndim) if dim not in self.dims)
        return shape.Broadcast(x.type.shape, kept)(y)

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        wide = reduced_in(out.dtype)
        if wide != out.dtype:
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide))
        start = hlo.constant(self.start(wide), ArrayType((), wide))
        (total,) = hlo.reduce([x], [start], self.dims, lambda a, b: [self.pair().lower(hlo, *a, *b)])
        return total if wide == out.dtype else hlo.op("stablehlo.convert", (total,), out)


@final
@record
class Sum(Reduction):
    """The sum of the elements along `dims`; of booleans, whether any is true."""

    name = "sum"

    def pair(self) -> Op:
        return elementwise.Add()

    def start(self, dtype: DType) -> Any:
        return 0

    def how(self, dtype: DType) -> str | None:
        return "sum"

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (self.spread(cotangent, *operands),)

    @quiet
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.sum(x, self.dims, dtype=carrier(x.dtype))).astype(x.dtype)
