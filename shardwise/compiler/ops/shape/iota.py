"""Iota: the index of each element along a dim."""

from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import Hlo, HloValue, LocalContext, NumpyArray
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import Nullary
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class Iota(Nullary):
    """The index of each element along `dim`."""

    name = "iota"
    shape: tuple[int, ...]
    dim: int
    dtype: DType

    def out_type(self) -> ArrayType:
        if not 0 <= self.dim < len(self.shape):
            raise TypeError(f"iota: dim {self.dim} does not exist in shape {self.shape}")
        if self.dtype == np.bool_:
            raise TypeError("iota: the dtype must be numeric, not bool; compare an iota of integers")
        return ArrayType(self.shape, self.dtype)

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(self.shape, 0)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        shape, offset = context.out_shapes[0], context.offset(self.dim, np.int32)
        if offset is None:
            return Iota(shape, self.dim, self.dtype)()
        # Add in integers, because in a narrow float dtype the sum of rounded numbers differs from the rounded sum.
        index = Iota(shape, self.dim, np.dtype(np.int32))()
        index = Add()(index, Broadcast(shape, ())(offset))
        return index if self.dtype == np.int32 else Convert(self.dtype)(index)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        return hlo.op("stablehlo.iota", (), self.out_type(), f"iota_dimension = {self.dim} : i64")

    def reference(self, *operands: NumpyArray) -> NumpyArray:
        shape = [1] * len(self.shape)
        shape[self.dim] = self.shape[self.dim]
        index = np.arange(self.shape[self.dim]).astype(self.dtype).reshape(shape)
        return np.broadcast_to(index, self.shape)
