"""`shard_map` and its collectives."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import lax
from shardwise.api.meshes.shard_map import shard_map
from shardwise.compiler.arrays.methods import Array


def _shard_map(
    *operands: Array,
    jaxpr: Any,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    check_vma: bool,
    newly_manual_axes: Any,
    **_: Any,
) -> Sequence[Array]:
    mapped: Any = shard_map(
        lambda *shards: tuple(jaxpr(*shards)),
        mesh=mesh,
        in_specs=tuple(in_specs),
        out_specs=tuple(out_specs),
        axis_names=newly_manual_axes,
        check_vma=check_vma,
    )
    return mapped(*operands)


def _reduce(function: Callable[..., Array]) -> Callable[..., Any]:
    def reduce(*operands: Array, axes: Any, axis_index_groups: Any = None, **_: Any) -> Any:
        results = tuple(function(x, axes, axis_index_groups=axis_index_groups) for x in operands)
        return results

    return reduce


def _single(function: Callable[..., Array]) -> Callable[..., Any]:
    return lambda x, *, axes, **_: function(x, axes)


def _all_gather(
    x: Array, *, all_gather_dimension: int, axis_name: Any, axis_index_groups: Any = None, axis_size: int, tiled: bool
) -> Array:
    return lax.all_gather(x, axis_name, axis_index_groups=axis_index_groups, axis=all_gather_dimension, tiled=tiled)


def _reduce_scatter(
    x: Array, *, axis_name: Any, scatter_dimension: int, axis_index_groups: Any, axis_size: int, tiled: bool
) -> Array:
    return lax.psum_scatter(
        x, axis_name, scatter_dimension=scatter_dimension, axis_index_groups=axis_index_groups, tiled=tiled
    )


def _all_to_all(
    x: Array, *, split_axis: int, concat_axis: int, axis_name: Any, axis_index_groups: Any, tiled: bool, **_: Any
) -> Array:
    return lax.all_to_all(x, axis_name, split_axis, concat_axis, axis_index_groups=axis_index_groups, tiled=tiled)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "axis_index": lambda *, axis_name: lax.axis_index(axis_name),
    "pmax": _reduce(lax.pmax),
    "pmin": _reduce(lax.pmin),
    "ppermute": lambda x, *, axis_name, perm: lax.ppermute(x, axis_name, perm),
    "psum": _reduce(lax.psum),
    "psum_invariant": _single(lax.psum),
    "pvary": _single(lax.pvary),
    "reduce_scatter": _reduce_scatter,
    "shard_map": _shard_map,
}
