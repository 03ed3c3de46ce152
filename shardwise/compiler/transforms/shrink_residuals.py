"""shrink_residuals: reduce the memory of the residuals between the forward and the linear half of a derivative.

The input is a forward program (inputs → outputs, residuals) and a linear one (residuals, tangents → tangents). The
output is the same pair with residuals of fewer bytes, from which the linear half recomputes the others.

For a call, the linear half recomputes broadcasts, reshapes and transposes; XLA compiles both halves together and
decides about the rest. XLA cannot decide about residuals that a loop stacks. For these, the linear half recomputes all
ops that are cheaper than storing and loading their results, such as the terms of an activation function.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.elementwise.identities import CheckpointName
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.transforms.dce import live_equations
from shardwise.compiler.transforms.minimum_cut import minimum_cut

_LOCAL_MOVES = (Broadcast, Reshape, Transpose)  # recomputing other data movement may repeat communication


@verifies_result
def shrink_residuals(forward: Program, linear: Program, count: int) -> tuple[Program, Program]:
    """Return the forward and the linear half of a call with smaller residuals.

    Args:
        forward: inputs → outputs, residuals.
        linear: residuals, tangents → tangents.
        count: the number of outputs of `forward` that are not residuals.
    """
    return _shrink(forward, linear, count, _is_local_move, set(forward.inputs))


@verifies_result
def shrink_loop_residuals(
    forward: Program, linear: Program, count: int, free: Collection[Value]
) -> tuple[Program, Program]:
    """Return the forward and the linear half of a loop's body with smaller residuals.

    Operands of products stay residuals, because recomputing them may repeat communication. So do values with a
    checkpoint name, because policies refer to them.

    Args:
        forward: inputs → outputs, residuals; without calls that are not opaque.
        linear: residuals, tangents → tangents.
        count: the number of outputs of `forward` that are not residuals.
        free: values that need no extra memory as residuals.
    """
    operands = {
        value
        for equation in forward.equations
        if equation.op.flops(*(operand.type for operand in equation.inputs))
        for value in equation.inputs
    }
    return _shrink(forward, linear, count, _is_cheap, {*free, *operands.intersection(forward.outputs[count:])})


def _shrink(
    forward: Program, linear: Program, count: int, recomputable: Callable[[Equation], bool], free: set[Value]
) -> tuple[Program, Program]:
    """Save the values with the fewest bytes from which the linear half can recompute the residuals."""
    residuals = forward.outputs[count:]
    made_by = {equation.outputs[0]: equation for equation in forward.equations if recomputable(equation)}
    if made_by.keys().isdisjoint(residuals):
        return forward, linear
    operands = {value: equation.inputs for value, equation in made_by.items()}
    # A loop-invariant constant needs no stack, but as a residual it would be an array in memory.
    costs = {
        value: 0 if value in free and operands.get(value) != () else value.type.nbytes for value in forward.values()
    }
    chosen = minimum_cut(dict.fromkeys(residuals), operands, costs)
    if chosen.issuperset(residuals):
        return forward, linear
    in_linear: dict[Value, Value] = {}  # value of the forward program → its value in the linear program
    for value, own in zip(residuals, linear.inputs, strict=False):
        in_linear.setdefault(value, own)
    renamed = {own: in_linear[value] for value, own in zip(residuals, linear.inputs, strict=False)}
    saved = [value for value in forward.values() if value in chosen]
    recomputed = live_equations(
        [equation for value, equation in made_by.items() if value not in chosen], in_linear.keys() - chosen
    )
    for value in (*saved, *(equation.outputs[0] for equation in recomputed)):
        in_linear.setdefault(value, Value(value.type))
    equations = [
        *(e.replace(inputs=[in_linear[v] for v in e.inputs], outputs=[in_linear[e.outputs[0]]]) for e in recomputed),
        *(e.replace(inputs=[renamed.get(v, v) for v in e.inputs]) for e in linear.equations),
    ]
    smaller = Program(
        (*(in_linear[value] for value in saved), *linear.inputs[len(residuals) :]),
        tuple(equations),
        tuple(renamed.get(value, value) for value in linear.outputs),
        linear.name,
    )
    return replace(forward, outputs=(*forward.outputs[:count], *saved)), smaller


def _is_local_move(equation: Equation) -> bool:
    return isinstance(equation.op, _LOCAL_MOVES)


def _is_cheap(equation: Equation) -> bool:
    """Return whether recomputing the result costs less than storing and loading it."""
    if equation.op.is_call:
        return len(equation.outputs) == 1 and all(map(_is_cheap, equation.op.programs[0].equations))
    op = equation.op
    return op.cheap_to_recompute and not op.fusion.is_barrier and not isinstance(op, CheckpointName)
