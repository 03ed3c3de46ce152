"""dce: a program without the equations whose results nobody uses."""

from shardwise.compiler.ir.program import Program


def dce(program: Program) -> Program:
    """`program` with the dead equations left out; inputs stay, used or not."""
    wanted = set(program.outputs)
    kept = []
    for equation in reversed(program.equations):
        if not wanted.isdisjoint(equation.outputs):
            kept.append(equation)
            wanted.update(equation.inputs)
    if len(kept) == len(program.equations):
        return program
    return Program(program.inputs, tuple(reversed(kept)), program.outputs, program.name)
