"""in_memory: keep a value in another memory of its devices, such as pinned host memory, until it is used."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import Elementwise

DEVICE = "device"  # the kind of the memory that ops compute in


@final
@record
class InMemory(Elementwise):
    """The identity; the result is kept in a memory of this kind (`pinned_host`). Ops read it into device memory."""

    name = "in_memory"
    accepts_keys = True
    arity = 1
    cheap_to_recompute = False
    kind: str

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), tangents[0]

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (cotangent,)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        if hlo.platform == "cpu":  # the CPU platform has only one memory
            return x
        return hlo.in_memory(hlo.in_memory(x, self.kind), "device")  # move to this memory, and back for the uses

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]
