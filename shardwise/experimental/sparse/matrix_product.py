"""Products of the formats without batch dims, COO, CSR and CSC, with dense vectors and matrices."""

from typing import Any

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.bcoo_dot import bcoo_dot_general
from shardwise.typing import ArrayLike


def multiply_vector_or_matrix(mat: JAXSparse, other: ArrayLike | JAXSparse) -> Array:
    """Return `mat @ other` for a dense vector or matrix."""
    name = type(mat).__name__
    if isinstance(other, JAXSparse):
        raise NotImplementedError(
            f"{name}: a product with a sparse array is not supported; `to_bcoo()` converts both to BCOO, which has it"
        )
    dense = as_operand(other, name)
    if dense.ndim not in (1, 2):
        raise NotImplementedError(f"{name}: the other factor must be a vector or a matrix, not of shape {dense.shape}")
    return multiply(name, mat, dense, dense.ndim, transpose=False)


def multiply(name: str, mat: JAXSparse, other: ArrayLike | JAXSparse, ndim: int, *, transpose: bool) -> Array:
    """Return `mat @ other` or `mat.T @ other`, for a dense operand of rank `ndim`. `name` is for errors."""
    dense = as_operand(other, name)
    contracted = 0 if transpose else 1
    if dense.ndim != ndim or dense.shape[0] != mat.shape[contracted]:
        expected = f"({mat.shape[contracted]},)" if ndim == 1 else f"({mat.shape[contracted]}, n)"
        raise TypeError(f"{name}: {mat} needs an operand of shape {expected}, not {dense.shape}")
    result = bcoo_dot_general(mat.to_bcoo(), dense, dimension_numbers=(((contracted,), (0,)), ((), ())))
    assert isinstance(result, Array)  # only the product of two sparse arrays is sparse
    return result


def check_matrix_shape(name: str, shape: tuple[int, ...]) -> None:
    """Raise if a shape is not that of a matrix."""
    if len(shape) != 2:
        raise ValueError(f"{name}: only matrices are supported, not arrays of shape {shape}; use BCOO")


def check_transpose_axes(name: str, axes: Any) -> None:
    """Raise if the axes of a transpose are given: the formats have two dims, which it exchanges."""
    if axes is not None:
        raise NotImplementedError(f"{name}.transpose: axes must be None, which exchanges rows and columns")
