"""Matrix factorizations and linear solvers, close to LAPACK.

Dims before the last two are batch dims. If they are sharded, each device works on its own matrices. Matrices are f32,
f64, c64 or c128. The results are NaN for a matrix that has no such factorization.
"""

import enum
import operator
from collections.abc import Callable
from typing import Any, Literal, overload

from shardwise.api.control import fori_loop
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.matrices import as_matrices
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    compiled_function,
    compiled_list_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.linalg.batched import INDEX, batched_matmul, lower_triangle, matrix_transpose
from shardwise.compiler.ops.linalg.eigen import Eig, Eigh
from shardwise.compiler.ops.linalg.hessenberg_schur import Hessenberg, Schur, Tridiagonal
from shardwise.compiler.ops.linalg.householder import HouseholderProduct, Ormqr, Qr
from shardwise.compiler.ops.linalg.lu import Lu, PivotsToPermutation
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.linalg.triangular import Cholesky, TriangularSolve, TridiagonalSolve, symmetrize
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.lax import qdwh_polar
from shardwise.lax.indexing import dynamic_index_in_dim, dynamic_update_index_in_dim
from shardwise.typing import ArrayLike

qdwh = qdwh_polar.qdwh


class EigImplementation(enum.Enum):
    """The library for eigenvalues of general matrices. Only LAPACK is supported."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


class EighImplementation(enum.Enum):
    """The algorithm for eigenvalues of Hermitian matrices. Only QR is supported."""

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


class SvdAlgorithm(enum.Enum):
    """The algorithm for singular values. Divide and conquer, the default, and QR are supported."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


_MATRICES = Family(
    {"x": "matrices."}, raises=["TypeError: if `x` has fewer than 2 dims, or the dtype is not supported."]
)
_SQUARE_MATRICES = Family(
    {"x": "square matrices.", "a": "square matrices."},
    raises=["TypeError: if the matrices are not square, or the dtype is not supported."],
)


@documented(_SQUARE_MATRICES)
def cholesky(x: ArrayLike, *, symmetrize_input: bool = True) -> Array:
    """Compute the Cholesky factor L of `x = L L*`, a lower triangular matrix.

    Args:
        x: Hermitian positive definite matrices.
        symmetrize_input: replace `x` by the mean of `x` and its adjoint. Otherwise only its lower triangle is read.

    Returns:
        The factors. They are NaN for matrices that are not positive definite.

    Example:
        >>> lax.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
        Array([[2., 0.],
               [1., 3.]], dtype=float32)
    """
    return _cholesky(x, symmetrize_input=bool(symmetrize_input))


@compiled_function
def _cholesky(x: ArrayLike, *, symmetrize_input: bool) -> Any:
    x = as_inexact(x, "cholesky")
    return Cholesky()(symmetrize(x) if symmetrize_input else x)


def cholesky_update(r_matrix: ArrayLike, w_vector: ArrayLike) -> Array:
    """Compute the upper Cholesky factor of `R* R + w w*` from `R` and `w` in O(n²) operations.

    Args:
        r_matrix: the upper triangular factor R, one real matrix.
        w_vector: the vector w, of the dtype of R.

    Returns:
        The updated factor.

    Raises:
        TypeError: if R is not a square real matrix, or w does not have its size and dtype.

    Example:
        >>> lax.linalg.cholesky_update(jnp.array([[3.0, 1.0], [0.0, 2.0]]), jnp.array([4.0, 3.0]))
        Array([[5.      , 3.      ],
               [0.      , 2.236068]], dtype=float32)
    """
    r_type, w_type = type_of(r_matrix, "cholesky_update"), type_of(w_vector, "cholesky_update")
    square = r_type.ndim == 2 and r_type.shape == w_type.shape * 2
    if not square or r_type.dtype != w_type.dtype or not is_float(r_type.dtype):
        raise TypeError(
            "cholesky_update: needs a square matrix and a vector with as many elements as it has rows, of one float "
            f"dtype, not {r_type} and {w_type}"
        )
    return _cholesky_update(r_matrix, w_vector)


