"""in_memory: the value itself, kept in another memory of its devices until it is used."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import Call
from shardwise.compiler.ops.elementwise.base import Elementwise


@final
@record
class InMemory(Elementwise):
    """The operand, in the memory of this kind (`pinned_host`). Ops that use it get it back where devices compute."""

    name = "in_memory"
    accepts_keys = True
    arity = 1
    cheap_to_recompute = False
    kind: str

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), tangents[0]

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (cotangent,)

    def lower(self, hlo: Hlo, x: Any) -> Any:
        if hlo.platform == "cpu":  # all of its memories are one
            return x
        return hlo.in_memory(hlo.in_memory(x, self.kind), "device")  # there, and back for those who use it

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]


def out_kinds(program: Program) -> tuple[str | None, ...]:
    """For each output of a program, the kind of memory in which the program leaves it; None for the usual one."""
    makers = {value: equation for equation in program.equations for value in equation.outputs}
    kinds: list[str | None] = []
    for output in program.outputs:
        equation = makers.get(output)
        if equation is None:
            kinds.append(None)
        elif isinstance(equation.op, Call):
            kinds.append(out_kinds(equation.op.program)[list(equation.outputs).index(output)])
        else:
            kinds.append(equation.op.kind if isinstance(equation.op, InMemory) else None)
    return tuple(kinds)
