"""vmap: a function over one more dim of its arguments."""

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any

from shardwise import tree
from shardwise.api.arguments import argument_names, described, function_name, misfit
from shardwise.api.boundary import boundary
from shardwise.api.flat import Flat
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ops.methods import is_array_like
from shardwise.compiler.ops.operands import as_operand
from shardwise.compiler.ops.shape import batch_at
from shardwise.compiler.transforms.vmap import map_function

Function = Callable[..., Any]


def vmap(
    fun: Function,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable = None,
    axis_size: int | None = None,
    spmd_axis_name: str | tuple[str, ...] | None = None,
) -> Function:
    """`fun` mapped over a dim of each argument: `in_axes` says which (a tree prefix of the positional arguments).

    An argument whose entry is None is not mapped: it may be any Python object, and `fun` gets it as it is. Keyword
    arguments are mapped over their first dim. The results have the new dim at `out_axes` (a tree prefix of the
    results; None for what is the same for all).

    `axis_name` is a name by which `lax.psum`, `lax.axis_index` and their kin in `fun` compute along the new dim.
    `axis_size` is its size, which is needed where no argument is mapped. `spmd_axis_name` are the mesh axes over which
    `with_sharding_constraint` in `fun` lays the new dim; without it, the planner chooses.
    """
    if not callable(fun):
        raise TypeError(f"vmap needs a function, not {fun!r}")
    _check_axes(fun, in_axes, axis_name, axis_size)
    spmd = _mesh_axes(fun, spmd_axis_name)

    @wraps(fun)
    @boundary
    def call(*args: Any, **keywords: Any) -> Any:
        leaves, structure = tree.flatten((args, keywords))
        names = argument_names(fun, args, keywords)
        operands, dims = _mapped(fun, _given(fun, in_axes, args, keywords), leaves, names)
        size = _size(fun, axis_size, operands, dims, names)
        flat = Flat(fun, structure)
        axis = BatchAxis(size, axis_name, spmd)
        outputs, out_dims = map_function(flat, axis, operands, dims, function_name(fun))
        wanted = _out_dims(fun, out_axes, flat.results, outputs, out_dims)
        return flat.results.unflatten(
            [
                x if target is None else batch_at(x, dim, target, size)
                for x, dim, target in zip(outputs, out_dims, wanted, strict=True)
            ]
        )

    return call


def _check_axes(fun: Function, in_axes: Any, axis_name: Any, axis_size: Any) -> None:
    is_prefix = in_axes is None or isinstance(in_axes, (int, tuple, list))
    if not is_prefix or any(type(axis) is not int for axis in tree.leaves(in_axes)):
        raise TypeError(
            f"vmap of {described(fun)}: in_axes must be an integer, None, or a tuple with an entry for each positional "
            f"argument (integers and None, in trees), not {in_axes!r}"
        )
    if axis_size is not None and (type(axis_size) is not int or axis_size < 0):
        raise TypeError(f"vmap of {described(fun)}: axis_size must be an integer of 0 or more, not {axis_size!r}")
    try:
        hash(axis_name)
    except TypeError:
        raise TypeError(f"vmap of {described(fun)}: axis_name must be hashable, not {axis_name!r}") from None


def _mesh_axes(fun: Function, spmd_axis_name: Any) -> tuple[str, ...]:
    axes = () if spmd_axis_name is None else (spmd_axis_name,) if isinstance(spmd_axis_name, str) else spmd_axis_name
    if not isinstance(axes, tuple) or any(not isinstance(axis, str) for axis in axes) or len(set(axes)) != len(axes):
        raise TypeError(
            f"vmap of {described(fun)}: spmd_axis_name must be the name of a mesh axis, or a tuple of different ones, "
            f"not {spmd_axis_name!r}"
        )
    return axes


def _given(fun: Function, in_axes: Any, args: Any, keywords: Any) -> list[int | None]:
    """The axis that is asked for each leaf of the arguments."""
    prefix = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    try:
        given = tree.broadcast_prefix(prefix, args, is_leaf=lambda x: x is None)
    except tree.TreeMismatch as mismatch:
        text = misfit(mismatch, "in_axes")
        raise ValueError(f"vmap of {described(fun)}: in_axes do not fit.\n  {text}") from None
    return [*given, *[0] * len(tree.leaves(keywords))]


def _mapped(
    fun: Function, given: Sequence[int | None], leaves: Sequence[Any], names: Sequence[str]
) -> tuple[list[Any], list[int | None]]:
    """The leaves, with those that are mapped as operands, and the dim over which each is."""
    operands: list[Any] = []
    dims: list[int | None] = []
    for leaf, axis, name in zip(leaves, given, names, strict=True):
        if axis is None:
            operands.append(leaf)
            dims.append(None)
            continue
        if not is_array_like(leaf):
            raise TypeError(
                f"vmap of {described(fun)}: {name} is {leaf!r} of type {type(leaf).__name__}, which has no axis "
                f"{axis}: only arrays can be mapped. Give it None in in_axes, and it is handed on as it is."
            )
        x = as_operand(leaf)
        rank = x.type.ndim
        if not -rank <= axis < rank:
            raise ValueError(
                f"vmap of {described(fun)}: in_axes gives axis {axis} for {name}, which is {x.type} and has rank {rank}"
            )
        operands.append(x)
        dims.append(axis % rank)
    return operands, dims


def _size(
    fun: Function, axis_size: int | None, operands: Sequence[Any], dims: Sequence[int | None], names: Sequence[str]
) -> int:
    sizes = {f"{name} has": x.type.shape[d] for x, d, name in zip(operands, dims, names, strict=True) if d is not None}
    if axis_size is not None:
        sizes["axis_size is"] = axis_size
    if not sizes:
        raise ValueError(
            f"vmap of {described(fun)}: in_axes maps no argument; at least one axis must not be None, or axis_size "
            "must say how large the new dim is"
        )
    if len(set(sizes.values())) > 1:
        lines = "".join(f"\n  {what} {size}" for what, size in sizes.items())
        raise ValueError(f"vmap of {described(fun)}: the mapped axes must have one size:{lines}")
    return int(next(iter(sizes.values())))


def _out_dims(
    fun: Function, out_axes: Any, structure: tree.Structure, outputs: list[Any], dims: list[int | None]
) -> list[int | None]:
    results = structure.unflatten(list(range(len(outputs))))
    try:
        given = tree.broadcast_prefix(out_axes, results, is_leaf=lambda x: x is None)
    except tree.TreeMismatch as mismatch:
        text = misfit(mismatch, "out_axes")
        raise ValueError(f"vmap of {described(fun)}: out_axes do not fit.\n  {text}") from None
    wanted: list[int | None] = []
    for number, (x, dim, axis) in enumerate(zip(outputs, dims, given, strict=True)):
        rank = x.type.ndim + (dim is None)
        if axis is None:
            if dim is not None:
                raise ValueError(
                    f"vmap of {described(fun)}: out_axes is None for result {number}, but it depends on a mapped "
                    "argument: give it an axis"
                )
        elif not -rank <= axis < rank:
            raise ValueError(f"vmap of {described(fun)}: out_axes {axis} for result {number} of rank {rank}")
        wanted.append(None if axis is None else axis % rank)
    return wanted