@compiled_function
def _cholesky_update(r: ArrayLike, w: ArrayLike) -> Any:
    """Apply a Givens rotation for each row, which zeroes the element of w below the diagonal."""
    r, w = as_operand(r), as_operand(w)

    def rotate(i: Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
        r, w = state
        row = dynamic_index_in_dim(r, i, 0, keepdims=False)
        pivot, below = (dynamic_index_in_dim(x, i, 0, keepdims=False) for x in (row, w))
        length = (pivot * pivot + below * below) ** 0.5
        cosine, sine = pivot / length, below / length
        rotated = cosine * row + sine * w
        return dynamic_update_index_in_dim(r, rotated, i, 0), cosine * w - sine * row

    return fori_loop(0, r.type.shape[0], rotate, (r, w))[0]


def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
    implementation: EigImplementation | None = None,
    use_magma: bool | None = None,
) -> list[Array]:
    """Compute the eigenvalues and eigenvectors of general matrices.

    Args:
        x: square matrices.
        compute_left_eigenvectors: return the left eigenvectors.
        compute_right_eigenvectors: return the right eigenvectors.
        enable_eigvec_derivs: make the eigenvectors differentiable. This assumes that the eigenvalues are distinct, and
            that the result does not depend on norm and phase of the eigenvectors.
        implementation: None or `EigImplementation.LAPACK`.
        use_magma: must be None or False.

    Returns:
        A list of complex arrays: the eigenvalues, then the left and the right eigenvectors as columns, as requested.

    Raises:
        TypeError: if the matrices are not square, or the dtype is not supported.
        NotImplementedError: if another implementation is requested, or eigenvectors are differentiated without
            `enable_eigvec_derivs`.

    Example:
        >>> lax.linalg.eig(jnp.array([[1.0, 2.0], [0.0, 3.0]]))[0]
        Array([1.+0.j, 3.+0.j], dtype=complex64)
    """
    if implementation not in (None, EigImplementation.LAPACK) or use_magma:
        raise NotImplementedError(f"eig: only the LAPACK implementation is supported, not {implementation or 'magma'}")
    return _eig(
        x,
        left=bool(compute_left_eigenvectors),
        right=bool(compute_right_eigenvectors),
        differentiable=bool(enable_eigvec_derivs),
    )


@compiled_list_function
def _eig(x: ArrayLike, *, left: bool, right: bool, differentiable: bool) -> list[Any]:
    return list(Eig(left, right, differentiable)(as_operand(x, "eig")))


def eigh(
    x: ArrayLike,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: EighImplementation | None = None,
) -> tuple[Array, Array]:
    """Compute the eigenvectors and eigenvalues of Hermitian matrices.

    Args:
        x: Hermitian matrices.
        lower: read the lower triangle rather than the upper one, if `symmetrize_input` is false.
        symmetrize_input: replace `x` by the mean of `x` and its adjoint. Otherwise only one triangle is read.
        sort_eigenvalues: ignored. The eigenvalues are always in ascending order.
        subset_by_index: the range (start, stop) of the eigenvalues to return. None means all.
        implementation: None or `EighImplementation.QR`.

    Returns:
        A pair: the eigenvectors as columns, and the eigenvalues in ascending order.

    Raises:
        TypeError: if the dtype is not supported.
        ValueError: if the matrices are not square, or `subset_by_index` is out of bounds.
        NotImplementedError: if another implementation is requested.

    Example:
        >>> lax.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]]))[1]
        Array([1., 3.], dtype=float32)
    """
    if implementation not in (None, EighImplementation.QR):
        raise NotImplementedError(f"eigh: only the QR implementation is supported, not {implementation}")
    type = type_of(x, "eigh")
    subset = _checked_subset("eigh", subset_by_index, type.shape[-1] if type.ndim else 0)
    vectors, values = _eigh(x, lower=bool(lower), symmetrize_input=bool(symmetrize_input), subset=subset)
    return vectors, values


@compiled_list_function
def _eigh(x: ArrayLike, *, lower: bool, symmetrize_input: bool, subset: tuple[int, int] | None) -> list[Any]:
    x = as_matrices("eigh", x, square=True)
    results = Eigh(lower)(symmetrize(x) if symmetrize_input else x)
    return [y if subset is None else slice_along(y, y.type.ndim - 1, *subset) for y in results]


