"""build: stage a function of arrays into a Program, with the outer values that it closes over."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.methods import as_operand
from shardwise.compiler.trace.tracer import Frame


def build(function: Callable[..., Sequence[Any]], types: Sequence[ArrayType], name: str) -> tuple[Program, list[Any]]:
    """`function` over arguments of these types, as a Program, and the outer values that are its further inputs."""
    frame = Frame(name, absorbs=True)
    with frame.open():
        outputs = [frame.lift(as_operand(x)) for x in function(*(frame.input(type) for type in types))]
    return frame.program(outputs), frame.captured


def rewrite(name: str, types: Sequence[ArrayType], body: Callable[..., Sequence[Any]]) -> Program:
    """A Program made by a transformation: `body` closes over nothing and sees no other frame."""
    frame = Frame(name, absorbs=True)
    with frame.open(over=()):
        outputs = [frame.lift(x) for x in body(*(frame.input(type) for type in types))]
    program = frame.program(outputs)
    assert not frame.captured, f"{name}: a transformation captured outer values"
    return program
