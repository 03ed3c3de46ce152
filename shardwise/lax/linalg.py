"""Factors of matrices and solutions of linear equations, close to LAPACK. Dims before the last two are a batch: where
it lies on many devices, each works on its own matrices.

Matrices are f32, f64, c64 or c128. Where a matrix has no such factors, its results are NaN.
"""

import enum
import operator
from collections.abc import Callable
from typing import Any

from shardwise.api.control import fori_loop
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
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.base import like
from shardwise.compiler.ops.linalg.batched import INDEX, lower_triangle, product, transposed
from shardwise.compiler.ops.linalg.eigen import Eig, Eigh
from shardwise.compiler.ops.linalg.hessenberg_schur import Hessenberg, Schur, Tridiagonal
from shardwise.compiler.ops.linalg.householder import HouseholderProduct, Ormqr, Qr
from shardwise.compiler.ops.linalg.lu import Lu, PivotsToPermutation
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.linalg.triangular import Cholesky, TriangularSolve, TridiagonalSolve, hermitian
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.lax.indexing import dynamic_index_in_dim, dynamic_update_index_in_dim
from shardwise.lax.polar import qdwh
from shardwise.lazy import missing_attribute_error

__all__ = [
    "EigImplementation",
    "EighImplementation",
    "SvdAlgorithm",
    "cholesky",
    "cholesky_update",
    "eig",
    "eigh",
    "hessenberg",
    "householder_product",
    "lu",
    "lu_pivots_to_permutation",
    "ormqr",
    "qdwh",
    "qr",
    "schur",
    "svd",
    "symmetric_product",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
]


class EigImplementation(enum.Enum):
    """The library that finds eigenvalues; here LAPACK alone."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


class EighImplementation(enum.Enum):
    """The algorithm that finds eigenvalues of Hermitian matrices; here QR alone."""

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


class SvdAlgorithm(enum.Enum):
    """The algorithm that finds singular values; here divide and conquer alone, the default."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Any:
    """The lower triangular L with `x = L L*`, of Hermitian positive definite matrices; NaN where they are not.

    Without `symmetrize_input`, which takes the mean of `x` and its adjoint, only the lower triangle is read.

    >>> lax.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
    Array([[2., 0.],
           [1., 3.]], dtype=float32)
    """
    return _cholesky(x, symmetrize_input=bool(symmetrize_input))


@compiled_function
def _cholesky(x: Any, *, symmetrize_input: bool) -> Any:
    x = as_inexact(x, "cholesky")
    return Cholesky()(hermitian(x) if symmetrize_input else x)


def cholesky_update(r_matrix: Any, w_vector: Any) -> Any:
    """The upper triangular factor of `R* R + w w*`, given `R` and `w`, both real. It takes n² steps and not n³.

    >>> lax.linalg.cholesky_update(jnp.array([[3.0, 1.0], [0.0, 2.0]]), jnp.array([4.0, 3.0]))
    Array([[5.      , 3.      ],
           [0.      , 2.236068]], dtype=float32)
    """
    kinds = type_of(r_matrix, "cholesky_update"), type_of(w_vector, "cholesky_update")
    square = kinds[0].ndim == 2 and kinds[0].shape == kinds[1].shape * 2
    if not square or kinds[0].dtype != kinds[1].dtype or not is_float(kinds[0].dtype):
        raise TypeError(
            "cholesky_update: needs a square matrix and a vector of as many elements, of one float dtype, not "
            f"{kinds[0]} and {kinds[1]}"
        )
    return _cholesky_update(r_matrix, w_vector)


