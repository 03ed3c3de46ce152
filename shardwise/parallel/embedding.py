"""Lookup in an embedding table whose vocabulary is sharded: each device looks up the rows that it has."""

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError
from shardwise.parallel.axis_region import MeshAxes, axis_region
from shardwise.typing import ArrayLike

_NAME = "embedding_lookup"


def embedding_lookup(
    table: ArrayLike,
    ids: ArrayLike,
    *,
    axis: MeshAxes | None,
    scatter_dim: int | None = None,
    mesh: Mesh | AbstractMesh | None = None,
) -> Array:
    """Look up rows of an embedding table whose vocabulary is sharded, without gathering the table.

    Each device looks up the ids in its own rows, and the results are summed over the axis. The gradient with respect to
    the table is computed per device, and is sharded like the table.

    Args:
        table: the embedding table, [vocabulary, features].
        ids: the rows to look up, integers [...].
        axis: the mesh axis that shards the vocabulary, or a tuple of axes; None if the table is not sharded. Inside a
            `shard_map` over the axis, `table` is the device's shard, and `ids` has all ids.
        scatter_dim: the dim of `ids` along which the result is sharded over `axis`. The sum is then a reduce-scatter,
            which sends half of the bytes. By default, each device along the axis gets the entire result.
        mesh: the mesh; by default the current one.

    Returns:
        The rows, [..., features]. An id outside of the vocabulary, which includes negative ids, has a row of zeros,
        and does not contribute to the gradient.

    Raises:
        StrategyError: if `table` is not a matrix or `ids` are not integers, if the mesh has no such axis, or if the
            devices along it do not divide the vocabulary or `scatter_dim`.

    Example:
        >>> mesh = jax.make_mesh((4,), ("model",))
        >>> table = jax.device_put(jnp.arange(8.0).reshape(8, 1), jax.sharding.NamedSharding(mesh, P("model")))
        >>> jax.parallel.embedding_lookup(table, jnp.array([5, 0, 8]), axis="model", mesh=mesh)
        Array([[5.],
               [0.],
               [0.]], dtype=float32)
    """
    region = axis_region(_NAME, axis, mesh)
    rows, places = type_of(table, _NAME), type_of(ids, _NAME)
    if rows.ndim != 2:
        raise StrategyError(f"{_NAME}: table must be a matrix [vocabulary, features], not {rows}")
    if not is_integer(places.dtype):
        raise StrategyError(f"{_NAME}: ids must be integers, indices of the vocabulary, not {places}")
    count = region.shard_size(_NAME, "the size of the vocabulary", rows.shape[0])
    if scatter_dim is not None:
        if not region.axes:
            raise StrategyError(f"{_NAME}: scatter_dim={scatter_dim} needs an axis")
        if not -places.ndim <= scatter_dim < places.ndim:
            raise StrategyError(f"{_NAME}: scatter_dim={scatter_dim} is not a dim of ids, {places}")
        scatter_dim %= places.ndim
        if places.shape[scatter_dim] % region.size:
            raise StrategyError(
                f"{_NAME}: dim {scatter_dim} of ids {places} has size {places.shape[scatter_dim]}, which the "
                f"{region.size} devices do not divide; leave out scatter_dim, or pad ids"
            )

    def lookup(table: Array, ids: Array) -> Array:
        index = ids.astype(jnp.promote_types(ids.dtype, jnp.int32))
        if region.axes:
            index = index - lax.axis_index(region.axes) * count
        # The first index after the shard stands for all others: negative ones would count from its end.
        index = jnp.where((index >= 0) & (index < count), index, count)
        found = table.at[index].get(mode="fill", fill_value=0)
        if not region.axes:
            return found
        if scatter_dim is None:
            return lax.psum(found, region.axes)
        return lax.psum_scatter(found, region.axes, scatter_dimension=scatter_dim, tiled=True)

    result = PartitionSpec() if scatter_dim is None else PartitionSpec(*[None] * scatter_dim, region.axes)
    in_specs = PartitionSpec(region.axes), PartitionSpec()
    return region.run(lookup, in_specs, result, as_operand(table), as_operand(ids))
