"""vmap: a function over one more dim of its arguments."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from shardwise import tree
from shardwise.api.arguments import argument_names, array_leaves, described, function_name, misfit
from shardwise.api.boundary import boundary
from shardwise.api.flat import Flat
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ops.methods import as_operand
from shardwise.compiler.ops.shape import batch_at
from shardwise.compiler.transforms.vmap import map_function


def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """`function` mapped over a dim of each argument: `in_axes` says which (a tree prefix; None: not mapped).

    The results have the new dim at `out_axes` (a tree prefix of the results).
    """

    @wraps(function)
    @boundary
    def call(*args: Any, **keywords: Any) -> Any:
        leaves, structure = array_leaves(function, args, keywords)
        names = argument_names(function, args, keywords)
        operands = [as_operand(leaf) for leaf in leaves]
        dims = _in_dims(function, in_axes, args, keywords, operands, names)
        size = _size(function, operands, dims, names)
        flat = Flat(function, structure)
        outputs, out_dims = map_function(flat, BatchAxis(size), operands, dims, function_name(function))
        wanted = _out_dims(function, out_axes, flat.results, outputs, out_dims)
        return flat.results.unflatten(
            [
                x if target is None else batch_at(x, dim, target, size)
                for x, dim, target in zip(outputs, out_dims, wanted, strict=True)
            ]
        )

    return call


def _in_dims(
    function: Callable[..., Any], in_axes: Any, args: Any, keywords: Any, operands: list[Any], names: list[str]
) -> list[int | None]:
    prefix = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    try:
        given = tree.broadcast_prefix(prefix, args, is_leaf=lambda x: x is None)
    except tree.TreeMismatch as mismatch:
        text = misfit(mismatch, "in_axes")
        raise ValueError(f"vmap of {described(function)}: in_axes do not fit.\n  {text}") from None
    given += [0] * len(tree.leaves(keywords))
    dims: list[int | None] = []
    for x, axis, name in zip(operands, given, names, strict=True):
        if axis is not None and not -x.type.ndim <= axis < x.type.ndim:
            raise ValueError(
                f"vmap of {described(function)}: in_axes gives axis {axis} for {name}, which is {x.type} "
                f"and has rank {x.type.ndim}"
            )
        dims.append(None if axis is None else axis % x.type.ndim)
    return dims


def _size(function: Callable[..., Any], operands: list[Any], dims: list[int | None], names: list[str]) -> int:
    sizes = {name: x.type.shape[dim] for x, dim, name in zip(operands, dims, names, strict=True) if dim is not None}
    if not sizes:
        raise ValueError(f"vmap of {described(function)}: in_axes maps no argument; at least one axis must not be None")
    if len(set(sizes.values())) > 1:
        lines = "".join(f"\n  {name} has {size}" for name, size in sizes.items())
        raise ValueError(f"vmap of {described(function)}: the mapped axes must have one size:{lines}")
    return int(next(iter(sizes.values())))


def _out_dims(
    function: Callable[..., Any], out_axes: Any, structure: tree.Structure, outputs: list[Any], dims: list[int | None]
) -> list[int | None]:
    results = structure.unflatten(list(range(len(outputs))))
    try:
        given = tree.broadcast_prefix(out_axes, results, is_leaf=lambda x: x is None)
    except tree.TreeMismatch as mismatch:
        text = misfit(mismatch, "out_axes")
        raise ValueError(f"vmap of {described(function)}: out_axes do not fit.\n  {text}") from None
    wanted: list[int | None] = []
    for number, (x, dim, axis) in enumerate(zip(outputs, dims, given, strict=True)):
        rank = x.type.ndim + (dim is None)
        if axis is None:
            if dim is not None:
                raise ValueError(
                    f"vmap of {described(function)}: out_axes is None for result {number}, but it depends on a mapped "
                    "argument: give it an axis"
                )
        elif not -rank <= axis < rank:
            raise ValueError(f"vmap of {described(function)}: out_axes {axis} for result {number} of rank {rank}")
        wanted.append(None if axis is None else axis % rank)
    return wanted