@compiled_function
def _cholesky_update(r: Any, w: Any) -> Any:
    """A rotation for each row, which turns the element of w under the diagonal into it."""
    r, w = as_operand(r), as_operand(w)

    def step(number: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        r, w = state
        row = dynamic_index_in_dim(r, number, 0, keepdims=False)
        pivot, below = (dynamic_index_in_dim(x, number, 0, keepdims=False) for x in (row, w))
        length = (pivot * pivot + below * below) ** 0.5
        cosine, sine = pivot / length, below / length
        turned = cosine * row + sine * w
        return dynamic_update_index_in_dim(r, turned, number, 0), cosine * w - sine * row

    return fori_loop(0, r.type.shape[0], step, (r, w))[0]


def eig(
    x: Any,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
    implementation: EigImplementation | None = None,
    use_magma: bool | None = None,
) -> list[Any]:
    """The eigenvalues of matrices, then the left and the right eigenvectors as columns, as far as asked for: complex.

    Eigenvectors have derivatives only with `enable_eigvec_derivs`, which says that the eigenvalues all differ and that
    neither norm nor phase of the vectors matters.

    >>> lax.linalg.eig(jnp.array([[1.0, 2.0], [0.0, 3.0]]))[0]
    Array([1.+0.j, 3.+0.j], dtype=complex64)
    """
    if implementation not in (None, EigImplementation.LAPACK) or use_magma:
        raise NotImplementedError(f"eig: LAPACK is the only implementation here, not {implementation or 'magma'}")
    return _eig(
        x,
        left=bool(compute_left_eigenvectors),
        right=bool(compute_right_eigenvectors),
        differentiable=bool(enable_eigvec_derivs),
    )


@compiled_list_function
def _eig(x: Any, *, left: bool, right: bool, differentiable: bool) -> list[Any]:
    return list(Eig(left, right, differentiable)(as_operand(x, "eig")))


def eigh(
    x: Any,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: EighImplementation | None = None,
) -> tuple[Any, Any]:
    """The eigenvectors of Hermitian matrices as columns, and their eigenvalues, ascending.

    Without `symmetrize_input`, which takes the mean of `x` and its adjoint, only one triangle is read. With
    `subset_by_index` only those from the first number up to the second.

    >>> lax.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]]))[1]
    Array([1., 3.], dtype=float32)
    """
    if implementation not in (None, EighImplementation.QR):
        raise NotImplementedError(f"eigh: QR is the only implementation here, not {implementation}")
    kind = type_of(x, "eigh")
    subset = _subset("eigh", subset_by_index, kind.shape[-1] if kind.ndim else 0)
    vectors, values = _eigh(x, lower=bool(lower), symmetrize_input=bool(symmetrize_input), subset=subset)
    return vectors, values


@compiled_list_function
def _eigh(x: Any, *, lower: bool, symmetrize_input: bool, subset: tuple[int, int] | None) -> list[Any]:
    x = as_inexact(x, "eigh")
    found = Eigh(lower)(hermitian(x) if symmetrize_input else x)
    return [y if subset is None else slice_along(y, y.type.ndim - 1, *subset) for y in found]


def _subset(name: str, subset: tuple[int, int] | None, size: int) -> tuple[int, int] | None:
    if subset is None:
        return None
    first, last = (operator.index(number) for number in subset)
    if not 0 <= first <= last <= size:
        raise ValueError(f"{name}: subset_by_index {subset} must lie in 0 to {size}")
    return first, last


def hessenberg(a: Any) -> tuple[Any, Any]:
    """Similar matrices with zeros below the first subdiagonal, in whose place are reflections; and their taus.

    >>> lax.linalg.hessenberg(jnp.array([[1.0, 2.0], [3.0, 4.0]]))[0]
    Array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    packed, taus = _hessenberg(a)
    return packed, taus


@compiled_list_function
def _hessenberg(a: Any) -> list[Any]:
    return list(Hessenberg()(as_operand(a, "hessenberg")))


def householder_product(a: Any, taus: Any) -> Any:
    """The first columns of the product of the reflections `I - tau v v*`: v is below the diagonal of `a`, one on it.

    >>> lax.linalg.householder_product(jnp.array([[0.0], [1.0]]), jnp.array([1.0]))
    Array([[ 0.],
           [-1.]], dtype=float32)
    """
    return _householder_product(a, taus)


@compiled_function
def _householder_product(a: Any, taus: Any) -> Any:
    return HouseholderProduct()(as_operand(a, "householder_product"), as_operand(taus, "householder_product"))


def lu(x: Any) -> tuple[Any, Any, Any]:
    """L and U in one matrix, the pivots, and the permutation that they make: `x[permutation] = L U`.

    L is what is below the diagonal, with ones on it; row i was exchanged with row `pivots[i]`, one i after the other.

    >>> lax.linalg.lu(jnp.array([[1.0, 2.0], [4.0, 4.0]]))[0]
    Array([[4.  , 4.  ],
           [0.25, 1.  ]], dtype=float32)
    """
    both, pivots, permutation = _lu(x)
    return both, pivots, permutation


@compiled_list_function
def _lu(x: Any) -> list[Any]:
    x = as_operand(x, "lu")
    both, pivots = Lu()(x)
    return [both, pivots, PivotsToPermutation(x.type.shape[-2])(pivots)]


def lu_pivots_to_permutation(pivots: Any, permutation_size: int) -> Any:
    """The order of `permutation_size` rows after row i was exchanged with row `pivots[i]`, for one i after the other.

    >>> lax.linalg.lu_pivots_to_permutation(jnp.array([2, 2, 2]), 4)
    Array([2, 0, 1, 3], dtype=int32)
    """
    return _lu_pivots_to_permutation(pivots, size=operator.index(permutation_size))


@compiled_function
def _lu_pivots_to_permutation(pivots: Any, *, size: int) -> Any:
    return PivotsToPermutation(size)(astype_weak(as_operand(pivots, "lu_pivots_to_permutation"), INDEX, False))


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Any:
    """The product of the reflections in `a`, or its adjoint, times `c`; `c` times it where not `left`.

    >>> lax.linalg.ormqr(jnp.array([[0.0], [1.0]]), jnp.array([1.0]), jnp.array([[3.0], [4.0]]))
    Array([[-4.],
           [-3.]], dtype=float32)
    """
    return _ormqr(a, taus, c, left=bool(left), adjoint=bool(transpose))


@compiled_function
def _ormqr(a: Any, taus: Any, c: Any, *, left: bool, adjoint: bool) -> Any:
    return Ormqr(left, adjoint)(*(as_operand(x, "ormqr") for x in (a, taus, c)))


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None) -> tuple[Any, ...]:
    """Q with orthonormal columns and the upper triangular R of `x = Q R`. `pivoting`: also the order in which the
    columns of `x` are those of `Q R`, so that the diagonal of R gets smaller.

    >>> lax.linalg.qr(jnp.array([[3.0, 0.0], [4.0, 5.0]]))[1]
    Array([[-5., -4.],
           [ 0.,  3.]], dtype=float32)
    """
    if use_magma:
        raise NotImplementedError("qr: LAPACK is the only implementation here, not magma")
    return tuple(_qr(x, full=bool(full_matrices), pivoting=bool(pivoting)))


@compiled_list_function
def _qr(x: Any, *, full: bool, pivoting: bool) -> list[Any]:
    return list(Qr(full, pivoting)(as_operand(x, "qr")))


def schur(
    x: Any,
    *,
    compute_schur_vectors: bool = True,
    sort_eig_vals: bool = False,
    select_callable: Callable[..., Any] | None = None,
) -> tuple[Any, ...]:
    """The upper triangular T, and the unitary Z, of `x = Z T Z*`; T of real matrices has blocks of 2 × 2 for pairs of
    complex eigenvalues.

    >>> lax.linalg.schur(jnp.array([[1.0, 2.0], [0.0, 3.0]]))[0]
    Array([[1., 2.],
           [0., 3.]], dtype=float32)
    """
    if sort_eig_vals or select_callable is not None:
        raise NotImplementedError("schur: eigenvalues cannot be sorted here: leave out sort_eig_vals, select_callable")
    return tuple(_schur(x, vectors=bool(compute_schur_vectors)))


@compiled_list_function
def _schur(x: Any, *, vectors: bool) -> list[Any]:
    return list(Schur(vectors)(as_operand(x, "schur")))


def svd(
    x: Any,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> Any:
    """U, the singular values, descending, and V* of `x = U diag(values) V*`; without `compute_uv` the values alone.

    With `subset_by_index` only those from the first number up to the second.

    >>> lax.linalg.svd(jnp.array([[0.0, 2.0], [3.0, 0.0]]), compute_uv=False)
    Array([3., 2.], dtype=float32)
    """
    if algorithm not in (None, SvdAlgorithm.DEFAULT, SvdAlgorithm.DIVIDE_AND_CONQUER):
        raise NotImplementedError(f"svd: divide and conquer is the only algorithm here, not {algorithm}")
    kind = type_of(x, "svd")
    subset = _subset("svd", subset_by_index, min(kind.shape[-2:], default=0))
    if subset is not None and full_matrices and compute_uv:
        raise ValueError("svd: full_matrices and subset_by_index cannot both be set")
    found = _svd(x, full=bool(full_matrices), vectors=bool(compute_uv), subset=subset)
    return tuple(found) if compute_uv else found[0]


@compiled_list_function
def _svd(x: Any, *, full: bool, vectors: bool, subset: tuple[int, int] | None) -> list[Any]:
    found = Svd(full, vectors)(as_operand(x, "svd"))
    if subset is None:
        return list(found)
    last = found[0].type.ndim - 1
    dims = (last, last - 1, last - 1) if vectors else (last,)
    return [slice_along(y, dim, *subset) for y, dim in zip(found, dims, strict=True)]


def symmetric_product(
    a_matrix: Any, c_matrix: Any, *, alpha: float = 1.0, beta: float = 0.0, symmetrize_output: bool = False
) -> Any:
    """`alpha A Aᵀ + beta C`, of a symmetric C. `symmetrize_output`: the upper triangle is made of the lower one.

    >>> lax.linalg.symmetric_product(jnp.array([[1.0, 2.0]]), jnp.array([[5.0]]), alpha=2.0, beta=1.0)
    Array([[15.]], dtype=float32)
    """
    for x in (a_matrix, c_matrix):
        if not is_float(type_of(x, "symmetric_product").dtype):
            raise TypeError(f"symmetric_product: needs floats, not {type_of(x)}")
    shapes = type_of(a_matrix).shape, type_of(c_matrix).shape
    if len(shapes[0]) < 2 or shapes[1] != (*shapes[0][:-1], shapes[0][-2]):
        raise ValueError(f"symmetric_product: of A in {shapes[0]}, C must be in {(*shapes[0][:-1], *shapes[0][-2:-1])}")
    symmetrize = bool(symmetrize_output)
    return _symmetric_product(a_matrix, c_matrix, alpha=float(alpha), beta=float(beta), symmetrize=symmetrize)


@compiled_function
def _symmetric_product(a: Any, c: Any, *, alpha: float, beta: float, symmetrize: bool) -> Any:
    a, c = as_operand(a), as_operand(c)
    square = product(a, transposed(a))
    found = Add()(Mul()(square, like(square, alpha)), Mul()(c, like(c, beta)))
    if symmetrize:
        found = Add()(lower_triangle(found), transposed(lower_triangle(found, -1)))
    return found


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """The x of `op(a) x = b` where `left_side`, else of `x op(a) = b`: op is a transpose, a conjugate, or both.

    Only one triangle of `a` is read. `b` may be a stack of vectors. On a mesh the columns of `b` may be cut too.

    >>> a, b = jnp.array([[2.0, 0.0], [1.0, 4.0]]), jnp.array([[2.0], [9.0]])
    >>> lax.linalg.triangular_solve(a, b, left_side=True, lower=True)
    Array([[1.],
           [2.]], dtype=float32)
    """
    ways = (left_side, lower, transpose_a, conjugate_a, unit_diagonal)
    return _triangular_solve(a, b, op=TriangularSolve(*map(bool, ways)))


@compiled_function
def _triangular_solve(a: Any, b: Any, *, op: TriangularSolve) -> Any:
    dtype, weak = promote_dtypes("triangular_solve", [type_of(x, "triangular_solve") for x in (a, b)])
    a, b = (astype_weak(as_operand(x), dtype, weak) for x in (a, b))
    shape = b.type.shape
    if b.type.ndim != a.type.ndim - 1:
        return op(a, b)
    column = (*shape, 1) if op.left_side else (*shape[:-1], 1, *shape[-1:])
    return Reshape(shape)(op(a, Reshape(column)(b)))


def tridiagonal(a: Any, *, lower: bool = True) -> tuple[Any, Any, Any, Any]:
    """Of Hermitian matrices, of which one triangle is read, similar tridiagonal ones: packed with reflections in place
    of zeros, then their diagonal, what is beside it, and the taus.

    >>> lax.linalg.tridiagonal(jnp.array([[1.0, 2.0], [2.0, 3.0]]))[1]
    Array([1., 3.], dtype=float32)
    """
    packed, diagonal, beside, taus = _tridiagonal(a, lower=bool(lower))
    return packed, diagonal, beside, taus


@compiled_list_function
def _tridiagonal(a: Any, *, lower: bool) -> list[Any]:
    return list(Tridiagonal(lower)(as_operand(a, "tridiagonal")))


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False) -> Any:
    """The x of `a x = b`, where row i of a has dl[i], d[i] and du[i] left of its diagonal, on it and right of it, and
    zeros elsewhere. NaN where a is singular.

    >>> lower, middle, upper = (jnp.array(x) for x in ([0.0, 1.0], [2.0, 3.0], [1.0, 0.0]))
    >>> lax.linalg.tridiagonal_solve(lower, middle, upper, jnp.array([[4.0], [7.0]]))
    Array([[1.],
           [2.]], dtype=float32)
    """
    if perturb_singular:
        raise NotImplementedError("tridiagonal_solve: singular matrices are not perturbed here, and give NaN")
    return _tridiagonal_solve(dl, d, du, b)


@compiled_function
def _tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any) -> Any:
    return TridiagonalSolve()(*(as_operand(x, "tridiagonal_solve") for x in (dl, d, du, b)))


def __getattr__(name: str) -> Any:
    raise missing_attribute_error("shardwise.lax.linalg", name, __all__)
