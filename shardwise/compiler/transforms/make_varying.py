"""spread: a program of a manual region into which devices may come or not, each for itself.

What comes in is each device's own along the axes along which they part, and so is what goes out; in the programs that
its ops hold, too. Where all devices have one value outside, a derivative sums what each has of it: outside, where all
of them meet, and not in here.
"""

from typing import Any

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.named import PVary
from shardwise.compiler.ops.control.retype import match_type
from shardwise.compiler.ops.linalg.linear_solve import LinearSolve
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.replay import for_each_equation


@verifies_result
def make_varying(program: Program, axes: tuple[str, ...]) -> Program:
    """`program`, whose inputs and outputs vary along these axes as well."""

    def body(*args: Any) -> list[Any]:
        env: dict[Value, Any] = dict(zip(program.inputs, args, strict=True))

        def emit(equation: Equation) -> None:
            operands = [env[value] for value in equation.inputs]
            results = _applied(_spread(equation.op, axes), operands)
            env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

        for_each_equation(program.equations, emit)
        return [cast_to_varying(env[value], axes) for value in program.outputs]

    return rewrite(program.name, [type.with_varying((*type.varying, *axes)) for type in program.in_types], body)


def cast_to_varying(x: Any, axes: tuple[str, ...]) -> Any:
    """`x` as each device's own along these axes."""
    return match_type(x, x.type.with_varying((*x.type.varying, *axes)))


def _applied(op: Op, operands: list[Any]) -> Any:
    if isinstance(op, PVary):  # along other axes than those that it varies along already
        return cast_to_varying(operands[0], op.axes)
    return op(*operands)


def _spread(op: Op, axes: tuple[str, ...]) -> Op:
    return op if isinstance(op, LinearSolve) else op.map_programs(lambda inner: make_varying(inner, axes))
