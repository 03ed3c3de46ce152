"""make_varying: cast the inputs and outputs of a program in a manual region to varying.

Branches and loop bodies with a varying predicate run on some devices only. Their inputs are cast to varying outside, so
that the derivative also sums cotangents over devices outside, where all devices take part in the collective.
"""

from typing import Any

from shardwise.compiler.control.linear_solve import LinearSolve
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.named import PVary
from shardwise.compiler.ops.placement.retype import match_type
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.replay import for_each_equation


@verifies_result
def make_varying(program: Program, axes: tuple[str, ...]) -> Program:
    """Return the program, including nested programs, with inputs and outputs that also vary over `axes`."""

    def body(*args: Operand) -> list[Any]:
        env: dict[Value, Any] = dict(zip(program.inputs, args, strict=True))

        def emit(equation: Equation) -> None:
            operands = [env[value] for value in equation.inputs]
            results = _apply(_make_op_varying(equation.op, axes), operands)
            env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

        for_each_equation(program.equations, emit)
        return [cast_to_varying(env[value], axes) for value in program.outputs]

    return rewrite(program.name, [type.with_varying((*type.varying, *axes)) for type in program.in_types], body)


def cast_to_varying(x: Operand, axes: tuple[str, ...]) -> Any:
    """Return `x` marked as also varying over `axes`."""
    return match_type(x, x.type.with_varying((*x.type.varying, *axes)))


def _apply(op: Op, operands: list[Any]) -> Any:
    if isinstance(op, PVary):  # `PVary` rejects operands that already vary over one of its axes
        return cast_to_varying(operands[0], op.axes)
    return op(*operands)


def _make_op_varying(op: Op, axes: tuple[str, ...]) -> Op:
    return op if isinstance(op, LinearSolve) else op.map_programs(lambda inner: make_varying(inner, axes))
