"""erase_varying: remove the varying axes of manual regions from the types of a program.

Derivatives and error messages need varying axes. Devices compute the same without them, so they are erased before
layouts are chosen.
"""

from dataclasses import replace

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.named import AssertReplicated, NamedIndex, NamedReduction, PVary
from shardwise.compiler.ops.control.manual import Manual


@verifies_result
def erase_varying(program: Program) -> Program:
    """Return the program without varying axes; `program` itself if it has no manual region."""
    if not any(isinstance(equation.op, (Manual, PVary)) or _has_varying(equation) for equation in program.walk()):
        return program
    return _erase_program(program)


def _has_varying(equation: Equation) -> bool:
    return any(value.type.varying for value in (*equation.inputs, *equation.outputs))


def _erase_program(program: Program) -> Program:
    new_values: dict[Value, Value] = {value: Value(value.type.with_varying(())) for value in program.inputs}
    equations = []
    for equation in program.equations:
        inputs = [new_values[value] for value in equation.inputs]
        if isinstance(equation.op, (PVary, AssertReplicated)):
            new_values[equation.outputs[0]] = inputs[0]
            continue
        outputs = [Value(value.type.with_varying(())) for value in equation.outputs]
        new_values.update(zip(equation.outputs, outputs, strict=True))
        equations.append(equation.replace(op=_erase_op(equation.op), inputs=inputs, outputs=outputs))
    inputs = [new_values[value] for value in program.inputs]
    outputs = [new_values[value] for value in program.outputs]
    return Program(tuple(inputs), tuple(equations), tuple(outputs), program.name)


def _erase_op(op: Op) -> Op:
    op = op.map_programs(_erase_program)
    match op:
        case Manual():
            return replace(op, tracked=False)
        case NamedReduction():
            return replace(op, invariant=False)
        case NamedIndex():
            return replace(op, tracked=False)
        case _:
            return op
