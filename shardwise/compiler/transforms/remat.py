"""rematerialize: the derivative of a program that keeps little and computes the rest again."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.replay import replay


@lru_cache(maxsize=4096)
def rematerialize_program(
    program: Program, active: tuple[bool, ...], policy: Callable[..., bool] | None
) -> tuple[Program, Program, tuple[bool, ...]]:
    """(inputs → outputs, saved), (inputs, saved, tangents → tangents), and which outputs move.

    The second computes the residuals again from the inputs and from what the policy lets the first save.
    """
    forward, linear, moving = linearize_program(program, active)
    kept, again = _split(inline(forward), len(program.outputs), policy)
    tangents = [type for type, is_active in zip(program.in_types, active, strict=True) if is_active]
    count = len(again.inputs)

    def body(*args: Any) -> list[Any]:
        return replay(linear, [*replay(again, args[:count]), *args[count:]])

    return kept, rewrite(f"again_{program.name}", [*again.in_types, *tangents], body), moving


def _split(forward: Program, count: int, policy: Callable[..., bool] | None) -> tuple[Program, Program]:
    """A forward program (outputs, residuals) as one that saves what the policy allows, and one that redoes the rest."""
    saveable: list[Value] = []
    made_by_hand = []
    for equation in forward.equations:
        if policy is not None and policy(equation.op, *(value.type for value in equation.inputs)):
            saveable += equation.outputs
        else:
            made_by_hand.append(equation)
    again = dce(Program(forward.inputs, tuple(made_by_hand), forward.outputs[count:], forward.name))
    used = {value for equation in again.equations for value in equation.inputs} | set(again.outputs)
    saved = tuple(value for value in saveable if value in used)
    kept = dce(Program(forward.inputs, forward.equations, (*forward.outputs[:count], *saved), forward.name))
    return kept, Program((*again.inputs, *saved), again.equations, again.outputs, again.name)
