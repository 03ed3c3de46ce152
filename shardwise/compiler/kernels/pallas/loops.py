"""Loops of a Pallas kernel: which of their carries count iterations, so that Triton can pipeline the loop."""

from typing import NamedTuple, final

import numpy as np

from shardwise.compiler.control.while_loop import While
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.shape.constants import Full


@final
class Counter(NamedTuple):
    """A while loop that runs as long as a carry, which grows by 1, is below a bound.

    Attributes:
        carry: the index of the carry.
        stop_const: the index of the bound among the constants of the condition, if it is one of them.
        stop_carry: the index of the bound among the carries, otherwise.
    """

    carry: int
    stop_const: int | None
    stop_carry: int | None


def counter_step(body: Program, position: int, number: int) -> int | None:
    """Return by how much an iteration increases an int32 carry; None if that is not a constant.

    Args:
        body: the program of an iteration.
        position: the index of the carry among the inputs.
        number: its index among the outputs.
    """
    producers = body.producers()
    equation = producers.get(body.outputs[number])
    if equation is None or not isinstance(equation.op, Add) or equation.outputs[0].type.shape:
        return None
    for one, other in (equation.inputs, equation.inputs[::-1]):
        constant = producers.get(other)
        if one is body.inputs[position] and constant is not None and isinstance(constant.op, Full):
            value = constant.op.value.array
            return int(value) if value.dtype == np.int32 else None
    return None


def counting_loop(op: While) -> Counter | None:
    """Return how a while loop counts; None if it does not, or not in steps of 1."""
    condition = op.cond
    producers = condition.producers()
    test = _source(condition.outputs[0], producers)
    if not isinstance(test, Equation) or not isinstance(test.op, Compare) or test.op.direction not in ("LT", "GT"):
        return None
    below, above = test.inputs if test.op.direction == "LT" else test.inputs[::-1]
    places = {value: position for position, value in enumerate(condition.inputs)}
    if below not in places or above not in places or below.type.dtype.name != "int32":
        return None
    carry, stop = places[below] - op.cond_consts, places[above]
    if carry < 0 or counter_step(op.body, op.body_consts + carry, carry) != 1:
        return None
    if stop < op.cond_consts:
        return Counter(carry, stop, None)
    bound = stop - op.cond_consts
    is_constant = op.body.outputs[bound] is op.body.inputs[op.body_consts + bound]
    return Counter(carry, None, bound) if is_constant else None


def _source(value: Value, producers: dict[Value, Equation]) -> Equation | None:
    """Return the equation that computes a value, before conversions."""
    equation = producers.get(value)
    while equation is not None and isinstance(equation.op, Convert):
        equation = producers.get(equation.inputs[0])
    return equation
