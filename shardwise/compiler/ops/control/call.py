"""Ops that are a program: call (a jit inside another), and what every such op shares."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, final

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, UndefinedPrimal
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType


@record
class CallLike(Op):
    """One program, whose results are the op's; its equations take the op's place before `propagate`."""

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
        program, moving = installed.transforms.jvp(self.program, present_mask(tangents))
        results = self.with_programs([program])(*primals, *drop_none(tangents))
        count = len(self.program.outputs)
        return results[:count], insert_none(results[count:], moving)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        linear = tuple(isinstance(x, UndefinedPrimal) for x in operands)
        program, moving = installed.transforms.transpose(self.program, linear, present_mask(cotangent))
        known = [x for x in operands if not isinstance(x, UndefinedPrimal)]
        return tuple(
            insert_none(insert_none(self.with_programs([program])(*known, *drop_none(cotangent)), moving), linear)
        )

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return evaluate(self.program, operands)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = installed.transforms.vmap(self.program, axis, tuple(dims))
        return self.with_programs([program])(*operands), out_dims


@final
@record
class Call(CallLike):
    """The program's results. Equal calls share one program until `propagate` inlines them."""

    name = "call"

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        forward, linear, moving = installed.transforms.linearize(self.program, present_mask(tangents))
        results = Call(forward)(*primals)
        count = len(self.program.outputs)
        return results[:count], insert_none(Call(linear)(*results[count:], *drop_none(tangents)), moving)


def present_mask(values: Sequence[Any]) -> tuple[bool, ...]:
    """Which values are there."""
    return tuple(value is not None for value in values)


def drop_none(values: Sequence[Any]) -> list[Any]:
    """The values that are there."""
    return [value for value in values if value is not None]


def insert_none(values: Sequence[Any], here: Sequence[bool]) -> list[Any]:
    """The values at the places marked, None at the others."""
    rest = iter(values)
    return [next(rest) if marked else None for marked in here]
