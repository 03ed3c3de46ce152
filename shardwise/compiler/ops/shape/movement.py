"""Movement ops (reshape and transpose), and helpers that permute dims."""

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.jax_checks import dim_axes, is_sharded
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.errors import ShardingTypeError


class MovementOp(Op):
    """An op that rearranges the elements of its operand. It is linear, and keeps the fill of the padding."""

    cheap_to_recompute = accepts_keys = only_moves = True

    def fused_bytes(self, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> float:
        # An estimate: most movement ops are views or are fused into a kernel, and write nothing themselves.
        return super().fused_bytes(operands, results) / 5

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0] if fills else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)


@final
@record
class Reshape(MovementOp):
    """Reshape in row-major order."""

    fusion = Fusion(fuses=True, duplicates="always", is_view=True)
    name = "reshape"
    shape: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if math.prod(self.shape) != x.size:
            raise TypeError(f"reshape: {x} has {x.size} elements, shape {self.shape} has {math.prod(self.shape)}")
        return x.with_shape(self.shape)

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule.reshaping(x.shape, self.shape)

    def maxima_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def check_as_jax(self, x: ArrayType) -> None:
        rule = self.factors(x)
        if not is_sharded(x) or not (rule.compound_dims or rule.need_replication):
            return
        merged = next((factors for factors in rule.results[0] if len(factors) > 1), ())
        axes = [dim_axes(x, dim) for dim, factors in enumerate(rule.operands[0]) if not set(factors).isdisjoint(merged)]
        while axes and not axes[-1]:
            axes.pop()
        if len(rule.compound_dims) != 1 or rule.need_replication or not all(axes):
            raise ShardingTypeError(
                f"reshape: JAX infers the sharding of the result only if one dim is split, or if dims are merged of "
                f"which only the last ones are unsharded. {x} is reshaped to {self.shape}: pass `out_sharding=P(...)` "
                "to `reshape`. The setting jax_compatibility is 'exact'."
            )

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return Reshape(context.out_shapes[0])(*operands)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (Reshape(operands[0].type.shape)(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return Reshape((axis.size, *self.shape))(batch_first(operands[0], dims[0])), 0

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return hlo.op("stablehlo.reshape", (x,), self.out_type(x.type))

    def reference(self, x: NumpyArray) -> NumpyArray:
        return x.reshape(self.shape)


@final
@record
class Transpose(MovementOp):
    """Permute the dims: dim i of the result is dim `permutation[i]` of the operand."""

    fusion = Fusion(fuses=True, duplicates="always", is_view_in_products=True)
    name = "transpose"
    permutation: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if sorted(self.permutation) != list(range(x.ndim)):
            raise TypeError(f"transpose: {self.permutation} is not a permutation of the dims of {x}")
        return x.with_shape(tuple(x.shape[dim] for dim in self.permutation))

    def factors(self, x: ArrayType) -> FactorRule:
        operand = tuple((dim,) for dim in range(x.ndim))
        return FactorRule((operand,), (tuple((dim,) for dim in self.permutation),), x.shape)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (Transpose(inverse_permutation(self.permutation))(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = batch_first(operands[0], dims[0])
        return Transpose((0, *(dim + 1 for dim in self.permutation)))(x), 0

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return hlo.op(
            "stablehlo.transpose", (x,), self.out_type(x.type), f"permutation = {i64_array_attribute(self.permutation)}"
        )

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.transpose(x, self.permutation)


def inverse_permutation(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of a permutation."""
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def permute(x: Operand, order: tuple[int, ...]) -> Any:
    """Permute the dims of `x`; return `x` itself for the identity."""
    return x if order == tuple(range(len(order))) else Transpose(order)(x)


def lower_permute(hlo: Hlo, x: HloValue, order: tuple[int, ...]) -> Any:
    """Emit the StableHLO of `permute`."""
    return x if order == tuple(range(len(order))) else Transpose(order).lower(hlo, x)


def move_dim(x: Operand, source: int, target: int) -> Any:
    """Move dim `source` of `x` to `target` and keep the order of the other dims."""
    order = [dim for dim in range(x.type.ndim) if dim != source]
    order.insert(target, source)
    return permute(x, tuple(order))


def i64_array_attribute(values: Sequence[int]) -> str:
    """Format integers as a dense i64 array attribute of MLIR."""
    return f"array<i64{': ' if values else ''}{', '.join(map(str, values))}>"


def batch_first(x: Operand, dim: int | None) -> Any:
    """Move the batch dim of a batched operand to the front. Used by vmap rules of ops with one operand."""
    assert dim is not None, "vmap does not call the rule of an op whose only operand is unbatched"
    return move_dim(x, dim, 0)
