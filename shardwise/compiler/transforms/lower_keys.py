"""lower_keys: replace arrays of PRNG keys by arrays of their u32 words, which have a trailing dim of words.

An op on keys only moves or compares them. It is batched over the dim of words, by its own vmap rule.
"""

from typing import Any

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import is_key, key_words
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.random.key_data import KeyData, WrapKeyData
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceOr
from shardwise.compiler.ops.shape.movement import move_dim
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.replay import for_each_equation


@verifies_result
def lower_keys(program: Program) -> Program:
    """Return a program on the words of keys; `program` itself if it has no keys. `program` has no calls."""
    if not _has_keys(program):
        return program
    env: dict[Value, Any] = {}

    def emit(equation: Equation) -> None:
        operands = [env[value] for value in equation.inputs]
        results = _apply_to_words(equation, operands)
        env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

    def body(*args: Operand) -> list[Any]:
        env.update(zip(program.inputs, args, strict=True))
        for_each_equation(program.equations, emit)
        return [env[value] for value in program.outputs]

    return rewrite(program.name, [type.physical for type in program.in_types], body)


def _has_keys(program: Program) -> bool:
    """Return whether a value of the program, or of a program that an op holds, is an array of keys."""
    values = (value for equation in program.walk() for value in (*equation.inputs, *equation.outputs))
    return any(is_key(value.type.dtype) for value in (*program.inputs, *values))


def _apply_to_words(equation: Equation, operands: list[Any]) -> Any:
    """Apply an equation to the words of its operands, and return its results."""
    op = equation.op
    if isinstance(op, Control):
        return op.map_programs(lower_keys)(*operands)
    if isinstance(op, (KeyData, WrapKeyData)):
        return operands[0]
    dims = [value.type.ndim if is_key(value.type.dtype) else None for value in equation.inputs]
    if all(dim is None for dim in dims):
        return op(*operands)
    words = next(key_words(value.type.dtype) for value in equation.inputs if is_key(value.type.dtype))
    results, out_dims = op.vmap(BatchAxis(words), operands, dims)
    if isinstance(op, Compare):  # keys are equal if all their words are equal
        return (ReduceAnd if op.direction == "EQ" else ReduceOr)((out_dims,))(results)
    if op.single:
        return move_dim(results, out_dims, results.type.ndim - 1)
    return [_unbatch(value, x, dim) for value, x, dim in zip(equation.outputs, results, out_dims, strict=True)]


def _unbatch(value: Value, batched: Array, dim: int | None) -> Any:
    """Remove the batch dim of a result: move it last for keys, where it is the dim of words, and drop it for others.

    The other results are equal for all words.
    """
    if dim is None:
        return batched
    if is_key(value.type.dtype):
        return move_dim(batched, dim, batched.type.ndim - 1)
    return batched[(slice(None),) * dim + (0,)]