def _checked_subset(name: str, subset: tuple[int, int] | None, size: int) -> tuple[int, int] | None:
    """Check the range of `subset_by_index`."""
    if subset is None:
        return None
    start, stop = (operator.index(number) for number in subset)
    if not 0 <= start <= stop <= size:
        raise ValueError(f"{name}: subset_by_index {subset} must be a range within 0 to {size}")
    return start, stop


@documented(_SQUARE_MATRICES)
def hessenberg(a: ArrayLike) -> tuple[Array, Array]:
    """Reduce matrices to upper Hessenberg form by Householder reflections.

    Returns:
        A pair: the Hessenberg matrices, with the reflectors below the first subdiagonal; and the scale factors (taus)
        of the reflectors.

    Example:
        >>> lax.linalg.hessenberg(jnp.array([[1.0, 2.0], [3.0, 4.0]]))[0]
        Array([[1., 2.],
               [3., 4.]], dtype=float32)
    """
    packed, taus = _hessenberg(a)
    return packed, taus


@compiled_list_function
def _hessenberg(a: ArrayLike) -> list[Any]:
    return list(Hessenberg()(as_operand(a, "hessenberg")))


@compiled_function
def householder_product(a: ArrayLike, taus: ArrayLike) -> Array:
    """Compute the product of elementary Householder reflectors `I - tau v v*`: the first columns of Q.

    Args:
        a: matrices with at least as many rows as columns. The vectors v are below their diagonal; on the diagonal they
            are 1.
        taus: the scale factors of the reflectors, of the dtype of `a`.

    Returns:
        Matrices of the shape of `a`, with orthonormal columns.

    Raises:
        TypeError: if `a` has more columns than rows, there are more `taus` than columns, or the dtypes differ or are
            not supported.

    Example:
        >>> lax.linalg.householder_product(jnp.array([[0.0], [1.0]]), jnp.array([1.0]))
        Array([[ 0.],
               [-1.]], dtype=float32)
    """
    return HouseholderProduct()(as_operand(a, "householder_product"), as_operand(taus, "householder_product"))


@documented(_MATRICES)
def lu(x: ArrayLike) -> tuple[Array, Array, Array]:
    """Compute the LU decomposition with partial pivoting: `x[permutation] = L U`.

    Returns:
        A tuple: L and U in one matrix, L below the diagonal and with ones on it; the pivots, by which row i is swapped
        with row `pivots[i]` for each i in turn; and the permutation of the rows.

    Example:
        >>> lax.linalg.lu(jnp.array([[1.0, 2.0], [4.0, 4.0]]))[0]
        Array([[4.  , 4.  ],
               [0.25, 1.  ]], dtype=float32)
    """
    packed, pivots, permutation = _lu(x)
    return packed, pivots, permutation


@compiled_list_function
def _lu(x: ArrayLike) -> list[Any]:
    x = as_operand(x, "lu")
    packed, pivots = Lu()(x)
    return [packed, pivots, PivotsToPermutation(x.type.shape[-2])(pivots)]


def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Array:
    """Convert the pivots of an LU decomposition to a permutation of the rows.

    Args:
        pivots: integers. Row i is swapped with row `pivots[i]`, for each i in turn.
        permutation_size: the number of rows.

    Returns:
        The order of the rows after all swaps.

    Raises:
        TypeError: if there are more pivots than rows.

    Example:
        >>> lax.linalg.lu_pivots_to_permutation(jnp.array([2, 2, 2]), 4)
        Array([2, 0, 1, 3], dtype=int32)
    """
    return _lu_pivots_to_permutation(pivots, size=operator.index(permutation_size))


@compiled_function
def _lu_pivots_to_permutation(pivots: ArrayLike, *, size: int) -> Any:
    return PivotsToPermutation(size)(astype_weak(as_operand(pivots, "lu_pivots_to_permutation"), INDEX, False))


