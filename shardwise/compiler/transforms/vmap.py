"""vmap: a program over one more dim. Every value is a pair: the value, and its batch dim or None where it has none."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.replay import each


def vmap(
    program: Program, size: int, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    """The program's outputs and their batch dims, played into the open frame."""
    env: dict[Value, tuple[Any, int | None]] = dict(zip(program.inputs, zip(args, dims, strict=True), strict=True))

    def emit(equation: Equation) -> None:
        operands = [env[value][0] for value in equation.inputs]
        batched = [env[value][1] for value in equation.inputs]
        results: Any
        places: Any
        if all(dim is None for dim in batched):
            results = equation.op(*operands)
            places = None if equation.op.single else [None] * len(results)
        else:
            results, places = equation.op.vmap(size, operands, batched)
        if equation.op.single:
            env[equation.outputs[0]] = (results, places)
        else:
            env.update(zip(equation.outputs, zip(results, places, strict=True), strict=True))

    each(program.equations, emit)
    outputs = [env[value] for value in program.outputs]
    return [value for value, _ in outputs], [dim for _, dim in outputs]


@lru_cache(maxsize=4096)
def vmap_program(program: Program, size: int, dims: tuple[int | None, ...]) -> tuple[Program, tuple[int | None, ...]]:
    """The batched Program, and the batch dims of its outputs."""
    out_dims: tuple[int | None, ...] = ()

    def body(*args: Any) -> list[Any]:
        nonlocal out_dims
        outputs, places = vmap(program, size, args, dims)
        out_dims = tuple(places)
        return outputs

    types = [
        type if dim is None else type.with_shape((*type.shape[:dim], size, *type.shape[dim:]))
        for type, dim in zip(program.in_types, dims, strict=True)
    ]
    return rewrite(f"vmap_{program.name}", types, body), out_dims
