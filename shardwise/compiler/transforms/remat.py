"""rematerialize: the derivative of a program that keeps little and computes the rest again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.scan import Scan
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.dce import dce, live_equations
from shardwise.compiler.transforms.drop_effects import without_effects
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import replay


@memoized(maxsize=4096)
@verifies_result
def rematerialize_program(
    program: Program, active: tuple[bool, ...], policy: Callable[..., bool] | None
) -> tuple[Program, Program, tuple[bool, ...]]:
    """(inputs → outputs, saved), (inputs, saved, tangents → tangents), and which outputs move.

    The second computes the residuals again from the inputs and from what the policy lets the first save.
    """
    forward, linear, moving = linearize_program(program, active)
    whole, count = inline(forward), len(program.outputs)
    kept, again = _split(whole, whole.outputs[:count], whole.outputs[count:], policy)
    tangents = [type for type, is_active in zip(program.in_types, active, strict=True) if is_active]
    taken = len(again.inputs)

    def body(*args: Any) -> list[Any]:
        return replay(linear, [*replay(again, args[:taken]), *args[taken:]])

    return kept, rewrite(f"again_{program.name}", [*again.in_types, *tangents], body), moving


def _split(
    forward: Program, results: Sequence[Value], residuals: Sequence[Value], policy: Callable[..., bool] | None
) -> tuple[Program, Program]:
    """A program as one that gives `results` and saves what the policy allows, and one that redoes `residuals`."""
    saveable: list[Value] = []
    equations: list[Equation] = []
    made_by_hand: list[Equation] = []
    for equation in forward.equations:
        again = _repeatable(equation)
        if again is None or (policy is not None and policy(equation.op, *(value.type for value in equation.inputs))):
            saveable += equation.outputs
        elif isinstance(equation.op, Scan) and policy is not None:
            first, again, stacks = _split_scan(equation, equation.op, policy)
            saveable += stacks
            made_by_hand.append(again)
            equations.append(first)
            continue
        else:
            made_by_hand.append(again)
        equations.append(equation)
    rest = forward.with_equations(live_equations(made_by_hand, residuals), residuals)
    saved = tuple(value for value in saveable if value in rest.used)
    kept = dce(forward.with_equations(equations, (*results, *saved)))
    return kept, replace(rest, inputs=(*rest.inputs, *saved))


def _split_scan(equation: Equation, op: Scan, policy: Callable[..., bool]) -> tuple[Equation, Equation, list[Value]]:
    """A loop that also stacks what the policy allows; one that takes the stacks and redoes the rest; and the stacks."""
    outputs = op.program.outputs
    kept, again = _split(op.program, outputs, outputs, policy)
    saved = kept.outputs[len(outputs) :]
    stacks = [Value(value.type.with_shape((op.length, *value.type.shape))) for value in saved]
    first = equation.replace(op=op.with_programs([kept]), outputs=(*equation.outputs, *stacks))
    second = equation.replace(op=op.with_programs([again]), inputs=(*equation.inputs, *stacks), reason="")
    return first, second, stacks


def _repeatable(equation: Equation) -> Equation | None:
    """The equation without its effects, which happen once; None where that cannot be: its results must be kept."""
    try:
        op = without_effects(equation.op)
    except TypeError:
        return None
    return equation if op is equation.op else equation.replace(op=op, reason="")
