"""drop_shardings: remove the sharding constraints and Explicit shardings of a program, so that it fits any mesh."""

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.reshard import Reshard


@verifies_result
def drop_shardings(program: Program) -> Program:
    """Return a program without constraints and reshards, whose types have no shardings.

    Args:
        program: a program without calls and manual regions.
    """
    new_values: dict[Value, Value] = {}

    def plain(value: Value) -> Value:
        return new_values.setdefault(value, Value(value.type.with_explicit(None)))

    inputs = tuple(map(plain, program.inputs))
    equations = []
    for equation in program.equations:
        operands = [new_values[value] for value in equation.inputs]
        op = equation.op
        if isinstance(op, (Constrain, Reshard)):
            new_values[equation.outputs[0]] = operands[0]
            continue
        if isinstance(op, Control):
            op = op.map_programs(drop_shardings).without_explicit()
        equations.append(equation.replace(op=op, inputs=operands, outputs=list(map(plain, equation.outputs))))
    return Program(inputs, tuple(equations), tuple(new_values[value] for value in program.outputs), program.name)