def ormqr(a: ArrayLike, taus: ArrayLike, c: ArrayLike, *, left: bool = True, transpose: bool = False) -> Array:
    """Multiply a matrix by the Q of a QR decomposition that is given by Householder reflectors.

    Args:
        a: the reflectors, as in `householder_product`.
        taus: the scale factors of the reflectors.
        c: the matrices to multiply.
        left: compute `Q c` rather than `c Q`.
        transpose: use the adjoint of Q.

    Returns:
        Matrices of the shape of `c`.

    Raises:
        TypeError: if the shapes do not agree, or the dtypes differ or are not supported.

    Example:
        >>> lax.linalg.ormqr(jnp.array([[0.0], [1.0]]), jnp.array([1.0]), jnp.array([[3.0], [4.0]]))
        Array([[-4.],
               [-3.]], dtype=float32)
    """
    return _ormqr(a, taus, c, left=bool(left), adjoint=bool(transpose))


@compiled_function
def _ormqr(a: ArrayLike, taus: ArrayLike, c: ArrayLike, *, left: bool, adjoint: bool) -> Any:
    return Ormqr(left, adjoint)(*(as_operand(x, "ormqr") for x in (a, taus, c)))


@documented(_MATRICES, raises=["NotImplementedError: if `use_magma` is true."])
def qr(
    x: ArrayLike, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None
) -> tuple[Array, ...]:
    """Compute the QR decomposition `x = Q R`, where Q has orthonormal columns and R is upper triangular.

    Args:
        pivoting: permute the columns of `x` so that the diagonal of R decreases in magnitude.
        full_matrices: return a square Q. Otherwise Q has min(rows, columns) columns.
        use_magma: must be None or False.

    Returns:
        A tuple: Q and R; with `pivoting`, also the permutation p with `x[:, p] = Q R`.

    Example:
        >>> lax.linalg.qr(jnp.array([[3.0, 0.0], [4.0, 5.0]]))[1]
        Array([[-5., -4.],
               [ 0.,  3.]], dtype=float32)
    """
    if use_magma:
        raise NotImplementedError("qr: only the LAPACK implementation is supported, not magma")
    return tuple(_qr(x, full=bool(full_matrices), pivoting=bool(pivoting)))


@compiled_list_function
def _qr(x: ArrayLike, *, full: bool, pivoting: bool) -> list[Any]:
    return list(Qr(full, pivoting)(as_operand(x, "qr")))


@documented(_SQUARE_MATRICES, raises=["NotImplementedError: if sorted eigenvalues are requested."])
def schur(
    x: ArrayLike,
    *,
    compute_schur_vectors: bool = True,
    sort_eig_vals: bool = False,
    select_callable: Callable[..., Any] | None = None,
) -> tuple[Array, ...]:
    """Compute the Schur decomposition `x = Z T Z*`.

    Args:
        compute_schur_vectors: return Z.
        sort_eig_vals: must be False.
        select_callable: must be None.

    Returns:
        A tuple: the upper triangular T, which has 2 × 2 blocks for complex eigenvalues of real matrices; and the
        unitary Z, if requested.

    Example:
        >>> lax.linalg.schur(jnp.array([[1.0, 2.0], [0.0, 3.0]]))[0]
        Array([[1., 2.],
               [0., 3.]], dtype=float32)
    """
    if sort_eig_vals or select_callable is not None:
        raise NotImplementedError(
            "schur: sorting the eigenvalues is not supported; omit sort_eig_vals and select_callable"
        )
    return tuple(_schur(x, vectors=bool(compute_schur_vectors)))


@compiled_list_function
def _schur(x: ArrayLike, *, vectors: bool) -> list[Any]:
    return list(Schur(vectors)(as_operand(x, "schur")))


@overload
def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> tuple[Array, Array, Array]: ...


@overload
def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> Any: ...


