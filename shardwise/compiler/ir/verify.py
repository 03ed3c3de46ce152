"""The rules of a program: every value is defined once and before use, and has the type that its op gives."""

from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.program import Program
from shardwise.errors import ProgramError


def verify(program: Program) -> Program:
    """`program`, if it keeps the rules; else a ProgramError that names the equation."""
    defined = set(program.inputs)
    if len(defined) != len(program.inputs):
        raise ProgramError(f"{program.name}: an input is listed twice")
    for number, equation in enumerate(program.equations):
        where = f"{program.name}, equation {number} ({equation.op.name}, {equation.source})"
        if any(value not in defined for value in equation.inputs):
            raise ProgramError(f"{where}: an operand is used before it is defined")
        if any(value in defined for value in equation.outputs):
            raise ProgramError(f"{where}: a result is defined twice")
        types = result_types(equation.op, tuple(value.type for value in equation.inputs))
        if types != tuple(value.type for value in equation.outputs):
            raise ProgramError(f"{where}: results are {[v.type for v in equation.outputs]}, the op gives {list(types)}")
        defined.update(equation.outputs)
    if any(value not in defined for value in program.outputs):
        raise ProgramError(f"{program.name}: an output is never defined")
    return program
