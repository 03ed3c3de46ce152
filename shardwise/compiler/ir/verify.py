"""The invariants of a program: every value is defined once and before its uses, and has the type that its op infers."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from shardwise.base.config import config
from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.program import Equation, Program
from shardwise.errors import ProgramError

_Pass = TypeVar("_Pass", bound=Callable[..., Any])


def verify(program: Program) -> Program:
    """Check the invariants of a program and of its nested programs. Each program is checked once.

    Returns:
        The program.

    Raises:
        ProgramError: if an invariant is broken; the message names the equation.
    """
    if "is_verified" in vars(program):
        return program
    defined = set(program.inputs)
    if len(defined) != len(program.inputs):
        raise ProgramError(f"{program.name}: an input is listed twice")
    for index, equation in enumerate(program.equations):
        if not defined.issuperset(equation.inputs):
            raise _error(program, index, "an operand is used before it is defined")
        if not defined.isdisjoint(equation.outputs):
            raise _error(program, index, "a result is defined twice")
        if wrong := type_error(equation):
            raise _error(program, index, wrong)
        for inner in equation.op.programs:
            verify(inner)
        defined.update(equation.outputs)
    if not defined.issuperset(program.outputs):
        raise ProgramError(f"{program.name}: an output is never defined")
    vars(program)["is_verified"] = True
    return program


def _error(program: Program, index: int, wrong: str) -> ProgramError:
    equation = program.equations[index]
    return ProgramError(f"{program.name}, equation {index} ({equation.op.name}, {equation.source}): {wrong}")


def verifies_result(function: _Pass) -> _Pass:
    """Decorate a pass so that the programs it returns are verified if the setting `verify_programs` is on."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        result = function(*args, **keywords)
        if config.verify_programs:
            for part in result if isinstance(result, tuple) else (result,):
                if isinstance(part, Program):
                    verify(part)
        return result

    return call  # type: ignore[return-value]


def type_error(equation: Equation) -> str:
    """Describe the error in the types of an equation's operands or results; empty if there is none."""
    try:
        types = result_types(equation.op, tuple(value.type for value in equation.inputs))
    except TypeError as error:
        return str(error)
    if types == tuple(value.type for value in equation.outputs):
        return ""
    return f"results are {[value.type for value in equation.outputs]}, the op infers {list(types)}"
