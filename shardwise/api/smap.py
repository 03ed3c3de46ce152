"""smap: shard_map along one axis of the mesh in force, with axes of arrays in place of specs."""

from collections.abc import Callable
from functools import partial
from typing import Any

from shardwise.api.arguments import describe_function
from shardwise.api.axes import axes_to_specs, check_nonnegative_axes
from shardwise.api.shard_map import Infer, ShardMapOptions, map_shards

Function = Callable[..., Any]


def smap(f: Function | None = None, /, *, in_axes: Any = Infer, out_axes: Any, axis_name: str) -> Any:
    """`f`, which each device along one axis of the mesh runs on its own pieces, as a function of whole arrays.

    `in_axes` and `out_axes` (tree prefixes of the positional arguments and of the results) say which axis of an array
    is cut, counted from 0; None for one that all devices along the mesh axis have whole. The mesh is the one in force.
    Along its other axes, all is planned as it is outside; another smap inside may look after one of them.

    >>> total = jax.smap(lambda x: lax.psum(x, "i"), in_axes=0, out_axes=None, axis_name="i")
    >>> with jax.make_mesh((2,), ("i",)):
    ...     total(jnp.arange(6).reshape(2, 3))
    Array([[3, 5, 7]], dtype=int32)
    """
    if f is None:
        return partial(smap, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name)
    if not callable(f):
        raise TypeError(f"smap needs a function of the pieces, not {f!r}")
    what = f"smap of {describe_function(f)}"
    if not isinstance(axis_name, str):
        raise TypeError(f"{what}: axis_name is the name of one axis of the mesh, not {axis_name!r}")
    if in_axes is not Infer and not (in_axes is None or isinstance(in_axes, (int, tuple))):
        raise TypeError(
            f"{what}: in_axes is an integer, None, or a tuple with an entry for each positional argument, not "
            f"{in_axes!r}"
        )
    if in_axes is not Infer:
        check_nonnegative_axes(what, "in_axes", in_axes)
    check_nonnegative_axes(what, "out_axes", out_axes)
    in_specs = in_axes if in_axes is Infer else axes_to_specs(in_axes, axis_name)
    return map_shards(
        f, ShardMapOptions("smap", None, in_specs, axes_to_specs(out_axes, axis_name), frozenset({axis_name}), True)
    )
