"""Stored elements and their coordinates: lookups in dense arrays, sums into dense arrays, order, and batch dims.

Functions without `batch` in their name handle one batch element: `data` has the shape (nse, *dense) and `indices` the
shape (nse, n_sparse). Coordinates outside of the sparse shape are padding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise.api.transformations.vmap import vmap
from shardwise.compiler.arrays.methods import Array


def map_batch(function: Callable[..., Any], n_batch: int) -> Callable[..., Any]:
    """Return a function of arrays with `n_batch` leading batch dims, from one of arrays without."""
    for _ in range(n_batch):
        function = vmap(function)
    return function


def columns(indices: Array) -> tuple[Array, ...]:
    """Return the coordinates along each sparse dim."""
    return tuple(indices[..., dim] for dim in range(indices.shape[-1]))


def is_inside(indices: Array, sparse_shape: Sequence[int]) -> Array:
    """Return whether each stored element is inside of the sparse shape. Batch dims are allowed."""
    limits = jnp.asarray(sparse_shape, indices.dtype)
    return ((indices >= 0) & (indices < limits)).all(-1)


def expand_like(mask: Array, data: Array) -> Array:
    """Append dims of size 1 to a mask of stored elements, so that it broadcasts over the dense dims of `data`."""
    return mask.reshape(*mask.shape, *(1,) * (data.ndim - mask.ndim))


def drop(data: Array, indices: Array, kept: Array, sparse_shape: Sequence[int]) -> tuple[Array, Array]:
    """Turn the elements that are not `kept` into padding: zeros with coordinates outside. Batch dims are allowed."""
    outside = jnp.asarray(sparse_shape, indices.dtype)
    return jnp.where(expand_like(kept, data), data, jnp.zeros((), data.dtype)), jnp.where(
        kept[..., None], indices, outside
    )


def look_up(dense: Array, indices: Array) -> Array:
    """Return the entries of a dense array at coordinates along its first dims; 0 for padding."""
    if indices.shape[-1] == 0:
        return jnp.broadcast_to(dense, (indices.shape[0], *dense.shape))
    return dense.at[columns(indices)].get(mode="fill", fill_value=0)


def add_up(data: Array, indices: Array, sparse_shape: Sequence[int]) -> Array:
    """Return the dense array with the stored elements; those with the same coordinates are added."""
    if not sparse_shape:
        return data.sum(0, dtype=data.dtype)
    zeros = jnp.zeros((*sparse_shape, *data.shape[1:]), data.dtype)
    return zeros.at[columns(indices)].add(data, mode="drop")


def lexicographic_order(indices: Array) -> Array:
    """Return the stable order that sorts coordinates by the first sparse dim, then by the next ones."""
    if indices.shape[-1] == 0:
        return jnp.arange(indices.shape[0])
    return jnp.lexsort(columns(indices)[::-1])


def is_first_of_equals(sorted_indices: Array) -> Array:
    """Return whether each coordinate vector of a sorted array differs from the previous one."""
    differs = (sorted_indices[1:] != sorted_indices[:-1]).any(-1)
    return jnp.concatenate([jnp.ones(min(1, sorted_indices.shape[0]), bool), differs])
