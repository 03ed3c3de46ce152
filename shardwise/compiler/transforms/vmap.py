"""vmap: a program over one more dim. Every value is a pair: the value, and its batch dim or None where it has none.

Ops on values without a batch dim stay as they are, save those that compute along the axis by its name.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.trace.tracer import Frame
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import for_each_equation


def vmap(
    program: Program, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    """The program's outputs and their batch dims, played into the open frame."""
    env: dict[Value, tuple[Any, int | None]] = dict(zip(program.inputs, zip(args, dims, strict=True), strict=True))

    def emit(equation: Equation) -> None:
        operands = [env[value][0] for value in equation.inputs]
        batched = [env[value][1] for value in equation.inputs]
        results: Any
        places: Any
        if all(dim is None for dim in batched) and (axis.name is None or axis.name not in equation.op.axis_names):
            results = equation.op(*operands)
            places = None if equation.op.single else [None] * len(results)
        else:
            results, places = equation.op.vmap(axis, operands, batched)
        if equation.op.single:
            env[equation.outputs[0]] = (results, places)
        else:
            env.update(zip(equation.outputs, zip(results, places, strict=True), strict=True))

    for_each_equation(program.equations, emit)
    outputs = [env[value] for value in program.outputs]
    return [value for value, _ in outputs], [dim for _, dim in outputs]


def map_function(
    function: Callable[..., Sequence[Any]], axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], name: str
) -> tuple[list[Any], list[int | None]]:
    """A function of arrays mapped over `dims` of its arguments (None: not mapped, and handed on as they are)."""
    frame = Frame(name, stages_all=False, axes=None if axis.name is None else {axis.name: axis.size})
    with frame.open():
        given = [x if dim is None else frame.input(x.type.without((dim,))) for x, dim in zip(args, dims, strict=True)]
        program = frame.program([frame.lift(as_operand(x)) for x in function(*given)])
    mapped = [(x, dim) for x, dim in zip(args, dims, strict=True) if dim is not None]
    places: list[int | None] = [dim for _, dim in mapped]
    captured = frame.captured
    return vmap(program, axis, [x for x, _ in mapped] + captured, places + [None] * len(captured))


@memoized(maxsize=4096)
@verifies_result
def vmap_program(
    program: Program, axis: BatchAxis, dims: tuple[int | None, ...], everywhere: bool | tuple[bool, ...] = False
) -> tuple[Program, tuple[int | None, ...]]:
    """The batched Program, and the batch dims of its outputs; outputs marked by `everywhere` have one, at dim 0."""
    out_dims: tuple[int | None, ...] = ()

    def body(*args: Any) -> list[Any]:
        nonlocal out_dims
        outputs, places = vmap(program, axis, args, dims)
        wanted = everywhere if isinstance(everywhere, tuple) else (everywhere,) * len(outputs)
        for number, is_wanted in enumerate(wanted):
            if is_wanted:
                outputs[number] = batch_dim_at(outputs[number], places[number], 0, axis.size)
                places[number] = 0
        out_dims = tuple(places)
        return outputs

    types = [
        type if dim is None else type.with_shape((*type.shape[:dim], axis.size, *type.shape[dim:]))
        for type, dim in zip(program.in_types, dims, strict=True)
    ]
    return rewrite(f"vmap_{program.name}", types, body), out_dims