def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> Any:
    """Compute the singular value decomposition `x = U diag(s) V*`.

    Args:
        x: matrices.
        full_matrices: return square U and V*. Otherwise they have min(rows, columns) singular vectors.
        compute_uv: return U and V*.
        subset_by_index: the range (start, stop) of the singular values to return. None means all.
        algorithm: None, or a member of `SvdAlgorithm`: DEFAULT, DIVIDE_AND_CONQUER or QR. On GPUs cuSOLVER's routine is
            used in all cases.

    Returns:
        A tuple: U, the singular values in descending order, and V*; without `compute_uv`, the singular values alone.

    Raises:
        TypeError: if `x` has fewer than 2 dims, or the dtype is not supported.
        ValueError: if `subset_by_index` is out of bounds, or given with `full_matrices` and `compute_uv`.
        NotImplementedError: if another algorithm is requested.

    Example:
        >>> lax.linalg.svd(jnp.array([[0.0, 2.0], [3.0, 0.0]]), compute_uv=False)
        Array([3., 2.], dtype=float32)
    """
    if algorithm in (SvdAlgorithm.JACOBI, SvdAlgorithm.POLAR):
        raise NotImplementedError(f"svd: {algorithm} is not supported; use DIVIDE_AND_CONQUER, the default, or QR")
    type = type_of(x, "svd")
    subset = _checked_subset("svd", subset_by_index, min(type.shape[-2:], default=0))
    if subset is not None and full_matrices and compute_uv:
        raise ValueError("svd: full_matrices and subset_by_index cannot both be set")
    routine = "gesvd" if algorithm is SvdAlgorithm.QR else "gesdd"
    results = _svd(x, full=bool(full_matrices), vectors=bool(compute_uv), subset=subset, routine=routine)
    return tuple(results) if compute_uv else results[0]


@compiled_list_function
def _svd(x: ArrayLike, *, full: bool, vectors: bool, subset: tuple[int, int] | None, routine: str) -> list[Any]:
    results = Svd(full, vectors, routine)(as_operand(x, "svd"))
    if subset is None:
        return list(results)
    last = results[0].type.ndim - 1
    dims = (last, last - 1, last - 1) if vectors else (last,)
    return [slice_along(y, dim, *subset) for y, dim in zip(results, dims, strict=True)]


def symmetric_product(
    a_matrix: ArrayLike, c_matrix: ArrayLike, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False
) -> Array:
    """Compute `alpha A Aᵀ + beta C` for a symmetric C.

    Args:
        a_matrix: the matrices A, of floats.
        c_matrix: the matrices C, of floats.
        alpha, beta: the scale factors.
        symmetrize_output: copy the lower triangle of the result to its upper one.

    Returns:
        The matrices.

    Raises:
        TypeError: if an operand does not hold floats.
        ValueError: if the shape of C is not that of `A Aᵀ`.

    Example:
        >>> lax.linalg.symmetric_product(jnp.array([[1.0, 2.0]]), jnp.array([[5.0]]), alpha=2.0, beta=1.0)
        Array([[15.]], dtype=float32)
    """
    for x in (a_matrix, c_matrix):
        if not is_float(type_of(x, "symmetric_product").dtype):
            raise TypeError(f"symmetric_product: needs floats, not {type_of(x)}")
    shapes = type_of(a_matrix).shape, type_of(c_matrix).shape
    if len(shapes[0]) < 2 or shapes[1] != (*shapes[0][:-1], shapes[0][-2]):
        expected = (*shapes[0][:-1], *shapes[0][-2:-1])
        raise ValueError(
            f"symmetric_product: with A of shape {shapes[0]}, C must have shape {expected}, not {shapes[1]}"
        )
    symmetrize = bool(symmetrize_output)
    return _symmetric_product(a_matrix, c_matrix, alpha=float(alpha), beta=float(beta), symmetrize=symmetrize)


@compiled_function
def _symmetric_product(a: ArrayLike, c: ArrayLike, *, alpha: float, beta: float, symmetrize: bool) -> Any:
    a, c = as_operand(a), as_operand(c)
    square = batched_matmul(a, matrix_transpose(a))
    total = (alpha * Expr(square) + beta * Expr(c)).array
    if symmetrize:
        total = Add()(lower_triangle(total), matrix_transpose(lower_triangle(total, -1)))
    return total


