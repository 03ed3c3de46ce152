"""jax.experimental.sparse.linalg: a direct solver of sparse linear systems, and the largest eigenvalues of matrices."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.callbacks.callback import pure_callback
from shardwise.api.control import while_loop
from shardwise.base.lazy import lazy_module, set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.csr import CSR
from shardwise.lax.solve import custom_linear_solve
from shardwise.typing import ArrayLike

__all__ = ["lobpcg_standard", "spsolve"]

_scipy_sparse = lazy_module("scipy.sparse")
_scipy_linalg = lazy_module("scipy.sparse.linalg")
Function = Callable[[Any], Any]


def spsolve(
    data: ArrayLike, indices: ArrayLike, indptr: ArrayLike, b: ArrayLike, tol: float = 1e-6, reorder: int = 1
) -> Array:
    """Solve a sparse linear system by a direct method.

    The host solves it, by SuperLU of scipy; the matrix is not converted to a dense one. Derivatives with respect to
    `data` and `b` solve one more system, with the matrix or its transpose. Under `vmap`, systems are solved one after
    the other.

    Args:
        data: the elements of the matrix, in compressed sparse row format.
        indices: their columns.
        indptr: the index of the first element of each row, and of the end.
        b: the right-hand side, a vector.
        tol: accepted as in JAX; SuperLU does not use it.
        reorder: 0 keeps the order of the columns; 1, 2 and 3 choose one with less fill-in.

    Returns:
        The solution. It is NaN if the matrix is singular.

    Raises:
        ValueError: if the shapes do not match, or `reorder` is not 0, 1, 2 or 3.

    Example:
        >>> matrix = jax.experimental.sparse.CSR.fromdense(jnp.array([[2.0, 1.0], [0.0, 4.0]]))
        >>> spsolve = jax.experimental.sparse.linalg.spsolve
        >>> spsolve(matrix.data, matrix.indices, matrix.indptr, jnp.array([3.0, 4.0]))
        Array([1., 1.], dtype=float32)
    """
    right = as_inexact(b, "spsolve")
    elements, columns, pointers = (as_operand(x, "spsolve") for x in (data, indices, indptr))
    if right.ndim != 1:
        raise ValueError(f"spsolve: the right-hand side must be a vector, not of shape {right.shape}")
    if reorder not in range(4):
        raise ValueError(f"spsolve: reorder must be 0, 1, 2 or 3, not {reorder}")
    dtype = jnp.promote_types(elements.dtype, right.dtype)
    size = right.shape[0]
    matrix = CSR((elements.astype(dtype), columns, pointers), shape=(size, size))
    permutation = "COLAMD" if reorder else "NATURAL"

    def solve(transposed: bool, matvec: Function, right: Array) -> Array:
        return pure_callback(
            partial(_solve_on_host, transposed, permutation),
            ShapeDtypeStruct((size,), dtype),
            *(matrix.data, columns, pointers, right),
            vmap_method="sequential",
        )

    return custom_linear_solve(lambda x: matrix @ x, right.astype(dtype), partial(solve, False), partial(solve, True))


def _solve_on_host(transposed: bool, permutation: str, data: Any, indices: Any, indptr: Any, b: Any) -> Any:
    size = len(b)
    matrix = _scipy_sparse.csr_matrix(tuple(map(np.asarray, (data, indices, indptr))), shape=(size, size)).tocsc()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _scipy_linalg.MatrixRankWarning)  # the solution is NaN
        solution = _scipy_linalg.spsolve(
            matrix.T.tocsc() if transposed else matrix, np.asarray(b), permc_spec=permutation
        )
    return np.asarray(solution, b.dtype)


class _Iterate(NamedTuple):
    """The state of an iteration of LOBPCG.

    Attributes:
        vectors: the approximate eigenvectors, orthonormal columns.
        images: their products with the matrix.
        values: the approximate eigenvalues, in descending order.
        directions: the difference between the vectors and the previous ones, in the span of the last basis.
        count: the number of iterations.
        is_converged: whether all residuals are below the tolerance.
    """

    vectors: Any
    images: Any
    values: Any
    directions: Any
    count: Any
    is_converged: Any


def lobpcg_standard(
    A: ArrayLike | JAXSparse | Function, X: ArrayLike, m: int = 100, tol: ArrayLike | None = None
) -> tuple[Array, Array, Array]:
    """Compute the largest eigenvalues of a Hermitian matrix by LOBPCG (Knyazev 2001), without a preconditioner.

    Every iteration minimizes over the span of the current vectors, their residuals, and the last search directions.

    Args:
        A: the Hermitian matrix of shape (n, n), dense or sparse, or a function that multiplies an (n, k) array by it.
        X: the vectors to start with, of shape (n, k), where 0 < 5 k < n. They must be linearly independent.
        m: the limit of iterations.
        tol: the iteration ends when every residual norm is less than `10 n tol (value + norm of the image)`. None is
            the rounding error of the dtype.

    Returns:
        The k largest eigenvalues in descending order, the eigenvectors as columns, and the number of iterations.

    Raises:
        ValueError: if the shapes or dtypes of `A` and `X` do not match, or `X` has too many columns, or none.

    Example:
        >>> matrix = jnp.diag(jnp.arange(1.0, 21.0))
        >>> values, vectors, _ = jax.experimental.sparse.linalg.lobpcg_standard(matrix, jnp.eye(20, 2) + 0.1)
        >>> values.round(2)
        Array([20., 19.], dtype=float32)
    """
    start = as_operand(X, "lobpcg_standard")
    multiply = _checked_product(A, start)
    size, count = start.shape
    tolerance = jnp.finfo(start.dtype).eps if tol is None else tol

    def measured(vectors: Array, images: Array, values: Array, directions: Array, count: Any) -> _Iterate:
        residuals = jnp.linalg.norm(images - vectors * values, axis=0)
        bound = 10 * size * tolerance * (values + jnp.linalg.norm(images, axis=0))
        return _Iterate(vectors, images, values, directions, count, (residuals < bound).all())

    def step(state: _Iterate) -> _Iterate:
        vectors = state.vectors
        residuals = state.images - vectors * state.values
        new = _orthonormal_complement(vectors, residuals)
        old = _orthonormal_complement(jnp.concatenate([vectors, new], axis=1), state.directions)
        basis = jnp.concatenate([vectors, new, old], axis=1)
        images = multiply(basis)
        values, weights = _largest_ritz_pairs(basis, images, count)
        directions = basis[:, count:] @ weights[count:]
        return measured(basis @ weights, images @ weights, values, directions, state.count + 1)

    vectors = _orthonormal_complement(jnp.zeros((size, 0), start.dtype), start)
    images = multiply(vectors)
    values, weights = _largest_ritz_pairs(vectors, images, count)
    first = measured(vectors @ weights, images @ weights, values, jnp.zeros_like(start), jnp.int32(0))
    last = while_loop(lambda state: ~state.is_converged & (state.count < m), step, first)
    return last.values, last.vectors, last.count


def _checked_product(A: Any, start: Array) -> Function:
    """Return the function that multiplies by the matrix, after a check of shapes and dtypes."""
    if start.ndim != 2:
        raise ValueError(f"lobpcg_standard: X must be a matrix, not of shape {start.shape}")
    size, count = start.shape
    if count == 0 or 5 * count >= size:
        raise ValueError(f"lobpcg_standard: X has {count} columns and {size} rows, but needs 0 < 5 * columns < rows")
    if not jnp.issubdtype(start.dtype, np.inexact):
        raise ValueError(f"lobpcg_standard: X must be of a float dtype, not {start.dtype}")
    if callable(A):
        image = A(start)
        if (image.shape, image.dtype) != (start.shape, start.dtype):
            raise ValueError(
                f"lobpcg_standard: A must return an array like its argument, of shape {start.shape} and dtype "
                f"{start.dtype}, not of shape {image.shape} and dtype {image.dtype}"
            )
        return A
    matrix = A if isinstance(A, JAXSparse) else as_operand(A, "lobpcg_standard")
    if matrix.shape != (size, size) or matrix.dtype != start.dtype:
        raise ValueError(
            f"lobpcg_standard: A must have shape {(size, size)} and dtype {start.dtype} like X, not {matrix.shape} and "
            f"{matrix.dtype}"
        )
    return lambda x: matrix @ x


def _adjoint(x: Array) -> Array:
    return x.conj().T


def _orthonormal_complement(basis: Array, vectors: Array) -> Array:
    """Return an orthonormal basis of the span of `vectors` that is orthogonal to `basis`.

    Directions that are lost to rounding are columns of zeros. One pass is not enough: what a projection leaves of a
    vector close to the basis is mostly rounding errors.
    """
    for _ in range(2):
        vectors = vectors - basis @ (_adjoint(basis) @ vectors)
        vectors = _orthonormalized(vectors)
    return vectors


def _orthonormalized(vectors: Array) -> Array:
    """Return an orthonormal basis of the span of columns, by eigenvectors of the Gram matrix (Stathopoulos 2002)."""
    norms = jnp.linalg.norm(vectors, axis=0)
    vectors = vectors / jnp.where(norms == 0, 1, norms)
    values, rotation = jnp.linalg.eigh(_adjoint(vectors) @ vectors)
    threshold = 10 * vectors.shape[1] * jnp.finfo(vectors.dtype).eps
    is_kept = values > threshold * jnp.maximum(values.max(), 1)
    scale = jnp.where(is_kept, 1 / jnp.sqrt(jnp.where(is_kept, values, 1)), 0)
    return vectors @ (rotation * scale).astype(vectors.dtype)


def _largest_ritz_pairs(basis: Array, images: Array, count: int) -> tuple[Array, Array]:
    """Return the largest eigenvalues of the matrix in the span of `basis`, and the weights of their eigenvectors.

    Columns of zeros in the basis have eigenvalue 0, which must not be taken for one of the matrix.
    """
    projected = _adjoint(basis) @ images
    projected = (projected + _adjoint(projected)) / 2
    is_missing = jnp.linalg.norm(basis, axis=0) < 0.5
    below_all = -2 * jnp.linalg.norm(projected) - 1
    values, weights = jnp.linalg.eigh(projected + jnp.diag(jnp.where(is_missing, below_all, 0)).astype(basis.dtype))
    return values[::-1][:count], weights[:, ::-1][:, :count]


set_public_names(__name__, __all__)
