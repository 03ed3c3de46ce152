"""Conversions between BCOO and dense arrays: fromdense, todense, extract."""

from functools import partial

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, concrete_value
from shardwise.experimental.sparse.bcoo import BCOO, split_shape
from shardwise.experimental.sparse.coordinates import (
    add_up,
    expand_like,
    is_first_of_equals,
    lexicographic_order,
    look_up,
    map_batch,
)
from shardwise.typing import ArrayLike, DTypeLike


def bcoo_fromdense(
    mat: ArrayLike, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: DTypeLike = np.int32
) -> BCOO:
    """Convert a dense array to a sparse one.

    Args:
        mat: the array.
        nse: the number of elements to store per batch element. It must be given under `jit`; None counts the nonzero
            ones.
        n_batch: the number of leading dims that are batch dims.
        n_dense: the number of trailing dims that are dense.
        index_dtype: the dtype of the coordinates.

    Returns:
        The sparse array. If it stores more elements than there are, the others are padding.

    Raises:
        ConcretizationTypeError: if `nse` is None and `mat` is traced.
        ValueError: if `n_batch + n_dense` exceeds the rank of `mat`.

    Example:
        >>> jax.experimental.sparse.bcoo_fromdense(jnp.array([[0.0, 2.0], [0.0, 0.0]]))
        BCOO(float32[2, 2], nse=1)
    """
    dense = as_operand(mat, "bcoo_fromdense")
    _, sparse_shape, _ = split_shape("bcoo_fromdense", dense.shape, n_batch, n_dense)
    n_sparse = len(sparse_shape)
    is_stored = (dense != 0).any(tuple(range(n_batch + n_sparse, dense.ndim)))
    if nse is None:
        counts = is_stored.sum(tuple(range(n_batch, n_batch + n_sparse)))
        unknown = "the number of its nonzero elements is unknown: pass `nse`"
        nse = int(concrete_value("bcoo_fromdense", counts, unknown).max(initial=0))
    indices = map_batch(partial(_nonzero_indices, nse=nse), n_batch)(is_stored)
    data = map_batch(look_up, n_batch)(dense, indices)
    if n_sparse == 0:  # there are no coordinates outside: all elements but the first are zeros instead
        is_first = expand_like(jnp.arange(nse) == 0, data[(0,) * n_batch] if dense.size else data)
        data = jnp.where(is_first, data, jnp.zeros((), data.dtype))
    return BCOO((data, indices.astype(index_dtype)), shape=dense.shape, indices_sorted=True, unique_indices=True)


def _nonzero_indices(is_stored: Array, nse: int) -> Array:
    """Return the coordinates of the first `nse` stored elements, in lexicographic order."""
    if is_stored.ndim == 0:
        return jnp.zeros((nse, 0), np.int32)
    return jnp.stack(jnp.nonzero(is_stored, size=nse, fill_value=is_stored.shape), axis=-1)


def bcoo_todense(mat: BCOO) -> Array:
    """Convert a sparse array to a dense one.

    Args:
        mat: the sparse array.

    Returns:
        The dense array. Elements with the same coordinates are added.

    Raises:
        AttributeError: if `mat` is not sparse.

    Example:
        >>> jax.experimental.sparse.bcoo_todense(jax.experimental.sparse.bcoo_fromdense(jnp.eye(2)))
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    mat = mat.expand_batch()
    return map_batch(partial(add_up, sparse_shape=mat.sparse_shape), mat.n_batch)(mat.data, mat.indices)


def bcoo_extract(sparr: BCOO, arr: ArrayLike, *, assume_unique: bool | None = None) -> BCOO:
    """Take the elements of a dense array at the coordinates of a sparse one.

    Args:
        sparr: the sparse array, of which only the coordinates count.
        arr: the dense array.
        assume_unique: whether elements with equal coordinates all get the value of the dense array. If False, the first
            of them gets it and the others 0, so that their sum is the value. None is `sparr.unique_indices`.

    Returns:
        A sparse array with the coordinates of `sparr`.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> mask = jax.experimental.sparse.eye(2)
        >>> jax.experimental.sparse.bcoo_extract(mask, jnp.array([[1.0, 2.0], [3.0, 4.0]])).data
        Array([1., 4.], dtype=float32)
    """
    dense = as_operand(arr, "bcoo_extract")
    if dense.shape != sparr.shape:
        raise ValueError(f"bcoo_extract: the shapes {sparr.shape} and {dense.shape} must be equal")
    indices = sparr.expand_batch().indices
    data = map_batch(look_up, sparr.n_batch)(dense, indices)
    if not (sparr.unique_indices if assume_unique is None else assume_unique):
        is_first = map_batch(_is_first_occurrence, sparr.n_batch)(indices)
        data = jnp.where(expand_like(is_first, data), data, jnp.zeros((), data.dtype))
    return BCOO(
        (data, sparr.indices),
        shape=sparr.shape,
        indices_sorted=sparr.indices_sorted,
        unique_indices=sparr.unique_indices,
    )


def _is_first_occurrence(indices: Array) -> Array:
    """Return whether no earlier element has the same coordinates."""
    order = lexicographic_order(indices)
    return jnp.zeros(indices.shape[0], bool).at[order].set(is_first_of_equals(indices[order]))
