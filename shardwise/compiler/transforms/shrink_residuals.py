"""shrink_residuals: reduce the memory of the residuals between the forward and the linear half of a derivative.

The input is a forward program (inputs → outputs, residuals) and a linear one (residuals, tangents → tangents). The
output is the same pair with smaller residuals: a residual that is a broadcast, reshape or transpose of a smaller value,
or of an input or another residual, is recomputed from that value in the linear half. Within one program XLA would do
this itself, but it cannot do it for residuals that a loop stacks.
"""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, Transpose

_LOCAL_MOVES = (Broadcast, Reshape, Transpose)  # recomputing other movements may repeat communication


@verifies_result
def shrink_residuals(forward: Program, linear: Program, count: int) -> tuple[Program, Program]:
    """Return the forward and the linear program with smaller residuals.

    Args:
        forward: inputs → outputs, residuals.
        linear: residuals, tangents → tangents.
        count: the number of outputs of `forward` that are not residuals.
    """
    residuals = forward.outputs[count:]
    moves = {equation.outputs[0]: equation for equation in forward.equations if isinstance(equation.op, _LOCAL_MOVES)}
    available = {*forward.inputs, *residuals}
    if not any(_is_recomputable(moves, available, value) for value in residuals):
        return forward, linear
    in_linear: dict[Value, Value] = {}  # value of the forward program → its value in the linear program
    recomputed: list[Equation] = []

    def linear_value(value: Value, own: Value) -> Value:
        """Return the value of the linear program that equals `value`: `own`, unless there is one already."""
        if value not in in_linear:
            in_linear[value] = own
            if _is_recomputable(moves, available, value):
                move = moves[value]
                operand = linear_value(move.inputs[0], _linear_input(move.inputs[0], residuals, linear))
                recomputed.append(move.replace(inputs=[operand], outputs=[own]))
        return in_linear[value]

    renamed = {own: linear_value(value, own) for value, own in zip(residuals, linear.inputs, strict=False)}
    computed = {equation.outputs[0] for equation in recomputed}
    saved = [(value, own) for value, own in in_linear.items() if own not in computed]
    equations = [e.replace(inputs=[renamed.get(value, value) for value in e.inputs]) for e in linear.equations]
    smaller = Program(
        (*(own for _, own in saved), *linear.inputs[len(residuals) :]),
        (*recomputed, *equations),
        tuple(renamed.get(value, value) for value in linear.outputs),
        linear.name,
    )
    outputs = (*forward.outputs[:count], *(value for value, _ in saved))
    return replace(forward, outputs=outputs), smaller


def _is_recomputable(moves: dict[Value, Equation], available: set[Value], value: Value) -> bool:
    """Return whether a value is a local move of a smaller value, or of one that is available in the linear half."""
    if value not in moves:
        return False
    (operand,) = moves[value].inputs
    return operand.type.size < value.type.size or operand in available


def _linear_input(value: Value, residuals: Sequence[Value], linear: Program) -> Value:
    """Return the input of the linear program for a residual; a new value for other values."""
    return linear.inputs[residuals.index(value)] if value in residuals else Value(value.type)
