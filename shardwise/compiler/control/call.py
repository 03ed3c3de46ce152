"""Call (a `jit` inside another function), and the base class of such ops."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, final

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.transpose import transpose_program
from shardwise.compiler.transforms.vmap import vmap_program


@record
class CallLike(Op):
    """An op that runs one program once and returns its results. It is inlined before layouts are planned."""

    single = False
    is_call = accepts_keys = infers_varying = True
    program: Program

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.program,)

    def with_programs(self, programs: Sequence[Program]) -> Self:
        (program,) = programs
        return replace(self, program=program)

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types != self.program.in_types:
            raise TypeError(f"{self.name}: {self.program.name} takes {self.program.in_types}, not {types}")
        return self.program.out_types

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        return tuple(type.varying for type in self.program.in_types)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        program, out_active = jvp_program(self.program, present_mask(tangents))
        results = self.with_programs([program])(*primals, *drop_none(tangents))
        count = len(self.program.outputs)
        return results[:count], insert_none(results[count:], out_active)

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        linear = tuple(isinstance(x, UndefinedPrimal) for x in operands)
        program, nonzero = transpose_program(self.program, linear, present_mask(cotangent))
        known = [x for x in operands if not isinstance(x, UndefinedPrimal)]
        cotangents = self.with_programs([program])(*known, *drop_none(cotangent))
        return tuple(insert_none(insert_none(cotangents, nonzero), linear))

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return evaluate(self.program, operands)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = vmap_program(self.program, axis, tuple(dims))
        return self.with_programs([program])(*operands), out_dims


@final
@record
class Call(CallLike):
    """A call of a program. Equal calls share one program until they are inlined."""

    name = "call"

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        forward, linear, out_active = linearize_program(self.program, present_mask(tangents))
        results = Call(forward)(*primals)
        count = len(self.program.outputs)
        return results[:count], insert_none(Call(linear)(*results[count:], *drop_none(tangents)), out_active)
