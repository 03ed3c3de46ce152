"""keys: a program in which every array of keys is the array of their words, with a last dim of two.

An op that only moves keys moves their words alike: it is mapped over that dim, by its own rule for vmap.
"""

from typing import Any

from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.random.key_data import KeyData, WrapKeyData
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceOr
from shardwise.compiler.ops.shape.movement import move_dim
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.replay import for_each_equation

_WORDS = BatchAxis(2)


@verifies_result
def lower_keys(program: Program) -> Program:
    """A program without calls, over the words of keys; the same program where there are none."""
    if not _has_keys(program):
        return program
    env: dict[Value, Any] = {}

    def emit(equation: Equation) -> None:
        operands = [env[value] for value in equation.inputs]
        results = _emitted(equation, operands)
        env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

    def body(*args: Any) -> list[Any]:
        env.update(zip(program.inputs, args, strict=True))
        for_each_equation(program.equations, emit)
        return [env[value] for value in program.outputs]

    return rewrite(program.name, [type.physical for type in program.in_types], body)


def _has_keys(program: Program) -> bool:
    """Whether keys come in or are made, in the programs that ops hold too."""
    made = (value for equation in program.walk() for value in (*equation.inputs, *equation.outputs))
    return any(is_key(value.type.dtype) for value in (*program.inputs, *made))


def _emitted(equation: Equation, operands: list[Any]) -> Any:
    """The results of an equation, of the words of its operands."""
    op = equation.op
    if isinstance(op, Control):
        return op.map_programs(lower_keys)(*operands)
    if isinstance(op, (KeyData, WrapKeyData)):
        return operands[0]
    dims = [value.type.ndim if is_key(value.type.dtype) else None for value in equation.inputs]
    if all(dim is None for dim in dims):
        return op(*operands)
    found, places = op.vmap(_WORDS, operands, dims)
    if isinstance(op, Compare):  # keys are equal where both words are
        return (ReduceAnd if op.direction == "EQ" else ReduceOr)((places,))(found)
    if op.single:
        return move_dim(found, places, found.type.ndim - 1)
    return [_as_before(value, x, place) for value, x, place in zip(equation.outputs, found, places, strict=True)]


def _as_before(value: Value, found: Any, place: int | None) -> Any:
    """One of several results: keys by their words; of others, which no words went into, each is the same for both."""
    if place is None:
        return found
    if is_key(value.type.dtype):
        return move_dim(found, place, found.type.ndim - 1)
    return found[(slice(None),) * place + (0,)]
