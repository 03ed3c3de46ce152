"""Base class of reductions over dims."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from shardwise.compiler.dtypes import DType, accumulation_dtype
from shardwise.compiler.ir.fusion import FUSED
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.movement import batch_first
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.factors import FactorRule


def check_dims(name: str, dims: tuple[int, ...], x: ArrayType) -> None:
    """Check that `dims` are different dims of `x`; `name` is the op's name, for errors."""
    if missing := [dim for dim in dims if not 0 <= dim < x.ndim]:
        raise TypeError(f"{name}: dims {missing} do not exist in {x}")
    if len(set(dims)) != len(dims):
        raise TypeError(f"{name}: a dim repeats in {dims}")


@record
class Reduce(Op):
    """Reduce the elements along `dims` to one. Floats narrower than f32 are reduced in f32 and rounded once."""

    fusion = FUSED
    reduction: ClassVar[Reduction]
    dims: tuple[int, ...]

    @property
    def reduced_dims(self) -> tuple[int, ...]:
        return self.dims

    def fused_bytes(self, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> float:
        return sum(type.nbytes for type in operands)

    def across_shards(self, dtype: DType) -> Reduction | None:
        """Return the reduction that combines the results of shards; None if the op needs all elements on one device."""
        return None

    def combine(self, hlo: Hlo, a: HloValue, b: HloValue) -> Any:
        """Emit the StableHLO op that combines two elements."""
        is_boolean = a.type.dtype == bool
        name = self.reduction.boolean_hlo_op if is_boolean else self.reduction.hlo_op
        return hlo.op(f"stablehlo.{name}", (a, b), a.type)

    def out_type(self, x: ArrayType) -> ArrayType:
        check_dims(self.name, self.dims, x)
        return x.without(self.dims)

    def factors(self, x: ArrayType) -> FactorRule:
        reduction = self.across_shards(x.dtype)
        rule = FactorRule.reducing(x.shape, self.dims, reduction)
        return rule if reduction else replace(rule, need_replication=frozenset(self.dims))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = batch_first(operands[0], dims[0])
        return replace(self, dims=tuple(dim + 1 for dim in self.dims))(x), 0

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        out = self.out_type(x.type)
        wide = accumulation_dtype(out.dtype)
        if wide != out.dtype:
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide))
        start = hlo.constant(self.reduction.neutral(wide), ArrayType((), wide))
        (total,) = hlo.reduce([x], [start], self.dims, lambda a, b: [self.combine(hlo, *a, *b)])
        return total if wide == out.dtype else hlo.op("stablehlo.convert", (total,), out)
