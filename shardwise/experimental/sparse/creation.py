"""Sparse arrays from their shape: empty, eye."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.bcoo import BCOO, split_shape
from shardwise.experimental.sparse.bcoo_conversion import bcoo_fromdense
from shardwise.experimental.sparse.bcsr import BCSR
from shardwise.experimental.sparse.coo import COO
from shardwise.experimental.sparse.csr import CSC, CSR
from shardwise.typing import DTypeLike

FORMATS: dict[str, type[BCOO | BCSR | COO | CSR | CSC]] = {
    "bcoo": BCOO,
    "bcsr": BCSR,
    "coo": COO,
    "csr": CSR,
    "csc": CSC,
}


def empty(
    shape: Sequence[int],
    dtype: DTypeLike | None = None,
    index_dtype: DTypeLike = "int32",
    sparse_format: str = "bcoo",
    **kwds: Any,
) -> JAXSparse:
    """Return a sparse array of zeros, which stores no elements.

    Args:
        shape: the shape of the array.
        dtype: the dtype of the elements; float32 if None.
        index_dtype: the dtype of the indices.
        sparse_format: "bcoo", "bcsr", "coo", "csr" or "csc".
        **kwds: `n_batch`, `n_dense` and `nse`, the number of stored elements, all of which are padding; for BCOO and
            BCSR.

    Returns:
        The sparse array.

    Raises:
        ValueError: if the format is unknown, or the shape does not suit it.

    Example:
        >>> jax.experimental.sparse.empty((3, 4))
        BCOO(float32[3, 4], nse=0)
    """
    return _format_class("empty", sparse_format)._empty(shape, dtype=dtype, index_dtype=index_dtype, **kwds)


def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    index_dtype: DTypeLike = "int32",
    sparse_format: str = "bcoo",
    **kwds: Any,
) -> JAXSparse:
    """Return a sparse matrix with ones on a diagonal.

    Args:
        N: the number of rows.
        M: the number of columns; `N` if None.
        k: the index of the diagonal: 0 is the main one, positive ones are above it.
        dtype: the dtype of the elements; float32 if None.
        index_dtype: the dtype of the indices.
        sparse_format: "bcoo", "bcsr", "coo", "csr" or "csc".
        **kwds: `n_batch` and `n_dense`, for BCOO.

    Returns:
        The sparse matrix.

    Raises:
        ValueError: if the format is unknown.

    Example:
        >>> jax.experimental.sparse.eye(3)
        BCOO(float32[3, 3], nse=3)
    """
    columns = N if M is None else M
    return _format_class("eye", sparse_format)._eye(N, columns, k, dtype=dtype, index_dtype=index_dtype, **kwds)


def _format_class(name: str, sparse_format: str) -> Any:
    if sparse_format not in FORMATS:
        raise ValueError(f"{name}: sparse_format must be one of {', '.join(FORMATS)}, not {sparse_format!r}")
    return FORMATS[sparse_format]


def diagonal_matrix(
    rows: int, columns: int, k: int, dtype: DTypeLike | None, index_dtype: DTypeLike, n_batch: int, n_dense: int
) -> BCOO:
    """Return a matrix with ones on the k-th diagonal, in BCOO format."""
    shape = (rows, columns)
    split_shape("eye", shape, n_batch, n_dense)
    first_row, first_column = max(0, -k), max(0, k)
    count = max(0, min(rows - first_row, columns - first_column))
    if n_dense or n_batch == 2:  # all entries are stored
        nse = count if n_batch == 0 and n_dense == 1 else min(count, 1)
        return bcoo_fromdense(
            jnp.eye(rows, columns, k, dtype), nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype
        )
    if n_batch == 1:  # every row stores one element, or padding
        column = np.arange(rows) + k
        is_stored = (column >= 0) & (column < columns)
        nse = min(count, 1)
        data = jnp.asarray(is_stored[:, None][:, :nse]).astype(jnp.ones((), dtype).dtype)
        indices = jnp.asarray(np.where(is_stored, column, columns)[:, None, None][:, :nse], index_dtype)
    else:
        diagonal = jnp.arange(count, dtype=index_dtype)
        data = jnp.ones(count, dtype)
        indices = jnp.stack([diagonal + first_row, diagonal + first_column], axis=-1)
    return BCOO((data, indices), shape=shape, indices_sorted=True, unique_indices=True)
