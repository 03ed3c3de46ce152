"""Functions that change the shape of BCOO arrays: transpose, reshape, squeeze, broadcast, concatenate, reverse.

Dims stay what they are: batch, sparse or dense. Along sparse dims, only the coordinates change.
"""

import math
import operator
from collections.abc import Sequence

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.experimental.sparse.bcoo import BCOO, canonical_dims
from shardwise.experimental.sparse.coordinates import columns, drop, is_inside
from shardwise.typing import OutSharding


def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """Permute the dims of a sparse array.

    Args:
        mat: the sparse array.
        permutation: the dims of `mat` in the order of the result. Batch, sparse and dense dims must stay among
            themselves.

    Returns:
        The sparse array.

    Raises:
        NotImplementedError: if batch, sparse and dense dims are exchanged.
        ValueError: if `permutation` is not a permutation of the dims.

    Example:
        >>> mat = jax.experimental.sparse.BCOO.fromdense(jnp.ones((2, 3)))
        >>> jax.experimental.sparse.bcoo_transpose(mat, permutation=(1, 0))
        BCOO(float32[3, 2], nse=6)
    """
    order = tuple(map(operator.index, permutation))
    if sorted(order) != list(range(mat.ndim)):
        raise ValueError(f"bcoo_transpose: {order} is not a permutation of the dims of {mat}")
    n_batch, end = mat.n_batch, mat.n_batch + mat.n_sparse
    batch, sparse, dense = order[:n_batch], order[n_batch:end], order[end:]
    if sorted(batch) != list(range(n_batch)) or sorted(dense) != list(range(end, mat.ndim)):
        raise NotImplementedError(
            f"bcoo_transpose: {order} exchanges dims of different kinds, but in {mat} the first {n_batch} dims are "
            f"batch dims and the last {mat.n_dense} are dense; change them with `update_layout` first"
        )
    if order == tuple(range(mat.ndim)):
        return mat
    data = mat.data.transpose(*batch, n_batch, *(dim - mat.n_sparse + 1 for dim in dense))
    indices = mat.indices.transpose(*batch, n_batch, n_batch + 1)
    if sparse != tuple(range(n_batch, end)):
        indices = indices[..., np.array([dim - n_batch for dim in sparse], int)]
    return BCOO(
        (data, indices),
        shape=tuple(mat.shape[dim] for dim in order),
        indices_sorted=mat.indices_sorted and sparse == tuple(range(n_batch, end)),
        unique_indices=mat.unique_indices,
    )


def bcoo_reshape(
    mat: BCOO, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, sharding: OutSharding = None
) -> BCOO:
    """Reshape a sparse array.

    Args:
        mat: the sparse array.
        new_sizes: the new shape. The batch dims must be reshaped to leading dims and the dense ones to trailing dims.
        dimensions: the order in which the dims are read; None is their own.
        sharding: must be None.

    Returns:
        The sparse array.

    Raises:
        NotImplementedError: if `sharding` is not None.
        ValueError: if the sizes do not match, or batch, sparse and dense dims would mix.

    Example:
        >>> mat = jax.experimental.sparse.BCOO.fromdense(jnp.ones((2, 6)))
        >>> jax.experimental.sparse.bcoo_reshape(mat, new_sizes=(3, 4))
        BCOO(float32[3, 4], nse=12)
    """
    _reject_sharding("bcoo_reshape", sharding)
    if dimensions is not None:
        mat = bcoo_transpose(mat, permutation=dimensions)
    shape = tuple(map(operator.index, new_sizes))
    if math.prod(shape) != mat.size:
        raise ValueError(f"bcoo_reshape: {mat} has {mat.size} elements, which shape {shape} cannot hold")
    mat = mat.expand_batch()
    n_batch = _leading_dims(mat, shape, mat.batch_shape, "batch")
    n_dense = _leading_dims(mat, shape[n_batch:][::-1], mat.dense_shape[::-1], "dense")
    end = len(shape) - n_dense
    sparse_shape = shape[n_batch:end]
    if math.prod(sparse_shape) != math.prod(mat.sparse_shape):
        raise ValueError(_mixing_error(mat, shape, "batch, sparse and dense"))
    indices = mat.indices
    if sparse_shape != mat.sparse_shape:
        indices = _reshape_coordinates(indices, mat.sparse_shape, sparse_shape)
    return BCOO(
        (
            mat.data.reshape(*shape[:n_batch], mat.nse, *shape[end:]),
            indices.reshape(*shape[:n_batch], mat.nse, len(sparse_shape)),
        ),
        shape=shape,
        indices_sorted=mat.indices_sorted,
        unique_indices=mat.unique_indices,
    )


