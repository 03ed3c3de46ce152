"""Sum over dims.

Sum and Broadcast are each other's transposes, so this module and `broadcast` import each other.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, numpy_carrier
from shardwise.compiler.ir.op import NumpyArray, Primal, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce import broadcast
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.reduction import SUM, Reduction


@final
@record
class Sum(Reduce):
    """Sum the elements along `dims`. Booleans are combined with OR."""

    name = "sum"
    reduction = SUM

    def across_shards(self, dtype: DType) -> Reduction | None:
        return SUM

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (broadcast.broadcast_reduced(cotangent, operands[0].type.shape, self.dims),)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.sum(x, self.dims, dtype=numpy_carrier(x.dtype))).astype(x.dtype)
