"""shard_alike: tie the layouts of two values (`experimental.shard_alike`)."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import Elementwise


@final
@record
class ShardAlike(Elementwise):
    """The first operand, in the layout of the second, which has the same shape. The factor rule ties their dims."""

    name = "shard_alike"
    accepts_keys = True

    def result_type(self, *types: ArrayType) -> ArrayType:
        x, like = types
        if x.shape != like.shape:
            raise TypeError(f"shard_alike: operands must have one shape, not {x} and {like}")
        return ArrayType(x.shape, x.dtype, x.weak)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), tangents[0]

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        return operands[0]

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]
