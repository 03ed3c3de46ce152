"""Strategies for batches and activations: sequences sharded over a mesh axis."""

from typing import Any, TypeVar

from shardwise.api.meshes.placement import with_sharding_constraint
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.errors import StrategyError
from shardwise.strategies.leaves import map_arrays
from shardwise.strategies.specs import check_axis, checked_sharding, spec_of_dims

_T = TypeVar("_T")


def context_parallel(
    batch: object, mesh: Mesh, axis: str = "sequence", *, batch_axis: str | None = "data", dim: int = 1
) -> Any:
    """Shard the sequences of a batch over a mesh axis, and its rows over another one.

    Functions of single positions then need no communication. For attention, call `parallel.ring_attention` or
    `parallel.ulysses_attention` with the same axis.

    Args:
        batch: a pytree of arrays or of `ShapeDtypeStruct`s with the rows along the first dim.
        mesh: the mesh.
        axis: the mesh axis that shards the sequences.
        batch_axis: the mesh axis that shards the rows; None if the mesh has none.
        dim: the dim of the sequence. Arrays without this dim, such as one label per row, are sharded by rows only.

    Returns:
        A pytree of shardings like `batch`, for `device_put`, `data.BatchIterator` and `in_shardings`; None for leaves
        that are not arrays.

    Raises:
        StrategyError: if the mesh has no such axis, if `dim` is 0, or if devices do not divide rows or sequences.

    Example:
        >>> mesh = jax.make_mesh((2, 4), ("data", "sequence"))
        >>> batch = {"tokens": np.zeros((4, 16), int), "label": np.zeros(4)}
        >>> jax.tree.map(lambda sharding: sharding.spec, jax.strategies.context_parallel(batch, mesh))
        {'label': P('data'), 'tokens': P('data', 'sequence')}
    """
    return _shardings("context_parallel", batch, mesh, axis, batch_axis, dim)


def sequence_parallel(
    activations: _T, mesh: Mesh, axis: str = "model", *, batch_axis: str | None = "data", dim: int = 1
) -> _T:
    """Constrain activations to be sharded along their sequences, over the mesh axis of tensor parallelism.

    Between the layers that `tensor_parallel` shards, activations are otherwise replicated along that axis, with all
    that is saved of them for the backward pass. Call it on the operands of norms, dropout and residual adds. The
    all-reduce after a layer becomes a reduce-scatter, and an all-gather before the next one: the same bytes, and a part
    of the memory.

    Args:
        activations: a pytree of arrays [rows, sequence, ...], in a compiled function.
        mesh: the mesh.
        axis: the mesh axis that shards the sequences.
        batch_axis: the mesh axis that shards the rows; None if the mesh has none.
        dim: the dim of the sequence.

    Returns:
        The activations, with a sharding constraint.

    Raises:
        StrategyError: if the mesh has no such axis, if `dim` is 0, or if devices do not divide rows or sequences.

    Example:
        >>> mesh = jax.make_mesh((2, 4), ("data", "model"))
        >>> norm = jax.jit(lambda x: jax.nn.standardize(jax.strategies.sequence_parallel(x, mesh)))
        >>> norm(jnp.ones((4, 16, 8))).sharding.spec
        P('data', 'model')
    """
    shardings = _shardings("sequence_parallel", activations, mesh, axis, batch_axis, dim)
    return with_sharding_constraint(activations, shardings)


def _shardings(who: str, tree: object, mesh: Mesh, axis: str, batch_axis: str | None, dim: int) -> Any:
    check_axis(mesh, axis, who)
    if dim < 1:
        raise StrategyError(f"{who}: dim must be at least 1, not {dim}: the first dim has the rows of the batch")
    rows = () if batch_axis is None else (batch_axis,)

    def choose(name: str, shape: tuple[int, ...]) -> NamedSharding:
        dims: list[tuple[str, ...]] = [() for _ in shape]
        if dims:
            dims[0] = rows
        if dim < len(shape):
            dims[dim] = (axis,)
        return checked_sharding(mesh, name, shape, spec_of_dims(dims), who)

    return map_arrays(choose, tree)
