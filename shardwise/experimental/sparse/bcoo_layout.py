"""Layouts of BCOO arrays: order, duplicates, and which dims are batch, sparse and dense dims."""

import math
import warnings
from functools import partial

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import concrete_value
from shardwise.experimental.sparse.bcoo import BCOO, split_shape
from shardwise.experimental.sparse.coordinates import (
    drop,
    is_first_of_equals,
    is_inside,
    lexicographic_order,
    map_batch,
)
from shardwise.experimental.sparse.efficiency import SparseEfficiencyError, SparseEfficiencyWarning


def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """Sort the elements by their coordinates.

    Args:
        mat: the sparse array.

    Returns:
        The same array; its coordinates are in lexicographic order.

    Raises:
        AttributeError: if `mat` is not a BCOO.

    Example:
        >>> mat = jax.experimental.sparse.BCOO((jnp.array([1.0, 2.0]), jnp.array([[3], [0]])), shape=(4,))
        >>> jax.experimental.sparse.bcoo_sort_indices(mat).data
        Array([2., 1.], dtype=float32)
    """
    if mat.indices_sorted:
        return mat
    mat = mat.expand_batch()
    data, indices = map_batch(_sort, mat.n_batch)(mat.data, mat.indices)
    return BCOO((data, indices), shape=mat.shape, indices_sorted=True, unique_indices=mat.unique_indices)


def _sort(data: Array, indices: Array) -> tuple[Array, Array]:
    order = lexicographic_order(indices)
    return data[order], indices[order]


def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None) -> BCOO:
    """Add elements with the same coordinates, and sort.

    Args:
        mat: the sparse array.
        nse: the number of elements to store per batch element. It must be given under `jit`; None computes the smallest
            one. If it is larger, the array is padded; if it is smaller, the last elements are dropped.

    Returns:
        The array with sorted, unique coordinates.

    Raises:
        ConcretizationTypeError: if `nse` is None and the coordinates are traced.

    Example:
        >>> mat = jax.experimental.sparse.BCOO((jnp.array([1.0, 2.0]), jnp.array([[3], [3]])), shape=(4,))
        >>> jax.experimental.sparse.bcoo_sum_duplicates(mat)
        BCOO(float32[4], nse=1)
    """
    return sum_duplicates(mat, nse, remove_zeros=False)


def sum_duplicates(mat: BCOO, nse: int | None, remove_zeros: bool) -> BCOO:
    """Add elements with the same coordinates, and sort; see `bcoo_sum_duplicates`.

    With `remove_zeros`, stored zeros count as padding if `nse` is None.
    """
    mat = mat.expand_batch()
    n_batch, sparse_shape = mat.n_batch, mat.sparse_shape
    kept = is_inside(mat.indices, sparse_shape)
    if remove_zeros and nse is None:
        kept &= (mat.data != 0).any(tuple(range(n_batch + 1, mat.data.ndim)))
    data, indices = drop(mat.data, mat.indices, kept, sparse_shape)
    data, indices, is_first = map_batch(_sorted_with_firsts, n_batch)(data, indices)
    if nse is None:
        counts = (is_first & is_inside(indices, sparse_shape)).sum(-1)
        unknown = "the number of its distinct elements is unknown: pass `nse`"
        nse = int(concrete_value("bcoo_sum_duplicates", counts, unknown).max(initial=0))
    merge = partial(_merge_equals, nse=nse, sparse_shape=sparse_shape)
    data, indices = map_batch(merge, n_batch)(data, indices, is_first)
    return BCOO((data, indices), shape=mat.shape, indices_sorted=True, unique_indices=True)


def _sorted_with_firsts(data: Array, indices: Array) -> tuple[Array, Array, Array]:
    data, indices = _sort(data, indices)
    return data, indices, is_first_of_equals(indices)


