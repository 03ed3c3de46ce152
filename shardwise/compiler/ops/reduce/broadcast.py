"""Broadcast along new dims, and `batch_dim_at` for vmap rules.

Broadcast and Sum are each other's transposes, so this module and `sum` import each other.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.fusion import ALWAYS_FUSED
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce import sum as sum_op
from shardwise.compiler.ops.shape.movement import MovementOp, i64_array_attribute, move_dim
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class Broadcast(MovementOp):
    """Broadcast to `shape`: operand dim i becomes dim `dims[i]`, and the operand repeats along the other dims."""

    fusion = ALWAYS_FUSED
    name = "broadcast"
    shape: tuple[int, ...]
    dims: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if len(self.dims) != x.ndim or list(self.dims) != sorted(set(self.dims)):
            raise TypeError(
                f"broadcast: dims {self.dims} must name one result dim for each dim of {x}, in ascending order"
            )
        if self.dims and not 0 <= self.dims[0] <= self.dims[-1] < len(self.shape):
            raise TypeError(f"broadcast: dims {self.dims} do not exist in shape {self.shape}")
        if tuple(self.shape[dim] for dim in self.dims) != x.shape:
            raise TypeError(f"broadcast: {x} does not fit dims {self.dims} of shape {self.shape}")
        return x.with_shape(self.shape)

    def factors(self, *types: ArrayType) -> FactorRule:
        result = tuple((dim,) for dim in range(len(self.shape)))
        return FactorRule((tuple((dim,) for dim in self.dims),), (result,), self.shape)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return Broadcast(context.out_shapes[0], self.dims)(*operands)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (sum_op.Sum(tuple(dim for dim in range(len(self.shape)) if dim not in self.dims))(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = batch_dim_at(operands[0], dims[0], 0, axis.size)
        return Broadcast((axis.size, *self.shape), (0, *(dim + 1 for dim in self.dims)))(x), 0

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        dims = i64_array_attribute(self.dims)
        return hlo.op("stablehlo.broadcast_in_dim", (x,), self.out_type(x.type), f"broadcast_dimensions = {dims}")

    def reference(self, x: NumpyArray) -> NumpyArray:
        shape = [1] * len(self.shape)
        for dim in self.dims:
            shape[dim] = self.shape[dim]
        return np.broadcast_to(x.reshape(shape), self.shape)


def batch_dim_at(x: Operand, dim: int | None, target: int, size: int) -> Any:
    """Move the batch dim of `x` to `target`; broadcast an unbatched `x` along a new dim there."""
    if dim is not None:
        return move_dim(x, dim, target)
    shape = x.type.shape
    dims = tuple(d + (d >= target) for d in range(len(shape)))
    return Broadcast((*shape[:target], size, *shape[target:]), dims)(x)


def broadcast_reduced(y: Operand, shape: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    """Broadcast the result of a reduction over `dims` back to the operand's `shape`."""
    return Broadcast(shape, tuple(dim for dim in range(len(shape)) if dim not in dims))(y)
