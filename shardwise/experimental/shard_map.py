"""shard_map under its former name, with its former parameters `check_rep` and `auto`."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from shardwise.api.arguments import describe_function
from shardwise.api.meshes.shard_map import Infer, ShardMapOptions, map_shards
from shardwise.base.lazy import publish
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, mesh_context
from shardwise.errors import ShardingError


def shard_map(
    f: Callable[..., Any] | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    in_specs: object = Infer,
    out_specs: object = Infer,
    check_rep: bool = True,
    auto: Iterable[str] = frozenset(),
) -> Any:
    """Map a function over the shards of arrays: `shardwise.shard_map` with its former parameters.

    Without `f`, the result is a decorator: `@shard_map(mesh=mesh, in_specs=…, out_specs=…)`.

    Args:
        f: the function that each device runs on its shards.
        mesh: the mesh; by default the mesh in force.
        in_specs: a pytree prefix of the arguments, with the PartitionSpec of each.
        out_specs: a pytree prefix of the results, with the PartitionSpec of each.
        check_rep: whether to check that results are replicated along the mesh axes that `out_specs` does not mention;
            called `check_vma` in `shardwise.shard_map`.
        auto: the mesh axes that stay automatic: the complement of `axis_names` in `shardwise.shard_map`.

    Returns:
        A function of global arrays, or a decorator if `f` is None.

    Raises:
        TypeError: if `out_specs` is missing, or if `f` is not callable.
        ShardingError: if `auto` names an axis that the mesh does not have, or all of its axes.

    Example:
        >>> from shardwise.experimental.shard_map import shard_map
        >>> mesh = jax.make_mesh((4,), ("i",))
        >>> shard_map(lambda x: lax.psum(x.sum(), "i"), mesh, P("i"), P())(jnp.arange(8))
        Array(28, dtype=int32)
    """
    if out_specs is Infer:
        raise TypeError("shard_map: out_specs is missing; it defines how the shards of the results are concatenated")
    if f is None:
        return partial(shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=check_rep, auto=auto)
    if not callable(f) or isinstance(f, Mesh | AbstractMesh):  # a mesh is callable: it can decorate functions
        raise TypeError(
            f"shard_map: f must be a function of shards, not {f!r}. To use shard_map as a decorator, pass keywords: "
            "@shard_map(mesh=mesh, in_specs=…, out_specs=…)."
        )
    return map_shards(
        f, ShardMapOptions("shard_map", mesh, in_specs, out_specs, _manual_axes(f, mesh, auto), check_rep)
    )


def _manual_axes(f: Callable[..., Any], mesh: Mesh | AbstractMesh | None, auto: Iterable[str]) -> frozenset[str]:
    """Return the mesh axes that are manual; the empty set if all are."""
    auto_axes = frozenset(auto)
    used_mesh = mesh if mesh is not None else mesh_context.mesh
    if not auto_axes or used_mesh is None:
        return frozenset()
    abstract = used_mesh.abstract
    for axis in auto_axes:
        if axis not in abstract.shape:
            raise ShardingError(
                f"shard_map of {describe_function(f)}: auto has {axis!r}, but {abstract.unknown_axis_message(axis)}"
            )
    if not (manual_axes := frozenset(abstract.axis_names) - auto_axes):
        raise ShardingError(
            f"shard_map of {describe_function(f)}: auto has all axes of the mesh {abstract}: without manual axes, use "
            "jit"
        )
    return manual_axes


publish(__name__)