def _merge_equals(
    data: Array, indices: Array, is_first: Array, nse: int, sparse_shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """Add runs of equal coordinates, into `nse` elements."""
    run = jnp.cumsum(is_first) - 1
    outside = jnp.broadcast_to(jnp.asarray(sparse_shape, indices.dtype), (nse, len(sparse_shape)))
    merged = jnp.zeros((nse, *data.shape[1:]), data.dtype).at[run].add(data, mode="drop")
    return merged, outside.at[run].set(indices, mode="drop")


def bcoo_update_layout(
    mat: BCOO, *, n_batch: int | None = None, n_dense: int | None = None, on_inefficient: str | None = "error"
) -> BCOO:
    """Change which dims of a sparse array are batch, sparse and dense dims.

    Fewer batch or dense dims cost more coordinates. More of them store many zeros, unless the new batch or dense dims
    have size 1.

    Args:
        mat: the sparse array.
        n_batch: the new number of batch dims; None keeps it.
        n_dense: the new number of dense dims; None keeps it.
        on_inefficient: "error" raises, "warn" warns and None accepts a layout that stores many zeros.

    Returns:
        The array in the new layout.

    Raises:
        SparseEfficiencyError: if the new layout stores many zeros, and `on_inefficient` is "error".
        ValueError: if the rank of the array is too small, or `on_inefficient` is unknown.

    Example:
        >>> mat = jax.experimental.sparse.BCOO.fromdense(jnp.eye(3), n_batch=1)
        >>> jax.experimental.sparse.bcoo_update_layout(mat, n_batch=0)
        BCOO(float32[3, 3], nse=3)
    """
    n_batch = mat.n_batch if n_batch is None else n_batch
    n_dense = mat.n_dense if n_dense is None else n_dense
    if on_inefficient not in ("error", "warn", None):
        raise ValueError(f"bcoo_update_layout: on_inefficient must be 'error', 'warn' or None, not {on_inefficient!r}")
    split_shape("bcoo_update_layout", mat.shape, n_batch, n_dense)
    _report_inefficiency(mat, n_batch, n_dense, on_inefficient)
    if n_dense < mat.n_dense:
        mat = _dense_to_sparse(mat, n_dense)
    if n_batch < mat.n_batch:
        mat = _batch_to_sparse(mat, n_batch)
    if n_dense > mat.n_dense:
        mat = _sparse_to_dense(mat, n_dense)
    if n_batch > mat.n_batch:
        mat = _sparse_to_batch(mat, n_batch)
    return mat


def _report_inefficiency(mat: BCOO, n_batch: int, n_dense: int, on_inefficient: str | None) -> None:
    """Raise or warn if the new batch or dense dims have more than one entry."""
    new_batch = mat.shape[mat.n_batch : n_batch]
    new_dense = mat.shape[mat.ndim - n_dense : mat.ndim - mat.n_dense]
    changes = []
    if math.prod(new_batch) > 1:
        changes.append(f"n_batch from {mat.n_batch} to {n_batch}")
    if math.prod(new_dense) > 1:
        changes.append(f"n_dense from {mat.n_dense} to {n_dense}")
    if not changes or on_inefficient is None:
        return
    text = (
        f"bcoo_update_layout: for an array of shape {mat.shape}, increasing {' and '.join(changes)} stores many zeros. "
        "If this is intended, pass on_inefficient=None."
    )
    if on_inefficient == "error":
        raise SparseEfficiencyError(text)
    warnings.warn(text, SparseEfficiencyWarning, stacklevel=3)


def _batch_to_sparse(mat: BCOO, n_batch: int) -> BCOO:
    """Turn the last batch dims into sparse dims."""
    mat = mat.expand_batch()
    batch, moved = mat.batch_shape[:n_batch], mat.batch_shape[n_batch:]
    stored = (*mat.batch_shape, mat.nse)
    positions = [
        jnp.broadcast_to(jnp.arange(size, dtype=mat.indices.dtype).reshape(size, *(1,) * (len(moved) - dim)), stored)
        for dim, size in enumerate(moved)
    ]
    indices = jnp.concatenate([jnp.stack(positions, axis=-1), mat.indices], axis=-1)
    indices = _with_padding_outside(indices, mat)
    nse = math.prod(moved) * mat.nse
    return BCOO(
        (
            mat.data.reshape(*batch, nse, *mat.dense_shape),
            indices.reshape(*batch, nse, indices.shape[-1]),
        ),
        shape=mat.shape,
        indices_sorted=False,
        unique_indices=mat.unique_indices,
    )


def _with_padding_outside(indices: Array, mat: BCOO) -> Array:
    """Move the new coordinates of padding outside too, so that no op can mistake it for an element."""
    kept = is_inside(mat.indices, mat.sparse_shape)
    outside = jnp.asarray(mat.shape[mat.n_batch + mat.n_sparse - indices.shape[-1] : mat.n_batch + mat.n_sparse])
    return jnp.where(kept[..., None], indices, outside.astype(indices.dtype))


def _dense_to_sparse(mat: BCOO, n_dense: int) -> BCOO:
    """Turn the first dense dims into sparse dims: each entry of a block becomes an element."""
    mat = mat.expand_batch()
    end = mat.n_dense - n_dense
    moved, rest = mat.dense_shape[:end], mat.dense_shape[end:]
    entries = jnp.stack([x.reshape(-1) for x in jnp.meshgrid(*map(np.arange, moved), indexing="ij")], axis=-1).astype(
        mat.indices.dtype
    )
    stored = (*mat.batch_shape, mat.nse, math.prod(moved))
    indices = jnp.concatenate(
        [
            jnp.broadcast_to(mat.indices[..., None, :], (*stored, mat.n_sparse)),
            jnp.broadcast_to(entries, (*stored, len(moved))),
        ],
        axis=-1,
    )
    nse = stored[-2] * stored[-1]
    return BCOO(
        (
            mat.data.reshape(*mat.batch_shape, nse, *rest),
            indices.reshape(*mat.batch_shape, nse, mat.n_sparse + len(moved)),
        ),
        shape=mat.shape,
        indices_sorted=mat.indices_sorted,
        unique_indices=mat.unique_indices,
    )


def _sparse_to_batch(mat: BCOO, n_batch: int) -> BCOO:
    """Turn the first sparse dims into batch dims: in each batch element, the elements of the others are padding."""
    mat = mat.expand_batch()
    count = n_batch - mat.n_batch
    moved, rest = mat.sparse_shape[:count], mat.sparse_shape[count:]

    def split(data: Array, indices: Array) -> tuple[Array, Array]:
        entries = jnp.stack(jnp.meshgrid(*map(np.arange, moved), indexing="ij"), axis=-1).astype(indices.dtype)
        own = (indices[:, :count] == entries[..., None, :]).all(-1)
        stored = (*moved, indices.shape[0])
        if not rest:  # there are no coordinates outside: the sum of the elements is the only one
            spread = jnp.where(own.reshape(*stored, *(1,) * (data.ndim - 1)), data, jnp.zeros((), data.dtype))
            return spread, jnp.zeros((*stored, 0), indices.dtype)
        return drop(
            jnp.broadcast_to(data, (*moved, *data.shape)),
            jnp.broadcast_to(indices[:, count:], (*stored, len(rest))),
            own,
            rest,
        )

    data, indices = map_batch(split, mat.n_batch)(mat.data, mat.indices)
    return BCOO((data, indices), shape=mat.shape)


def _sparse_to_dense(mat: BCOO, n_dense: int) -> BCOO:
    """Turn the last sparse dims into dense dims: each element becomes a block with one entry."""
    mat = mat.expand_batch()
    kept = mat.n_sparse - (n_dense - mat.n_dense)
    moved = mat.sparse_shape[kept:]

    def widen(data: Array, indices: Array) -> tuple[Array, Array]:
        inside = is_inside(indices, mat.sparse_shape)
        data, indices = drop(data, indices, inside, mat.sparse_shape)
        blocks = jnp.zeros((mat.nse, *moved, *data.shape[1:]), data.dtype)
        entries = tuple(indices[:, dim] for dim in range(kept, mat.n_sparse))
        return blocks.at[(jnp.arange(mat.nse), *entries)].set(data, mode="drop"), indices[:, :kept]

    data, indices = map_batch(widen, mat.n_batch)(mat.data, mat.indices)
    return BCOO((data, indices), shape=mat.shape)
