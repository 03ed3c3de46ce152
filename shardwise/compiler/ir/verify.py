"""The rules of a program: every value is defined once and before use, and has the type that its op gives."""

from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.program import Equation, Program
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
        if wrong := type_error(equation):
            raise ProgramError(f"{where}: {wrong}")
        for inner in equation.op.programs:
            verify(inner)
        defined.update(equation.outputs)
    if any(value not in defined for value in program.outputs):
        raise ProgramError(f"{program.name}: an output is never defined")
    return program


def type_error(equation: Equation) -> str:
    """What is wrong with the types of an equation's operands or results; empty where nothing is."""
    try:
        types = result_types(equation.op, tuple(value.type for value in equation.inputs))
    except TypeError as error:
        return str(error)
    if types == tuple(value.type for value in equation.outputs):
        return ""
    return f"results are {[value.type for value in equation.outputs]}, the op gives {list(types)}"
