"""inline: a program with every call replaced by the equations of what it calls."""

from shardwise.compiler.ir.program import Equation, Program, Value


def inline(program: Program) -> Program:
    """`program` without calls. Equations keep their own source lines."""
    if not any(equation.op.inlined for equation in program.equations):
        return program
    equations: list[Equation] = []
    renamed: dict[Value, Value] = {}
    for equation in program.equations:
        inputs = [renamed.get(value, value) for value in equation.inputs]
        if equation.op.inlined:
            body = inline(equation.op.program)  # type: ignore[attr-defined]
            inner: dict[Value, Value] = dict(zip(body.inputs, inputs, strict=True))
            for step in body.equations:
                outputs = [Value(value.type) for value in step.outputs]
                equations.append(Equation(step.op, [inner[v] for v in step.inputs], outputs, step.source, step.reason))
                inner.update(zip(step.outputs, outputs, strict=True))
            renamed.update(zip(equation.outputs, (inner[value] for value in body.outputs), strict=True))
        else:
            equations.append(Equation(equation.op, inputs, equation.outputs, equation.source, equation.reason))
    outputs_ = tuple(renamed.get(value, value) for value in program.outputs)
    return Program(program.inputs, tuple(equations), outputs_, program.name)
