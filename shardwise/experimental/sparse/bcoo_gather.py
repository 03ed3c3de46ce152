"""Gathers from BCOO arrays: one dynamic slice for each index vector, as a batch dim of the result."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.bcoo_layout import bcoo_update_layout
from shardwise.experimental.sparse.bcoo_shape import bcoo_squeeze, bcoo_transpose
from shardwise.experimental.sparse.bcoo_slice import bcoo_dynamic_slice
from shardwise.experimental.sparse.coordinates import drop, map_batch
from shardwise.lax.indexing import GatherDimensionNumbers, GatherScatterMode
from shardwise.typing import ArrayLike


def bcoo_gather(
    operand: BCOO,
    start_indices: ArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: ArrayLike | None = None,
) -> BCOO:
    """Gather slices of a sparse array, as `lax.gather` does of a dense one.

    Args:
        operand: the sparse array.
        start_indices: integers, whose last dim holds the index vectors.
        dimension_numbers: which dims of the operand and of the result the indices and slices refer to.
        slice_sizes: the size of each slice along every dim of the operand.
        unique_indices, indices_are_sorted: not used.
        mode: what to do with a slice that is not inside: "clip" moves it inside; "fill" returns zeros, as None does.
        fill_value: must be None or 0.

    Returns:
        The sparse array. The dims of `start_indices` without the last are batch dims if they lead the result.

    Raises:
        NotImplementedError: if `fill_value` is not 0, or the dimension numbers have batching dims.

    Example:
        >>> dims = jax.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
        >>> rows = jax.experimental.sparse.bcoo_gather(jax.experimental.sparse.eye(3), jnp.array([[2]]), dims, (1, 3))
        >>> rows.todense()
        Array([[0., 0., 1.]], dtype=float32)
    """
    numbers = dimension_numbers
    if fill_value not in (None, 0):
        raise NotImplementedError(f"bcoo_gather: fill_value must be None or 0, not {fill_value}")
    if numbers.operand_batching_dims or numbers.start_indices_batching_dims:
        raise NotImplementedError("bcoo_gather: batching dims are not supported; use `vmap`")
    fills = GatherScatterMode.from_any(mode) == GatherScatterMode.FILL_OR_DROP
    return gather_slices(
        operand,
        as_operand(start_indices, "bcoo_gather"),
        tuple(numbers.start_index_map),
        tuple(numbers.collapsed_slice_dims),
        tuple(numbers.offset_dims),
        tuple(map(operator.index, slice_sizes)),
        fills,
    )


def gather_slices(
    mat: BCOO,
    starts: Array,
    mapped: tuple[int, ...],
    collapsed: tuple[int, ...],
    offset_dims: tuple[int, ...],
    sizes: tuple[int, ...],
    fills: bool,
) -> BCOO:
    """Return the slices that start at the index vectors `starts`.

    Args:
        mat: the sparse array.
        starts: integers, whose last dim holds the index vectors.
        mapped: the dim of `mat` of each component of an index vector.
        collapsed: the dims of `mat` that the result does not have.
        offset_dims: the dims of the result that come from `mat`.
        sizes: the sizes of a slice.
        fills: whether a slice that is not inside is zero; otherwise it is moved inside.
    """
    limits = np.array([mat.shape[dim] - sizes[dim] for dim in mapped], int)

    def take(vector: Array) -> tuple[Any, Any]:
        inside = ((vector >= 0) & (vector <= limits)).all()
        clipped = jnp.clip(vector, 0, limits)
        position = {dim: clipped[index] for index, dim in enumerate(mapped)}
        zero = jnp.zeros((), clipped.dtype)
        part = bcoo_dynamic_slice(mat, [position.get(dim, zero) for dim in range(mat.ndim)], sizes)
        part = bcoo_squeeze(part, dimensions=collapsed)
        if fills:
            kept = jnp.broadcast_to(inside, part.indices.shape[:-1])
            return drop(part.data, part.indices, kept, part.sparse_shape)
        return part.data, part.indices

    lead = starts.shape[:-1]
    data, indices = map_batch(take, len(lead))(starts)
    shape = (*lead, *(size for dim, size in enumerate(sizes) if dim not in collapsed))
    result = BCOO((data, indices), shape=shape)
    lead_dims = [dim for dim in range(len(shape)) if dim not in offset_dims]
    order = [0] * len(shape)
    for source, dim in enumerate((*lead_dims, *offset_dims)):
        order[dim] = source
    if order != sorted(order):  # a slice's dims precede those of the indices, which cannot stay batch dims
        result = bcoo_update_layout(result, n_batch=0, n_dense=0)
    return bcoo_transpose(result, permutation=order)
