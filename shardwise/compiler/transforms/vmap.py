"""vmap: batch a program. Every value has a batch dim, or None if it is unbatched.

Ops on unbatched values are applied unchanged, except ops that use the name of the batch axis.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import resolve_shardings
from shardwise.compiler.ir.op import BatchAxis, check_shardings
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.placement.reshard import reshard_to, shard_batch_dim
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.mesh import typed_axes
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.trace.tracer import Frame
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import for_each_equation
from shardwise.errors import ShardingTypeError


def vmap(
    program: Program, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    """Compute the outputs of a batched program, and their batch dims, in the open frame.

    Args:
        program: the program.
        axis: the batch axis.
        args: the arguments, with the batch dims.
        dims: the batch dim of each argument; None if it is unbatched.
    """
    env: dict[Value, tuple[Any, int | None]] = dict(zip(program.inputs, zip(args, dims, strict=True), strict=True))

    def emit(equation: Equation) -> None:
        operands = [env[value][0] for value in equation.inputs]
        in_dims = [env[value][1] for value in equation.inputs]
        results: Any
        out_dims: Any
        if all(dim is None for dim in in_dims) and (axis.name is None or axis.name not in equation.op.axis_names):
            results = equation.op(*operands)
            out_dims = None if equation.op.single else [None] * len(results)
        else:
            if axis.explicit and equation.op.programs:
                # the nested programs expect operands whose batch dim is sharded
                operands = [
                    x if dim is None else shard_batch_dim(x, dim, axis)
                    for x, dim in zip(operands, in_dims, strict=True)
                ]
            with resolve_shardings(axis.explicit is None or _was_resolved(equation)):
                results, out_dims = equation.op.vmap(axis, operands, in_dims)
        if equation.op.single:
            env[equation.outputs[0]] = (results, out_dims)
        else:
            env.update(zip(equation.outputs, zip(results, out_dims, strict=True), strict=True))

    for_each_equation(program.equations, emit)
    outputs = [env[value] for value in program.outputs]
    return [value for value, _ in outputs], [dim for _, dim in outputs]


def map_function(
    function: Callable[..., Sequence[Any]], axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], name: str
) -> tuple[list[Any], list[int | None]]:
    """Return the results of a function that is mapped over `dims` of its arguments, and their batch dims.

    Arguments with a dim of None are passed unchanged.
    """
    axis = replace(axis, explicit=batch_sharding(args, dims, axis.spmd))
    frame = Frame(name, stages_all=False, axes=None if axis.name is None else {axis.name: axis.size})
    with frame.open():
        inputs = [x if dim is None else frame.input(x.type.without((dim,))) for x, dim in zip(args, dims, strict=True)]
        program = frame.program([frame.lift(as_operand(x)) for x in function(*inputs)])
    del inputs
    frame.check_leaks()
    mapped = [(x, dim) for x, dim in zip(args, dims, strict=True) if dim is not None]
    in_dims: list[int | None] = [dim for _, dim in mapped]
    captured = frame.captured
    return vmap(program, axis, [x for x, _ in mapped] + captured, in_dims + [None] * len(captured))


def _was_resolved(equation: Equation) -> bool:
    """Return whether an equation was recorded with conflicting operands because `out_sharding` decides its result."""
    try:
        check_shardings(equation.op, tuple([value.type for value in equation.inputs]))
    except ShardingTypeError:
        return True
    return False


def batch_sharding(args: Sequence[Any], dims: Sequence[int | None], spmd: tuple[str, ...]) -> ExplicitSharding | None:
    """Return the sharding of the mapped dims along Explicit axes. `spmd` are the axes of `spmd_axis_name`."""
    shardings = {
        replace(x.type.explicit, dims=(x.type.explicit.dims[dim],), unreduced=(), reduced=()): str(x.type)
        for x, dim in zip(args, dims, strict=True)
        if dim is not None and x.type.explicit and x.type.explicit.dims[dim]
    }
    if len(shardings) > 1:
        raise ShardingTypeError(
            f"vmap: the mapped dims of {' and '.join(shardings.values())} are sharded differently: reshard one of "
            "them, `reshard(x, P(...))`, so that both have the same axes"
        )
    for sharding, text in shardings.items():
        if spmd and sharding is not None and sharding.dims[0] != typed_axes(spmd, sharding.mesh.shape):
            raise ShardingTypeError(
                f"vmap: spmd_axis_name is {spmd}, but the mapped dim of {text} is sharded along {sharding.dims[0]}. "
                "Leave out spmd_axis_name: the mapped dim keeps the sharding of its type."
            )
    return next(iter(shardings), None)


@memoized(maxsize=4096)
@verifies_result
def vmap_program(
    program: Program, axis: BatchAxis, dims: tuple[int | None, ...], everywhere: bool | tuple[bool, ...] = False
) -> tuple[Program, tuple[int | None, ...]]:
    """Return the batched program, and the batch dims of its outputs.

    Args:
        program: the program.
        axis: the batch axis.
        dims: the batch dim of each input; None if it is unbatched.
        everywhere: for each output (or for all), whether it is always batched, at dim 0.
    """
    out_dims: tuple[int | None, ...] = ()

    def body(*args: Operand) -> list[Any]:
        nonlocal out_dims
        outputs, dims_now = vmap(program, axis, args, dims)
        forced = everywhere if isinstance(everywhere, tuple) else (everywhere,) * len(outputs)
        for index, is_forced in enumerate(forced):
            if is_forced:
                outputs[index] = batch_dim_at(outputs[index], dims_now[index], 0, axis.size)
                dims_now[index] = 0
        out_dims = tuple(dims_now)
        if axis.explicit is None:
            return outputs
        return [
            x if dim is None else reshard_to(x, type.with_dim(dim, axis.size, axis.explicit).explicit)
            for x, dim, type in zip(outputs, dims_now, program.out_types, strict=True)
        ]

    types = [
        type if dim is None else type.with_dim(dim, axis.size, axis.explicit)
        for type, dim in zip(program.in_types, dims, strict=True)
    ]
    return rewrite(f"vmap_{program.name}", types, body), out_dims
