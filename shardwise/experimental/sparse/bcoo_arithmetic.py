"""Elementwise products and sums of BCOO arrays."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, broadcast_shapes
from shardwise.experimental.sparse.bcoo import BCOO, canonical_dims
from shardwise.experimental.sparse.bcoo_layout import bcoo_sum_duplicates
from shardwise.experimental.sparse.bcoo_shape import bcoo_broadcast_in_dim
from shardwise.experimental.sparse.coordinates import drop, expand_like, is_inside, look_up, map_batch
from shardwise.typing import ArrayLike


def bcoo_multiply_dense(sp_mat: BCOO, v: ArrayLike) -> Array:
    """Multiply the elements of a sparse array by those of a dense one.

    Args:
        sp_mat: the sparse array.
        v: the dense array, which broadcasts to the shape of `sp_mat`.

    Returns:
        The elements of the product, whose coordinates are those of `sp_mat`.

    Raises:
        NotImplementedError: if the product has another shape than `sp_mat`.

    Example:
        >>> jax.experimental.sparse.bcoo_multiply_dense(jax.experimental.sparse.eye(3), jnp.arange(3.0))
        Array([0., 1., 2.], dtype=float32)
    """
    dense = as_operand(v, "bcoo_multiply_dense")
    if dense.ndim == 0:
        return sp_mat.data * dense
    mat = sp_mat.expand_batch()
    return mat.data * _entries_at(mat, dense)


def bcoo_divide_dense(mat: BCOO, dense: Array) -> Array:
    """Return the elements of the quotient of a sparse array and a dense one, which broadcasts to its shape."""
    if dense.ndim == 0:
        return mat.data / dense
    mat = mat.expand_batch()
    entries = _entries_at(mat, dense)
    inside = expand_like(is_inside(mat.indices, mat.sparse_shape), entries)
    return mat.data / jnp.where(inside, entries, jnp.ones((), entries.dtype))  # padding must not become NaN


def _entries_at(mat: BCOO, dense: Array) -> Array:
    """Return the entries of a dense array, which broadcasts to the shape of `mat`, at its coordinates."""
    if dense.ndim > mat.ndim or broadcast_shapes("bcoo_multiply_dense", mat.shape, dense.shape) != mat.shape:
        raise NotImplementedError(
            f"bcoo_multiply_dense: {mat} and an array of shape {dense.shape} have a result of a larger shape than the "
            "sparse array; broadcast it first"
        )
    dense = dense.reshape((1,) * (mat.ndim - dense.ndim) + dense.shape)
    dense = jnp.broadcast_to(dense, (*mat.batch_shape, *dense.shape[mat.n_batch :]))
    return map_batch(_look_up_broadcast, mat.n_batch)(dense, mat.indices)


def _look_up_broadcast(dense: Array, indices: Array) -> Array:
    """Return the entries of a dense array, whose dims of size 1 broadcast, at coordinates along its first dims."""
    n_sparse = indices.shape[-1]
    varying = [dim for dim in range(n_sparse) if dense.shape[dim] != 1]
    constant = tuple(dim for dim in range(n_sparse) if dense.shape[dim] == 1)
    return look_up(jnp.squeeze(dense, constant), indices[:, np.array(varying, int)])


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """Multiply two sparse arrays elementwise.

    Args:
        lhs, rhs: the sparse arrays, of the same rank. Dims of size 1 broadcast.

    Returns:
        The sparse product. It compares each element of one operand with each of the other, and stores their number, or
        as many as fit into its sparse dims.

    Raises:
        NotImplementedError: if the operands have different numbers of batch or dense dims.
        TypeError: if the shapes do not broadcast.

    Example:
        >>> mat = jax.experimental.sparse.BCOO.fromdense(jnp.array([0.0, 2.0, 3.0]))
        >>> jax.experimental.sparse.bcoo_multiply_sparse(mat, mat).todense()
        Array([0., 4., 9.], dtype=float32)
    """
    if (lhs.ndim, lhs.n_batch, lhs.n_dense) != (rhs.ndim, rhs.n_batch, rhs.n_dense):
        raise NotImplementedError(
            f"bcoo_multiply_sparse: {lhs} and {rhs} need the same rank and the same numbers of batch and dense dims"
        )
    shape = broadcast_shapes("bcoo_multiply_sparse", lhs.shape, rhs.shape)
    n_batch, end = lhs.n_batch, lhs.n_batch + lhs.n_sparse
    sparse_shape = shape[n_batch:end]
    lhs, rhs = (_broadcast_batch(each, shape[:n_batch]) for each in (lhs, rhs))
    multiply = partial(_multiply_pairs, shapes=(lhs.sparse_shape, rhs.sparse_shape), sparse_shape=sparse_shape)
    data, indices = map_batch(multiply, n_batch)(lhs.data, lhs.indices, rhs.data, rhs.indices)
    result = BCOO((data, indices), shape=shape)
    capacity = math.prod(sparse_shape)
    return bcoo_sum_duplicates(result, nse=capacity) if capacity < result.nse else result


def _broadcast_batch(mat: BCOO, batch: tuple[int, ...]) -> BCOO:
    return bcoo_broadcast_in_dim(mat, shape=(*batch, *mat.shape[len(batch) :]), broadcast_dimensions=range(mat.ndim))


def _multiply_pairs(
    left: Array,
    left_indices: Array,
    right: Array,
    right_indices: Array,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    sparse_shape: tuple[int, ...],
) -> tuple[Array, Array]:
    """Multiply each element of the left operand by each one of the right; pairs with other coordinates are padding."""
    a, b = left_indices[:, None], right_indices[None]
    broadcasts = [np.array(shape, int) != np.array(sparse_shape, int) for shape in shapes]
    matches = ((a == b) | broadcasts[0] | broadcasts[1]).all(-1)
    inside = is_inside(a, shapes[0]) & is_inside(b, shapes[1])
    indices = jnp.where(broadcasts[0], b, a)
    data, indices = drop(left[:, None] * right[None], indices, matches & inside, sparse_shape)
    count = left.shape[0] * right.shape[0]
    return data.reshape(count, *data.shape[2:]), indices.reshape(count, len(sparse_shape))


def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """Sum a sparse array along dims.

    Args:
        mat: the sparse array.
        axes: the dims.

    Returns:
        The sparse array without these dims. Elements of a summed sparse or batch dim are stored separately, with the
        same coordinates.

    Raises:
        ValueError: if a dim does not exist or repeats.

    Example:
        >>> mat = jax.experimental.sparse.bcoo_reduce_sum(jax.experimental.sparse.eye(3), axes=(0,))
        >>> mat.todense()
        Array([1., 1., 1.], dtype=float32)
    """
    dims = canonical_dims("bcoo_reduce_sum", mat, axes)
    n_batch, end = mat.n_batch, mat.n_batch + mat.n_sparse
    mat = mat.expand_batch()
    data = mat.data.sum(tuple(dim - mat.n_sparse + 1 for dim in dims if dim >= end), dtype=mat.dtype)
    kept = [dim for dim in range(n_batch, end) if dim not in dims]
    indices = mat.indices
    if len(kept) < mat.n_sparse:
        data, indices = drop(data, indices, is_inside(indices, mat.sparse_shape), mat.sparse_shape)
        indices = indices[..., np.array([dim - n_batch for dim in kept], int)]
    summed = [dim for dim in dims if dim < n_batch]
    batch = [dim for dim in range(n_batch) if dim not in summed]
    if summed:  # the elements of all entries are stored together
        stored = (*(mat.shape[dim] for dim in batch), math.prod(mat.shape[dim] for dim in summed) * mat.nse)
        data, indices = (
            x.transpose(*batch, *summed, *range(n_batch, x.ndim)).reshape(*stored, *x.shape[n_batch + 1 :])
            for x in (data, indices)
        )
    shape = tuple(size for dim, size in enumerate(mat.shape) if dim not in dims)
    return BCOO((data, indices), shape=shape)
