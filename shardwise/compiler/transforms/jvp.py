"""jvp: forward-mode differentiation. Every value is a pair: its primal, and its tangent or None where that is zero."""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.call import drop_none, insert_none, present_mask
from shardwise.compiler.ops.control.retype import match_type, zeros_of
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import for_each_equation


class Duals:
    """Primals and tangents of a program's values, filled equation by equation.

    `linearizing`: primals and tangents live in different frames, and an op that holds a program splits it in two.
    """

    def __init__(self, linearizing: bool = False):
        self.primal: dict[Value, Any] = {}
        self.tangent: dict[Value, Any] = {}
        self.linearizing = linearizing

    def set(self, value: Value, primal: Any, tangent: Any) -> None:
        self.primal[value] = primal
        if tangent is not None and is_inexact(value.type.dtype):
            self.tangent[value] = match_type(tangent, value.type)

    def step(self, equation: Equation) -> None:
        """Emit one equation's primal, and its tangent where an operand has one."""
        op = equation.op
        primals = [self.primal[value] for value in equation.inputs]
        tangents = [self.tangent.get(value) for value in equation.inputs]
        if all(tangent is None for tangent in tangents):
            results, moved = op(*primals), None
        else:
            results, moved = (op.linearize if self.linearizing else op.jvp)(primals, tangents)
        if op.single:
            self.set(equation.outputs[0], results, moved)
        else:
            for value, result, tangent in zip(equation.outputs, results, moved or [None] * len(results), strict=True):
                self.set(value, result, tangent)


def jvp(program: Program, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The program's outputs and their tangents (None is zero), played into the open frame."""
    pairs = Duals()
    for value, primal, tangent in zip(program.inputs, primals, tangents, strict=True):
        pairs.set(value, primal, tangent)
    for_each_equation(program.equations, pairs.step)
    return [pairs.primal[value] for value in program.outputs], [pairs.tangent.get(value) for value in program.outputs]


@memoized(maxsize=4096)
@verifies_result
def jvp_program(
    program: Program, active: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
) -> tuple[Program, tuple[bool, ...]]:
    """(primals, tangents of the active inputs) → (outputs, tangents of the outputs that move); and which these are.

    Outputs marked in `instantiate` have a tangent even where it is zero.
    """
    moving: tuple[bool, ...] = ()
    count = len(program.inputs)

    def body(*args: Any) -> list[Any]:
        nonlocal moving
        outputs, tangents = jvp(program, args[:count], insert_none(args[count:], active))
        tangents = instantiate_zeros(tangents, instantiate, program.out_types)
        moving = present_mask(tangents)
        return [*outputs, *drop_none(tangents)]

    types = [*program.in_types, *(t for t, is_active in zip(program.in_types, active, strict=True) if is_active)]
    return rewrite(f"jvp_{program.name}", types, body), moving


def instantiate_zeros(tangents: Sequence[Any], instantiate: Sequence[bool], types: Sequence[ArrayType]) -> list[Any]:
    """Tangents or cotangents, with zeros for those marked that are not there."""
    marks = instantiate or (False,) * len(tangents)
    return [
        zeros_of(type) if tangent is None and is_instantiated else tangent
        for tangent, is_instantiated, type in zip(tangents, marks, types, strict=True)
    ]