def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """Solve a triangular system `op(a) x = b` or `x op(a) = b`.

    On a mesh, the columns of `b` may be sharded too.

    Args:
        a: triangular matrices. Only one triangle is read.
        b: the right-hand sides: matrices, or a batch of vectors.
        left_side: solve `op(a) x = b` rather than `x op(a) = b`.
        lower: read the lower triangle of `a` rather than the upper one.
        transpose_a: op transposes `a`.
        conjugate_a: op conjugates `a`.
        unit_diagonal: assume that the diagonal of `a` is 1.

    Returns:
        The solutions x, of the shape of `b`.

    Raises:
        TypeError: if the matrices are not square, the shapes do not agree, or the dtype is not supported.

    Example:
        >>> a, b = jnp.array([[2.0, 0.0], [1.0, 4.0]]), jnp.array([[2.0], [9.0]])
        >>> lax.linalg.triangular_solve(a, b, left_side=True, lower=True)
        Array([[1.],
               [2.]], dtype=float32)
    """
    flags = (left_side, lower, transpose_a, conjugate_a, unit_diagonal)
    return _triangular_solve(a, b, op=TriangularSolve(*map(bool, flags)))


@compiled_function
def _triangular_solve(a: ArrayLike, b: ArrayLike, *, op: TriangularSolve) -> Any:
    dtype, weak = promote_dtypes("triangular_solve", [type_of(x, "triangular_solve") for x in (a, b)])
    a, b = (astype_weak(as_operand(x), dtype, weak) for x in (a, b))
    shape = b.type.shape
    if b.type.ndim != a.type.ndim - 1:
        return op(a, b)
    column = (*shape, 1) if op.left_side else (*shape[:-1], 1, *shape[-1:])
    return Reshape(shape)(op(a, Reshape(column)(b)))


@documented(_SQUARE_MATRICES)
def tridiagonal(a: ArrayLike, *, lower: bool = True) -> tuple[Array, Array, Array, Array]:
    """Reduce Hermitian matrices to tridiagonal form by Householder reflections.

    Args:
        a: Hermitian matrices.
        lower: read the lower triangle rather than the upper one.

    Returns:
        A tuple: the tridiagonal matrices, packed with the reflectors; their diagonal; their off-diagonal; and the scale
        factors (taus) of the reflectors.

    Example:
        >>> lax.linalg.tridiagonal(jnp.array([[1.0, 2.0], [2.0, 3.0]]))[1]
        Array([1., 3.], dtype=float32)
    """
    packed, diagonal, off_diagonal, taus = _tridiagonal(a, lower=bool(lower))
    return packed, diagonal, off_diagonal, taus


@compiled_list_function
def _tridiagonal(a: ArrayLike, *, lower: bool) -> list[Any]:
    return list(Tridiagonal(lower)(as_operand(a, "tridiagonal")))


def tridiagonal_solve(
    dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike, *, perturb_singular: bool = False
) -> Array:
    """Solve tridiagonal systems `a x = b`. The result is NaN if `a` is singular, unless `perturb_singular` is true.

    Args:
        dl: the lower diagonal. `dl[i]` is left of the diagonal in row i, and `dl[0]` is not used.
        d: the diagonal.
        du: the upper diagonal. `du[i]` is right of the diagonal in row i, and its last element is not used.
        b: the right-hand sides, as columns.
        perturb_singular: whether tiny pivots of the elimination are perturbed, so that the result is finite for a
            singular matrix too.

    Returns:
        The solutions x, of the shape of `b`.

    Raises:
        TypeError: if the shapes do not agree, or the dtypes differ or are not supported.

    Example:
        >>> lower, middle, upper = (jnp.array(x) for x in ([0.0, 1.0], [2.0, 3.0], [1.0, 0.0]))
        >>> lax.linalg.tridiagonal_solve(lower, middle, upper, jnp.array([[4.0], [7.0]]))
        Array([[1.],
               [2.]], dtype=float32)
    """
    return _tridiagonal_solve(dl, d, du, b, perturbs=perturb_singular)


@compiled_function
def _tridiagonal_solve(dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike, *, perturbs: bool) -> Any:
    return TridiagonalSolve(perturbs)(*(as_operand(x, "tridiagonal_solve") for x in (dl, d, du, b)))


publish(__name__, "qdwh")
