"""shard_map under its older name, with the keywords that it had there."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from shardwise.api.arguments import described
from shardwise.api.shard_map import Infer, Options, mapped
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, in_force
from shardwise.errors import ShardingError

__all__ = ["shard_map"]


def shard_map(
    f: Callable[..., Any] | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    in_specs: Any = Infer,
    out_specs: Any = Infer,
    check_rep: bool = True,
    auto: Iterable[str] = frozenset(),
) -> Any:
    """`f`, which each device runs on its own pieces, as a function of whole arrays: what `shardwise.shard_map` does.

    `check_rep` is `check_vma` there. `auto` are the axes of the mesh that `f` does not look after, where `axis_names`
    there are those that it does. Without `f`, a function that takes it: `@shard_map(mesh=mesh, in_specs=…, …)`.

    >>> from shardwise.experimental.shard_map import shard_map
    >>> mesh = jax.make_mesh((4,), ("i",))
    >>> shard_map(lambda x: lax.psum(x.sum(), "i"), mesh, P("i"), P())(jnp.arange(8))
    Array(28, dtype=int32)
    """
    if out_specs is Infer:
        raise TypeError("shard_map needs out_specs, which say how the pieces of results are put together")
    if f is None:
        options = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
        return partial(shard_map, **options, check_rep=check_rep, auto=auto)
    if not callable(f):
        raise TypeError(
            f"shard_map needs a function of the pieces, not {f!r}. To decorate one, name what else is given: "
            "@shard_map(mesh=mesh, in_specs=…, out_specs=…)."
        )
    return mapped(f, Options("shard_map", mesh, in_specs, out_specs, _looked_after(f, mesh, auto), check_rep))


def _looked_after(f: Callable[..., Any], mesh: Mesh | AbstractMesh | None, auto: Iterable[str]) -> frozenset[str]:
    """The axes of the mesh that are not automatic; none stands for all."""
    left = frozenset(auto)
    found = mesh if mesh is not None else in_force.mesh
    if not left or found is None:
        return frozenset()
    abstract = found.abstract
    for axis in left:
        if axis not in abstract.shape:
            raise ShardingError(f"shard_map of {described(f)}: auto has {axis!r}, but {abstract.unknown_axis(axis)}")
    if not (axes := frozenset(abstract.axis_names) - left):
        raise ShardingError(f"shard_map of {described(f)}: auto has all axes of the mesh {abstract}: jit does the rest")
    return axes
