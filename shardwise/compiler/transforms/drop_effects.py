"""silence: a program, or an op that holds programs, without effects: for computing again what was computed before."""

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program
from shardwise.compiler.ops.control.call import Inner
from shardwise.compiler.ops.control.control import Control


def silence(op: Op) -> Op:
    """The op without the effects of its programs; TypeError where something depends on what an effect gives."""
    if not op.effect:
        return op
    programs = [silent(program) for program in op.programs]
    if isinstance(op, Control):
        return op.with_programs(programs)
    if isinstance(op, Inner):
        return op.with_program(programs[0])
    raise TypeError(f"`{op.name}` has an effect, which cannot be repeated")


def silent(program: Program) -> Program:
    """The program without effects; TypeError where something depends on what an effect gives."""
    if not program.effect:
        return program
    used = {value for equation in program.equations for value in equation.inputs} | set(program.outputs)
    equations = []
    for equation in program.equations:
        if equation.op.effect and used.isdisjoint(equation.outputs):
            continue
        try:
            op = silence(equation.op)
        except TypeError as error:
            raise TypeError(f"{error}: at {equation.source} its result is used") from None
        equations.append(Equation(op, equation.inputs, equation.outputs, equation.source, equation.reason))
    return Program(program.inputs, tuple(equations), program.outputs, program.name)
