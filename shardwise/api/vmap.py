"""vmap: a function over one more dim of its arguments."""

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any

from shardwise import tree
from shardwise.api.arguments import argument_names, check_function, describe_function, function_name
from shardwise.api.axes import Axes, argument_axes, check_axes, common_size, mapped_dim, output_axes
from shardwise.api.flatten import FlatFunction
from shardwise.compiler.arrays.methods import is_array_like
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.transforms.vmap import map_function
from shardwise.execute.traceback_filter import filter_traceback

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

    >>> jax.vmap(jnp.dot, in_axes=(0, None))(jnp.eye(3), jnp.arange(3.0))
    Array([0., 1., 2.], dtype=float32)
    """
    check_function("vmap", fun)
    what = f"vmap of {describe_function(fun)}"
    check_axes(what, in_axes, axis_name, axis_size)
    spmd = _mesh_axes(what, spmd_axis_name)

    @wraps(fun)
    @filter_traceback
    def call(*args: Any, **keywords: Any) -> Any:
        leaves, structure = tree.flatten((args, keywords))
        names = argument_names(fun, args, keywords)
        operands, dims = _mapped(what, argument_axes(what, in_axes, args, keywords), leaves, names)
        mapped = zip(names, operands, dims, strict=True)
        size = common_size(what, axis_size, {name: x.type.shape[dim] for name, x, dim in mapped if dim is not None})
        flat = FlatFunction(fun, structure)
        axis = BatchAxis(size, axis_name, spmd)
        outputs, out_dims = map_function(flat, axis, operands, dims, function_name(fun))
        wanted = _out_dims(what, output_axes(what, out_axes, flat.out_tree), outputs, out_dims)
        return flat.out_tree.unflatten(
            [
                x if target is None else batch_dim_at(x, dim, target, size)
                for x, dim, target in zip(outputs, out_dims, wanted, strict=True)
            ]
        )

    return call


def _mesh_axes(what: str, spmd_axis_name: Any) -> tuple[str, ...]:
    axes = () if spmd_axis_name is None else (spmd_axis_name,) if isinstance(spmd_axis_name, str) else spmd_axis_name
    if not isinstance(axes, tuple) or any(not isinstance(axis, str) for axis in axes) or len(set(axes)) != len(axes):
        raise TypeError(
            f"{what}: spmd_axis_name must be the name of a mesh axis, or a tuple of different ones, "
            f"not {spmd_axis_name!r}"
        )
    return axes


def _mapped(what: str, given: Axes, leaves: Sequence[Any], names: Sequence[str]) -> tuple[list[Any], Axes]:
    """The leaves, with those that are mapped as operands, and the dim over which each is."""
    operands: list[Any] = []
    dims: Axes = []
    for leaf, axis, name in zip(leaves, given, names, strict=True):
        if axis is None:
            operands.append(leaf)
            dims.append(None)
            continue
        if not is_array_like(leaf):
            raise TypeError(
                f"{what}: {name} is {leaf!r} of type {type(leaf).__name__}, which has no axis "
                f"{axis}: only arrays can be mapped. Give it None in in_axes, and it is handed on as it is."
            )
        x = as_operand(leaf)
        operands.append(x)
        dims.append(mapped_dim(what, axis, x.type, name))
    return operands, dims


def _out_dims(what: str, given: Axes, outputs: Sequence[Any], dims: Sequence[int | None]) -> Axes:
    """The dim of each result that is to be the new one."""
    wanted: Axes = []
    for number, (x, dim, axis) in enumerate(zip(outputs, dims, given, strict=True)):
        rank = x.type.ndim + (dim is None)
        if axis is None:
            if dim is not None:
                raise ValueError(
                    f"{what}: out_axes is None for result {number}, but it depends on a mapped argument: give it an "
                    "axis"
                )
        elif not -rank <= axis < rank:
            raise ValueError(f"{what}: out_axes {axis} for result {number} of rank {rank}")
        wanted.append(None if axis is None else axis % rank)
    return wanted
