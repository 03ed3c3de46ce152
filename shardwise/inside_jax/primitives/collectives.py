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


def _reduce(along_axes: Callable[..., Array], along_dims: Callable[..., Array]) -> Callable[..., Array]:
    """Return the primitive of a reduction over named axes and, where JAX's `vmap` bound the name, over dims."""

    def reduce(x: Array, *, axes: Sequence[Any], axis_index_groups: Sequence[Sequence[int]] | None = None) -> Array:
        dims = [axis for axis in axes if isinstance(axis, int)]
        names = tuple(axis for axis in axes if not isinstance(axis, int))
        reduced = along_dims(x, dims) if dims else x
        return along_axes(reduced, names, axis_index_groups=axis_index_groups) if names else reduced

    return reduce


def _cast(to: str) -> Callable[..., Array]:
    return lambda x, *, axes: lax.pcast(x, axes, to=to)


def _all_gather(to: str) -> Callable[..., Array]:
    def all_gather(
        x: Array,
        *,
        all_gather_dimension: int,
        axis_name: Any,
        axis_index_groups: Any = None,
        axis_size: int,
        tiled: bool,
    ) -> Array:
        groups = {} if axis_index_groups is None else {"axis_index_groups": axis_index_groups}
        return lax.all_gather(x, axis_name, axis=all_gather_dimension, tiled=tiled, to=to, **groups)

    return all_gather


def _reduce_scatter(
    x: Array, *, axis_name: Any, scatter_dimension: int, axis_index_groups: Any = None, axis_size: int, tiled: bool
) -> Array:
    return lax.psum_scatter(
        x, axis_name, scatter_dimension=scatter_dimension, axis_index_groups=axis_index_groups, tiled=tiled
    )


def _all_to_all(
    x: Array, *, split_axis: int, concat_axis: int, axis_name: Any, axis_index_groups: Any, tiled: bool, **_: Any
) -> Array:
    return lax.all_to_all(x, axis_name, split_axis, concat_axis, axis_index_groups=axis_index_groups, tiled=tiled)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "all_gather": _all_gather("varying"),
    "all_gather_invariant": _all_gather("invarying"),
    "all_gather_reduced": _all_gather("reduced"),
    "all_to_all": _all_to_all,
    "axis_index": lambda *, axis_name: lax.axis_index(axis_name),
    "pbroadcast": lambda x, *, axis_name, source: lax.pbroadcast(x, axis_name, source),
    "pmax": _reduce(lax.pmax, lax.reduce_max),
    "pmin": _reduce(lax.pmin, lax.reduce_min),
    "ppermute": lambda x, *, axis_name, perm: lax.ppermute(x, axis_name, perm),
    "preduced": _cast("reduced"),
    "psum": _reduce(lax.psum, lax.reduce_sum),
    "psum_invariant": _reduce(lax.psum, lax.reduce_sum),
    "pvary": _cast("varying"),
    "ragged_all_to_all": lax.ragged_all_to_all,
    "reduce_scatter": _reduce_scatter,
    "reduced_vary_cast": _cast("varying"),
    "reduced_vary_cast_p": _cast("varying"),  # the name before JAX 0.12
    "shard_map": _shard_map,
    "unreduced_psum": _reduce(lax.psum, lax.reduce_sum),
    "unreduced_reduce_scatter": _reduce_scatter,
    "vary_unreduced_cast": _cast("unreduced"),
    "vary_unreduced_cast_p": _cast("unreduced"),  # the name before JAX 0.12
}
