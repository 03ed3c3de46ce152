"""lighten: the two halves of a derivative, with less kept between them.

In come a forward program (inputs → outputs, residuals) and a linear one (residuals, tangents → tangents); out come the
same two with smaller residuals. What was only spread from something smaller, or turned over from something that is
there anyway, is spread or turned over again in the linear half. Inside one program XLA would do so by itself; what a
loop stacks it cannot see through.
"""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, Transpose

_AT_HOME = (Broadcast, Reshape, Transpose)  # other moves, done again, may send something again


@verifies_result
def shrink_residuals(forward: Program, linear: Program, count: int) -> tuple[Program, Program]:
    """`count`: of the forward half's outputs that are no residuals."""
    residuals = forward.outputs[count:]
    makers = {equation.outputs[0]: equation for equation in forward.equations if isinstance(equation.op, _AT_HOME)}
    there = {*forward.inputs, *residuals}
    if not any(_moves(makers, there, value) for value in residuals):
        return forward, linear
    kept: dict[Value, Value] = {}  # of the forward half → what it is in the linear one
    again: list[Equation] = []

    def brought(value: Value, inside: Value) -> Value:
        """What stands for `value` in the linear half: `inside`, unless it is there under another name."""
        if value not in kept:
            kept[value] = inside
            if _moves(makers, there, value):
                maker = makers[value]
                operand = brought(maker.inputs[0], _inside(maker.inputs[0], residuals, linear))
                again.append(maker.replace(inputs=[operand], outputs=[inside]))
        return kept[value]

    names = {inside: brought(value, inside) for value, inside in zip(residuals, linear.inputs, strict=False)}
    made = {equation.outputs[0] for equation in again}
    needed = [(value, inside) for value, inside in kept.items() if inside not in made]
    equations = [e.replace(inputs=[names.get(value, value) for value in e.inputs]) for e in linear.equations]
    lighter = Program(
        (*(inside for _, inside in needed), *linear.inputs[len(residuals) :]),
        (*again, *equations),
        tuple(names.get(value, value) for value in linear.outputs),
        linear.name,
    )
    outputs = (*forward.outputs[:count], *(value for value, _ in needed))
    return replace(forward, outputs=outputs), lighter


def _moves(makers: dict[Value, Equation], there: set[Value], value: Value) -> bool:
    """Whether a value is a move of what is smaller, or there anyway."""
    if value not in makers:
        return False
    (operand,) = makers[value].inputs
    return operand.type.size < value.type.size or operand in there


def _inside(value: Value, residuals: Sequence[Value], linear: Program) -> Value:
    """The input of the linear half that a value has, if it is a residual; else a new one."""
    return linear.inputs[residuals.index(value)] if value in residuals else Value(value.type)