def _leading_dims(mat: BCOO, shape: tuple[int, ...], sizes: tuple[int, ...], kind: str) -> int:
    """Return how many leading dims of `shape` hold as many elements as `sizes`, if possible with the same rank."""
    total = math.prod(sizes)
    counts = [count for count in range(len(shape) + 1) if math.prod(shape[:count]) == total]
    if not counts:
        raise ValueError(_mixing_error(mat, shape, kind))
    return min(counts, key=lambda count: abs(count - len(sizes)))


def _mixing_error(mat: BCOO, shape: tuple[int, ...], kinds: str) -> str:
    return (
        f"bcoo_reshape: shape {shape} mixes {kinds} dims of {mat} with others; change them with `update_layout` first"
    )


def _reshape_coordinates(indices: Array, old: tuple[int, ...], new: tuple[int, ...]) -> Array:
    """Return the coordinates of the same elements in another sparse shape. Padding stays outside."""
    position = jnp.zeros(indices.shape[:-1], indices.dtype)
    for coordinate, size in zip(columns(indices), old, strict=True):
        position = position * size + coordinate
    coordinates = []
    for size in reversed(new):
        coordinates.append(position % max(size, 1))
        position = position // max(size, 1)
    inside = is_inside(indices, old)
    stacked = jnp.stack(coordinates[::-1], axis=-1) if new else jnp.zeros((*indices.shape[:-1], 0), indices.dtype)
    return jnp.where(inside[..., None], stacked, jnp.asarray(new, indices.dtype))


