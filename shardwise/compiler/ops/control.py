"""Ops that hold a program: call (a jit inside another)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import NumpyArray, Op, Unknown
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType


@final
@dataclass(frozen=True)
class Call(Op):
    """The program's results. Equal calls share one program until `propagate` inlines them."""

    name = "call"
    single = False
    inlined = True
    program: Program

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types != self.program.in_types:
            raise TypeError(f"call: {self.program.name} takes {self.program.in_types}, not {types}")
        return self.program.out_types

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        program, moving = installed.transforms.jvp(self.program, _present(tangents))
        results = Call(program)(*primals, *_some(tangents))
        count = len(self.program.outputs)
        return results[:count], _spread(results[count:], moving)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        forward, linear, moving = installed.transforms.linearize(self.program, _present(tangents))
        results = Call(forward)(*primals)
        count = len(self.program.outputs)
        return results[:count], _spread(Call(linear)(*results[count:], *_some(tangents)), moving)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        linear = tuple(isinstance(x, Unknown) for x in operands)
        program, moving = installed.transforms.transpose(self.program, linear, _present(cotangent))
        known = [x for x in operands if not isinstance(x, Unknown)]
        results = iter(_spread(Call(program)(*known, *_some(cotangent)), moving))
        return tuple(next(results) if is_linear else None for is_linear in linear)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return evaluate(self.program, operands)

    def vmap(self, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        program, out_dims = installed.transforms.vmap(self.program, size, tuple(dims))
        return Call(program)(*operands), out_dims


def _present(values: Sequence[Any]) -> tuple[bool, ...]:
    return tuple(value is not None for value in values)


def _some(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _spread(values: Sequence[Any], present: Sequence[bool]) -> list[Any]:
    """The values at the places marked, None at the others."""
    rest = iter(values)
    return [next(rest) if here else None for here in present]
