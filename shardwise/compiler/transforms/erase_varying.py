"""erase_varying: remove Manual axes (varying, unreduced and reduced) from the types of a program.

Derivatives and error messages need these axes. The computation on devices does not, so they are erased before layouts
are chosen.
"""

from dataclasses import replace

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.named import (
    AssertReplicated,
    NamedIndex,
    NamedReduction,
    PReduced,
    PUnreduced,
    PVary,
)
from shardwise.compiler.ops.collective.named_exchange import NamedAllGather, NamedReduceScatter


@verifies_result
def erase_varying(program: Program) -> Program:
    """Return the program without Manual axes in types; `program` itself if it has no manual region."""
    return _erase_program(program) if any(map(_has_manual_axes, program.walk())) else program


def _has_manual_axes(equation: Equation) -> bool:
    op = equation.op
    if isinstance(op, PVary) or (isinstance(op, Control) and op.is_manual):
        return True
    return any(_erase_type(value.type) is not value.type for value in (*equation.inputs, *equation.outputs))


def _erase_type(type: ArrayType) -> ArrayType:
    explicit = type.explicit and type.explicit.with_manual_sums((), ())
    return type.with_varying(()).with_explicit(explicit) if type.varying or explicit != type.explicit else type


def _erase_program(program: Program) -> Program:
    new_values: dict[Value, Value] = {value: Value(_erase_type(value.type)) for value in program.inputs}
    equations = []
    for equation in program.equations:
        inputs = [new_values[value] for value in equation.inputs]
        if isinstance(equation.op, (PVary, PReduced, PUnreduced, AssertReplicated)):
            new_values[equation.outputs[0]] = inputs[0]
            continue
        outputs = [Value(_erase_type(value.type)) for value in equation.outputs]
        new_values.update(zip(equation.outputs, outputs, strict=True))
        equations.append(equation.replace(op=_erase_op(equation.op), inputs=inputs, outputs=outputs))
    inputs = [new_values[value] for value in program.inputs]
    outputs = [new_values[value] for value in program.outputs]
    return Program(tuple(inputs), tuple(equations), tuple(outputs), program.name)


def _erase_op(op: Op) -> Op:
    op = op.map_programs(_erase_program)
    match op:
        case Control():
            return op.without_varying()
        case NamedReduction():
            return replace(op, invariant=False)
        case NamedIndex():
            return replace(op, tracked=False)
        case NamedAllGather():
            return replace(op, invariant=False, reduced=None)
        case NamedReduceScatter():
            return replace(op, unreduced=False)
        case _:
            return op
