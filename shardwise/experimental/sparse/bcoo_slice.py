"""Slices of BCOO arrays: elements outside of the slice become padding."""

import math
import operator
from collections.abc import Sequence

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.bcoo_layout import bcoo_sum_duplicates
from shardwise.experimental.sparse.coordinates import drop, is_inside
from shardwise.typing import ArrayLike


def bcoo_slice(
    mat: BCOO, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> BCOO:
    """Slice a sparse array.

    Args:
        mat: the sparse array.
        start_indices: for each dim, the first index.
        limit_indices: for each dim, the index after the last.
        strides: for each dim, the step; 1 if None.

    Returns:
        The sparse array. It stores as many elements as `mat`, or as many as fit into its sparse dims if these are
        fewer.

    Raises:
        ValueError: if the numbers of indices do not match, or a slice is not inside of the array.

    Example:
        >>> mat = jax.experimental.sparse.eye(4)
        >>> jax.experimental.sparse.bcoo_slice(mat, start_indices=(1, 1), limit_indices=(3, 2)).todense()
        Array([[1.],
               [0.]], dtype=float32)
    """
    starts, limits = tuple(map(operator.index, start_indices)), tuple(map(operator.index, limit_indices))
    steps = (1,) * mat.ndim if strides is None else tuple(map(operator.index, strides))
    if not len(starts) == len(limits) == len(steps) == mat.ndim:
        raise ValueError(f"bcoo_slice: {mat} needs {mat.ndim} start indices, limits and strides")
    for start, limit, step, size in zip(starts, limits, steps, mat.shape, strict=True):
        if not (0 <= start <= limit <= size and step > 0):
            raise ValueError(f"bcoo_slice: the slice {start}:{limit}:{step} is not inside of a dim of size {size}")
    mat = mat.expand_batch()
    n_batch, end = mat.n_batch, mat.n_batch + mat.n_sparse
    slices = tuple(map(slice, starts, limits, steps))
    shape = tuple(len(range(*each.indices(size))) for each, size in zip(slices, mat.shape, strict=True))
    data, indices = mat.data[(*slices[:n_batch], slice(None), *slices[end:])], mat.indices[slices[:n_batch]]
    first, stop, stride = (jnp.asarray(values[n_batch:end], indices.dtype) for values in (starts, limits, steps))
    offset = indices - first
    kept = ((offset >= 0) & (indices < stop) & (offset % stride == 0)).all(-1)
    return _sliced(mat, data, offset // stride, kept, shape)


def bcoo_dynamic_slice(mat: BCOO, start_indices: Sequence[ArrayLike], slice_sizes: Sequence[int]) -> BCOO:
    """Slice a sparse array from indices that may be traced.

    Args:
        mat: the sparse array.
        start_indices: for each dim, the first index. It is clamped so that the slice is inside of the array.
        slice_sizes: for each dim, the size of the slice.

    Returns:
        The sparse array. It stores as many elements as `mat`, or as many as fit into its sparse dims if these are
        fewer.

    Raises:
        ValueError: if the numbers of indices do not match, or a slice is larger than the array.

    Example:
        >>> mat = jax.experimental.sparse.eye(4)
        >>> jax.experimental.sparse.bcoo_dynamic_slice(mat, (1, 1), (2, 1)).todense()
        Array([[1.],
               [0.]], dtype=float32)
    """
    shape = tuple(map(operator.index, slice_sizes))
    starts = [as_operand(index, "bcoo_dynamic_slice") for index in start_indices]
    if not len(starts) == len(shape) == mat.ndim:
        raise ValueError(f"bcoo_dynamic_slice: {mat} needs {mat.ndim} start indices and sizes")
    if any(not 0 <= size <= full for size, full in zip(shape, mat.shape, strict=True)):
        raise ValueError(f"bcoo_dynamic_slice: a slice of sizes {shape} is not inside of {mat}")
    mat = mat.expand_batch()
    n_batch, end, zero = mat.n_batch, mat.n_batch + mat.n_sparse, jnp.zeros((), np.int32)
    starts = [
        jnp.clip(jnp.where(start < 0, start + full, start), 0, full - size).astype(np.int32)
        for start, size, full in zip(starts, shape, mat.shape, strict=True)
    ]
    data = lax.dynamic_slice(
        mat.data, [*starts[:n_batch], zero, *starts[end:]], (*shape[:n_batch], mat.nse, *shape[end:])
    )
    indices = lax.dynamic_slice(mat.indices, [*starts[:n_batch], zero, zero], (*shape[:n_batch], mat.nse, mat.n_sparse))
    if not mat.n_sparse:
        return BCOO((data, indices), shape=shape)
    offset = indices - jnp.stack(starts[n_batch:end]).astype(indices.dtype)
    inside = is_inside(indices, mat.sparse_shape)
    return _sliced(mat, data, offset, inside & is_inside(offset, shape[n_batch:end]), shape)


def _sliced(mat: BCOO, data: Array, indices: Array, kept: Array, shape: tuple[int, ...]) -> BCOO:
    """Return the slice of `mat` with these elements, of which those that are not `kept` are outside."""
    sparse_shape = shape[mat.n_batch : mat.n_batch + mat.n_sparse]
    data, indices = drop(data, indices, kept, sparse_shape)
    result = BCOO((data, indices), shape=shape, unique_indices=False)
    capacity = math.prod(sparse_shape)
    return bcoo_sum_duplicates(result, nse=capacity) if capacity < mat.nse else result
