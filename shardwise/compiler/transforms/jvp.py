"""jvp: forward-mode differentiation. Every value has a primal and a tangent; a tangent of None is zero."""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.placement.retype import match_type, zeros_of
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import for_each_equation


class Duals:
    """The primals and tangents of a program's values, computed equation by equation.

    Attributes:
        primal: the primal of each value.
        tangent: the tangent of each value; values with a zero tangent have no entry.
        linearizing: whether primals and tangents are staged in different frames. Ops then use `Op.linearize`.
    """

    def __init__(self, linearizing: bool = False):
        self.primal: dict[Value, Any] = {}
        self.tangent: dict[Value, Any] = {}
        self.linearizing = linearizing

    def set(self, value: Value, primal: Operand, tangent: Operand | None) -> None:
        """Record the primal and the tangent of a value. Values of integer and boolean dtypes have no tangent."""
        self.primal[value] = primal
        if tangent is not None and is_inexact(value.type.dtype):
            self.tangent[value] = match_type(tangent, value.type)

    def step(self, equation: Equation) -> None:
        """Compute the primals of an equation's results, and their tangents if an operand has one."""
        op = equation.op
        primals = [self.primal[value] for value in equation.inputs]
        tangents = [self.tangent.get(value) for value in equation.inputs]
        if all(tangent is None for tangent in tangents):
            results, out_tangents = op(*primals), None
        else:
            results, out_tangents = (op.linearize if self.linearizing else op.jvp)(primals, tangents)
        if op.single:
            self.set(equation.outputs[0], results, out_tangents)
        else:
            out_tangents = out_tangents or [None] * len(results)
            for value, result, tangent in zip(equation.outputs, results, out_tangents, strict=True):
                self.set(value, result, tangent)


def jvp(program: Program, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Compute the program's outputs and their tangents (None is zero) in the open frame."""
    duals = Duals()
    for value, primal, tangent in zip(program.inputs, primals, tangents, strict=True):
        duals.set(value, primal, tangent)
    for_each_equation(program.equations, duals.step)
    return [duals.primal[value] for value in program.outputs], [duals.tangent.get(value) for value in program.outputs]


@memoized(maxsize=4096)
@verifies_result
def jvp_program(
    program: Program, active: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
) -> tuple[Program, tuple[bool, ...]]:
    """Differentiate a program in forward mode.

    Args:
        program: the program.
        active: for each input, whether it has a tangent.
        instantiate: for each output, whether it has a tangent even if that is zero.

    Returns:
        The program (primals, tangents of the active inputs) → (outputs, tangents of the nonzero outputs); and for each
        output, whether it has a tangent.
    """
    nonzero: tuple[bool, ...] = ()
    count = len(program.inputs)

    def body(*args: Operand) -> list[Any]:
        nonlocal nonzero
        outputs, tangents = jvp(program, args[:count], insert_none(args[count:], active))
        tangents = instantiate_zeros(tangents, instantiate, program.out_types)
        nonzero = present_mask(tangents)
        return [*outputs, *drop_none(tangents)]

    types = [*program.in_types, *(t for t, is_active in zip(program.in_types, active, strict=True) if is_active)]
    return rewrite(f"jvp_{program.name}", types, body), nonzero


def instantiate_zeros(tangents: Sequence[Any], instantiate: Sequence[bool], types: Sequence[ArrayType]) -> list[Any]:
    """Replace tangents (or cotangents) of None by zeros if they are marked in `instantiate`."""
    marks = instantiate or (False,) * len(tangents)
    return [
        zeros_of(type) if tangent is None and is_instantiated else tangent
        for tangent, is_instantiated, type in zip(tangents, marks, types, strict=True)
    ]
