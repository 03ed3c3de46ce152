"""untrack: a program whose types do not say any more over which axes of manual regions values vary.

That is for derivatives and for what users are told. What devices compute is the same, so it is left out before layouts
are chosen.
"""

from dataclasses import replace

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.named import AssertReplicated, NamedIndex, NamedReduction, PVary
from shardwise.compiler.ops.control.manual import Manual


@verifies_result
def erase_varying(program: Program) -> Program:
    """`program` without what its types track; the same one where there is no manual region."""
    if not any(isinstance(equation.op, (Manual, PVary)) or _tracked(equation) for equation in program.walk()):
        return program
    return _untracked(program)


def _tracked(equation: Equation) -> bool:
    return any(value.type.varying for value in (*equation.inputs, *equation.outputs))


def _untracked(program: Program) -> Program:
    known: dict[Value, Value] = {value: Value(value.type.with_varying(())) for value in program.inputs}
    equations = []
    for equation in program.equations:
        inputs = [known[value] for value in equation.inputs]
        if isinstance(equation.op, (PVary, AssertReplicated)):
            known[equation.outputs[0]] = inputs[0]
            continue
        outputs = [Value(value.type.with_varying(())) for value in equation.outputs]
        known.update(zip(equation.outputs, outputs, strict=True))
        equations.append(equation.replace(op=_plain(equation.op), inputs=inputs, outputs=outputs))
    inputs = [known[value] for value in program.inputs]
    return Program(tuple(inputs), tuple(equations), tuple(known[value] for value in program.outputs), program.name)


def _plain(op: Op) -> Op:
    op = op.map_programs(_untracked)
    match op:
        case Manual():
            return replace(op, tracked=False)
        case NamedReduction():
            return replace(op, invariant=False)
        case NamedIndex():
            return replace(op, tracked=False)
        case _:
            return op
