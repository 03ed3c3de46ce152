"""smap: shard_map along one axis of the current mesh, with axes of arrays in place of PartitionSpecs."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from shardwise.api.arguments import check_function, describe_function
from shardwise.api.axes import axes_to_specs, check_nonnegative_axes
from shardwise.api.meshes.shard_map import Infer, ShardMapOptions, map_shards

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)


@overload
def smap(f: _F, /, *, in_axes: object = Infer, out_axes: object, axis_name: str) -> _F: ...


@overload
def smap(f: None = None, /, *, in_axes: object = Infer, out_axes: object, axis_name: str) -> Callable[[_F], _F]: ...


def smap(f: Function | None = None, /, *, in_axes: object = Infer, out_axes: object, axis_name: str) -> Any:
    """Map a function over the shards along one axis of the current mesh.

    Along the other mesh axes the planner shards arrays, as it does outside. `smap` can be nested for different axes.

    Args:
        f: the function of shards. Without it, the result is a decorator.
        in_axes: the axis of each argument that is sharded, a nonnegative integer, as a tree prefix of the positional
            arguments; None for arguments that are replicated. By default, as the arguments are sharded.
        out_axes: the axis of each result along which its shards are concatenated, as a tree prefix of the results;
            None for results that are replicated.
        axis_name: the name of the mesh axis.

    Returns:
        A function of unsharded arrays, which accepts positional arguments only.

    Raises:
        TypeError: if `f` is not callable, if `axis_name` is not a string, or if `in_axes` has a wrong type.
        ValueError: if an axis is not a nonnegative integer or None; when called, if no mesh is set, if `in_axes` or
            `out_axes` is not a tree prefix, or if the size of a dim is not divisible by the number of shards.
        ShardingError: when called, if the mesh has no such axis, if the axis is already manual in an enclosing `smap`,
            or if a result with None in `out_axes` may vary along it.

    Example:
        >>> total = jax.smap(lambda x: lax.psum(x, "i"), in_axes=0, out_axes=None, axis_name="i")
        >>> with jax.make_mesh((2,), ("i",)):
        ...     total(jnp.arange(6).reshape(2, 3))
        Array([[3, 5, 7]], dtype=int32)
    """
    if f is None:
        return partial(smap, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name)
    check_function("smap", f)
    label = f"smap of {describe_function(f)}"
    if not isinstance(axis_name, str):
        raise TypeError(f"{label}: axis_name must be the name of one mesh axis, not {axis_name!r}")
    if in_axes is not Infer and not (in_axes is None or isinstance(in_axes, (int, tuple))):
        raise TypeError(
            f"{label}: in_axes must be an integer, None, or a tuple with one entry per positional argument, not "
            f"{in_axes!r}"
        )
    if in_axes is not Infer:
        check_nonnegative_axes(label, "in_axes", in_axes)
    check_nonnegative_axes(label, "out_axes", out_axes)
    in_specs = in_axes if in_axes is Infer else axes_to_specs(in_axes, axis_name)
    return map_shards(
        f, ShardMapOptions("smap", None, in_specs, axes_to_specs(out_axes, axis_name), frozenset({axis_name}), True)
    )