def bcoo_squeeze(arr: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """Remove dims of size 1 of a sparse array.

    Args:
        arr: the sparse array.
        dimensions: the dims to remove.

    Returns:
        The sparse array.

    Raises:
        ValueError: if a dim does not exist, or does not have size 1.

    Example:
        >>> mat = jax.experimental.sparse.BCOO.fromdense(jnp.ones((1, 3)))
        >>> jax.experimental.sparse.bcoo_squeeze(mat, dimensions=(0,))
        BCOO(float32[3], nse=3)
    """
    removed = canonical_dims("bcoo_squeeze", arr, dimensions)
    if any(arr.shape[dim] != 1 for dim in removed):
        raise ValueError(f"bcoo_squeeze: the dims {removed} of {arr} must have size 1")
    end = arr.n_batch + arr.n_sparse
    sparse = [dim for dim in removed if arr.n_batch <= dim < end]
    data, indices = arr.data, arr.indices
    if sparse:
        arr = arr.expand_batch()
        kept = is_inside(arr.indices, arr.sparse_shape)
        data, indices = drop(arr.data, arr.indices, kept, arr.sparse_shape)
        indices = indices[..., [dim - arr.n_batch for dim in range(arr.n_batch, end) if dim not in sparse]]
    batch = tuple(dim for dim in removed if dim < arr.n_batch)
    dense = tuple(dim - arr.n_sparse + 1 for dim in removed if dim >= end)
    return BCOO(
        (jnp.squeeze(data, (*batch, *dense)), jnp.squeeze(indices, batch)),
        shape=tuple(size for dim, size in enumerate(arr.shape) if dim not in removed),
        indices_sorted=arr.indices_sorted,
        unique_indices=arr.unique_indices,
    )


def bcoo_broadcast_in_dim(
    mat: BCOO, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: OutSharding = None
) -> BCOO:
    """Broadcast a sparse array to a shape.

    Args:
        mat: the sparse array.
        shape: the shape of the result.
        broadcast_dimensions: for each dim of `mat`, the dim of the result. New dims before the sparse ones are batch
            dims, those between the sparse ones or after them are sparse, and those among the dense ones are dense. A
            dim of size 1 may become larger.
        sharding: must be None.

    Returns:
        The sparse array. New sparse dims of size `n` multiply the number of stored elements by `n`.

    Raises:
        NotImplementedError: if `sharding` is not None.
        ValueError: if the shapes do not match.

    Example:
        >>> mat = jax.experimental.sparse.BCOO.fromdense(jnp.ones(3))
        >>> jax.experimental.sparse.bcoo_broadcast_in_dim(mat, shape=(2, 3), broadcast_dimensions=(1,))
        BCOO(float32[2, 3], nse=3, n_batch=1)
    """
    _reject_sharding("bcoo_broadcast_in_dim", sharding)
    shape, dims = tuple(shape), tuple(broadcast_dimensions)
    if len(dims) != mat.ndim or any(
        mat.shape[index] not in (1, shape[dim]) for index, dim in enumerate(dims) if dim < len(shape)
    ):
        raise ValueError(
            f"bcoo_broadcast_in_dim: {mat} does not broadcast to {shape} along {dims}: sizes must be 1 or equal"
        )
    if list(dims) != sorted(set(dims)) or any(not 0 <= dim < len(shape) for dim in dims):
        raise ValueError(f"bcoo_broadcast_in_dim: {dims} must increase, and exist in shape {shape}")
    n_batch, end = mat.n_batch, mat.n_batch + mat.n_sparse
    new_batch = _batch_count(dims, n_batch, end)
    new_end = len(shape) if mat.n_dense == 0 else (dims[end - 1] + 1 if end else 0)
    mat = mat.expand_batch()
    data = lax.broadcast_in_dim(
        mat.data,
        (*shape[:new_batch], mat.nse, *shape[new_end:]),
        (*dims[:n_batch], new_batch, *(dim - new_end + new_batch + 1 for dim in dims[end:])),
    )
    sources = {dim: index for index, dim in enumerate(dims[n_batch:end])}
    indices = lax.broadcast_in_dim(
        mat.indices, (*shape[:new_batch], mat.nse, mat.n_sparse), (*dims[:n_batch], new_batch, new_batch + 1)
    )
    return _repeat_along_sparse(data, indices, mat.sparse_shape, shape, sources, range(new_batch, new_end))


def _batch_count(dims: tuple[int, ...], n_batch: int, end: int) -> int:
    """Return the number of batch dims after a broadcast: new dims before the first sparse dim are batch dims."""
    if end > n_batch:
        return dims[n_batch]
    return dims[n_batch - 1] + 1 if n_batch else 0


def _repeat_along_sparse(
    data: Array,
    indices: Array,
    old_shape: tuple[int, ...],
    shape: tuple[int, ...],
    sources: dict[int, int],
    sparse_dims: range,
) -> BCOO:
    """Return the array with sparse dims added or enlarged, where each element is stored once per entry.

    Args:
        data: the elements, with the batch and dense dims of the result.
        indices: the coordinates along the old sparse dims, with the batch dims of the result.
        old_shape: the sizes of the old sparse dims.
        shape: the shape of the result.
        sources: the old sparse dim of each sparse dim of the result that has one.
        sparse_dims: the sparse dims of the result.
    """
    n_batch = sparse_dims.start
    sparse_shape = shape[n_batch : sparse_dims.stop]
    repeated = [dim for dim in sparse_dims if dim not in sources or old_shape[sources[dim]] != shape[dim]]
    inside = is_inside(indices, old_shape)
    count = math.prod(shape[dim] for dim in repeated)
    entries = np.stack(
        [x.reshape(-1) for x in np.meshgrid(*(np.arange(shape[dim]) for dim in repeated), indexing="ij")]
        or [np.zeros(1, int)],
        axis=-1,
    )
    nse = indices.shape[-2]
    stored = (*indices.shape[:-2], nse, count)
    coordinates = [
        jnp.broadcast_to(jnp.asarray(entries[:, repeated.index(dim)], indices.dtype), stored)
        if dim in repeated
        else jnp.broadcast_to(indices[..., sources[dim], None], stored)
        for dim in sparse_dims
    ]
    new_indices = jnp.stack(coordinates, axis=-1) if coordinates else jnp.zeros((*stored, 0), indices.dtype)
    data = jnp.repeat(data, count, axis=n_batch)
    new_indices = new_indices.reshape(*stored[:-2], nse * count, len(sparse_shape))
    data, new_indices = drop(data, new_indices, jnp.repeat(inside, count, axis=n_batch), sparse_shape)
    return BCOO((data, new_indices), shape=shape)


def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Join sparse arrays along a dim.

    Args:
        operands: the sparse arrays, with equal shapes except along the dim, and the same batch, sparse and dense dims.
        dimension: the dim, a batch or sparse dim.

    Returns:
        The sparse array.

    Raises:
        NotImplementedError: if the dim is dense.
        ValueError: if there are no operands, one of them is not a BCOO, the dim does not exist, or shapes do not match.

    Example:
        >>> eye = jax.experimental.sparse.eye(3)
        >>> jax.experimental.sparse.bcoo_concatenate([eye, eye], dimension=0)
        BCOO(float32[6, 3], nse=6)
    """
    operands = list(operands)
    if not operands or not all(isinstance(each, BCOO) for each in operands):
        raise ValueError(f"bcoo_concatenate: needs one or more BCOO arrays, not {operands}")
    first = operands[0]
    (dim,) = canonical_dims("bcoo_concatenate", first, [dimension])
    layouts = {(each.ndim, each.n_batch, each.n_dense) for each in operands}
    others = {tuple(size for index, size in enumerate(each.shape) if index != dim) for each in operands}
    if len(layouts) > 1 or len(others) > 1:
        raise ValueError(
            f"bcoo_concatenate: the operands {operands} must have the same batch, sparse and dense dims, and equal "
            f"sizes except along dim {dim}"
        )
    n_batch = first.n_batch
    if dim >= n_batch + first.n_sparse:
        raise NotImplementedError("bcoo_concatenate: dense dims cannot be joined; use `update_layout` first")
    operands = [each.expand_batch() for each in operands]
    sizes = [each.shape[dim] for each in operands]
    shape = (*first.shape[:dim], sum(sizes), *first.shape[dim + 1 :])
    if dim < n_batch:
        nse = max(each.nse for each in operands)
        operands = [_pad_elements(each, nse) for each in operands]
        parts = [(each.data, each.indices) for each in operands]
        axis = dim
    else:
        sparse_shape = shape[n_batch : n_batch + first.n_sparse]
        parts = []
        for each, start in zip(operands, np.cumsum([0, *sizes[:-1]]), strict=True):
            offset = np.zeros(first.n_sparse, int)
            offset[dim - n_batch] = start
            shifted = each.indices + jnp.asarray(offset, each.indices.dtype)
            parts.append(drop(each.data, shifted, is_inside(each.indices, each.sparse_shape), sparse_shape))
        axis = n_batch
    data, indices = (jnp.concatenate(arrays, axis) for arrays in zip(*parts, strict=True))
    return BCOO((data, indices), shape=shape)


def _pad_elements(mat: BCOO, nse: int) -> BCOO:
    """Store `nse` elements per batch element; the new ones are padding."""
    added = (*mat.batch_shape, nse - mat.nse)
    zeros = jnp.zeros((*added, *mat.dense_shape), mat.dtype)
    outside = jnp.broadcast_to(jnp.asarray(mat.sparse_shape, mat.indices.dtype), (*added, mat.n_sparse))
    axis = mat.n_batch
    return BCOO(
        (jnp.concatenate([mat.data, zeros], axis), jnp.concatenate([mat.indices, outside], axis)), shape=mat.shape
    )


def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """Reverse the order of elements along dims.

    Args:
        operand: the sparse array.
        dimensions: the dims.

    Returns:
        The sparse array.

    Raises:
        ValueError: if a dim does not exist or repeats.

    Example:
        >>> mat = jax.experimental.sparse.BCOO.fromdense(jnp.array([0.0, 0.0, 5.0]))
        >>> jax.experimental.sparse.bcoo_rev(mat, (0,)).todense()
        Array([5., 0., 0.], dtype=float32)
    """
    mat = operand.expand_batch()
    dims = canonical_dims("bcoo_rev", mat, dimensions)
    n_batch, end = mat.n_batch, mat.n_batch + mat.n_sparse
    batch = [dim for dim in dims if dim < n_batch]
    data = lax.rev(mat.data, (*batch, *(dim - mat.n_sparse + 1 for dim in dims if dim >= end)))
    indices = lax.rev(mat.indices, batch)
    sparse = [dim - n_batch for dim in dims if n_batch <= dim < end]
    if sparse:
        last = jnp.asarray([size - 1 for size in mat.sparse_shape], indices.dtype)
        is_reversed = np.isin(np.arange(mat.n_sparse), sparse)
        inside = is_inside(indices, mat.sparse_shape)
        data, indices = drop(data, jnp.where(is_reversed, last - indices, indices), inside, mat.sparse_shape)
    return BCOO((data, indices), shape=mat.shape, unique_indices=mat.unique_indices)


def _reject_sharding(name: str, sharding: OutSharding) -> None:
    if sharding is not None:
        raise NotImplementedError(f"{name}: sharding must be None; shard the leaves `data` and `indices` instead")
