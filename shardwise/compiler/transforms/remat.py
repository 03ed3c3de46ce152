"""rematerialize: the derivative of a program that saves few residuals and recomputes the others (`jax.checkpoint`)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardwise.base.config import config
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.elementwise.identities import CheckpointName
from shardwise.compiler.ops.placement.memory_space import InMemory
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.checkpoint_policy import Offloadable, Policy
from shardwise.compiler.transforms.dce import dce, live_equations
from shardwise.compiler.transforms.drop_effects import without_effects
from shardwise.compiler.transforms.inline import inline, is_transparent_call
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.repeat_key_uses import repeat_key_uses
from shardwise.compiler.transforms.replay import replay

RECOMPUTED = "rematted_computation"  # the scope of recomputed equations, as JAX names it in profiles


@memoized(maxsize=4096)
@verifies_result
def rematerialize_program(
    program: Program, active: tuple[bool, ...], policy: Policy | None
) -> tuple[Program, Program, tuple[bool, ...]]:
    """Split the derivative of a program into a forward and a linear program, with recomputation.

    Args:
        program: the program.
        active: for each input, whether it has a tangent.
        policy: whether the results of an op may be saved, given the op and the types of its operands. None saves none.

    Returns:
        The forward program (inputs → outputs, saved values); the linear program (inputs, saved values, tangents →
        tangents), which recomputes the residuals; and for each output, whether it has a tangent.
    """
    forward, linear, nonzero = linearize_program(program, active)
    # Opaque calls keep their rules for the next derivative.
    forward, count = inline(forward, is_transparent_call), len(program.outputs)
    saving, recompute = _split(forward, forward.outputs[:count], forward.outputs[count:], policy)
    tangents = [type for type, is_active in zip(program.in_types, active, strict=True) if is_active]
    recompute, recompute_inputs = _in_scope(recompute), len(recompute.inputs)

    def body(*args: Operand) -> list[Any]:
        return replay(linear, [*replay(recompute, args[:recompute_inputs]), *args[recompute_inputs:]])

    return saving, rewrite(f"recompute_{program.name}", [*recompute.in_types, *tangents], body), nonzero


def _split(
    forward: Program, results: Sequence[Value], residuals: Sequence[Value], policy: Policy | None
) -> tuple[Program, Program]:
    """Split a program into one that returns `results` and saved values, and one that recomputes `residuals`.

    The second program has the saved values as further inputs. Values are saved if the policy allows it, if they are
    marked so, or if they cannot be recomputed.
    """
    saveable: list[Value] = []
    offloaded: dict[Value, str] = {}  # value → memory kind
    equations: list[Equation] = []
    recomputed: list[Equation] = []
    for equation in forward.equations:
        repeated = _without_effects(equation)
        decision = policy is not None and policy(equation.op, *(value.type for value in equation.inputs))
        if repeated is None or decision or (isinstance(equation.op, CheckpointName) and equation.op.always_saved):
            saveable += equation.outputs
            if isinstance(decision, Offloadable):
                offloaded |= dict.fromkeys(equation.outputs, decision.dst)
        elif policy is not None and isinstance(equation.op, Control) and equation.op.stack_length is not None:
            saving_loop, repeated, stacks = _split_loop(equation, equation.op, equation.op.stack_length, policy)
            saveable += stacks
            recomputed.append(repeated)
            equations.append(saving_loop)
            continue
        else:
            recomputed.append(repeated)
        equations.append(equation)
    recompute = forward.with_equations(live_equations(recomputed, residuals), residuals)
    saved = tuple(value for value in saveable if value in recompute.used)
    moves = [
        Equation(InMemory(offloaded[value]), [value], [Value(value.type)]) for value in saved if value in offloaded
    ]
    moved = {move.inputs[0]: move.outputs[0] for move in moves}
    outputs = (*results, *(moved.get(value, value) for value in saved))
    saving = dce(forward.with_equations([*equations, *moves], outputs))
    return saving, replace(recompute, inputs=(*recompute.inputs, *saved))


def _split_loop(equation: Equation, op: Control, length: int, policy: Policy) -> tuple[Equation, Equation, list[Value]]:
    """Split a loop by splitting its body. The saved values of all iterations are stacked, so none is offloaded.

    Returns:
        A loop that also stacks the saved values of its body; a loop that reads these stacks and recomputes the other
        values; and the stacks.
    """
    (body,) = op.programs
    outputs = body.outputs
    saving_body, recompute_body = _split(body, outputs, outputs, lambda *args: bool(policy(*args)))
    saved = saving_body.outputs[len(outputs) :]
    stacks = [Value(value.type.with_dim(0, length)) for value in saved]
    saving = equation.replace(op=op.with_programs([saving_body]), outputs=(*equation.outputs, *stacks))
    recompute = equation.replace(op=op.with_programs([recompute_body]), inputs=(*equation.inputs, *stacks))
    return saving, recompute, stacks


def _in_scope(program: Program) -> Program:
    """Return a program whose source lines, and those of its loops, are in the scope of recomputed equations."""
    return program.with_equations([_equation_in_scope(equation) for equation in program.equations], program.outputs)


def _equation_in_scope(equation: Equation) -> Equation:
    op = equation.op
    if isinstance(op, Control):
        op = op.with_programs([_in_scope(program) for program in op.programs])
    return equation.replace(op=op, source=equation.source.within((RECOMPUTED,)))


def _without_effects(equation: Equation) -> Equation | None:
    """Return the equation without its effects, which must not be repeated; None if that is impossible.

    The results of such an equation must be saved.
    """
    try:
        op = repeat_key_uses(without_effects(equation.op)) if config.debug_key_reuse else without_effects(equation.op)
    except TypeError:
        return None
    return equation if op is equation.op else equation.replace(op=op)
