"""Matrix decompositions: cholesky, qr, svd, eig and eigh."""

from typing import Any, Literal, NamedTuple, overload

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.matrices import as_matrices
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, compiled_function, compiled_list_function, type_of
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.linalg.batched import INDEX, adjoint, matrix_transpose, permute_along, scale_columns
from shardwise.compiler.ops.linalg.eigen import Eigh
from shardwise.compiler.ops.linalg.householder import Geqrf
from shardwise.compiler.ops.linalg.triangular import Cholesky, symmetrize
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.lax import linalg as lax
from shardwise.numpy.families import MATRICES
from shardwise.typing import ArrayLike

_HERMITIAN = MATRICES.extended(
    {
        "UPLO": 'the triangle of `a` to read, "L" or "U". It has no effect if `symmetrize_input` is true.',
        "symmetrize_input": "whether to replace `a` by the mean of `a` and its adjoint.",
    },
    raises=["ValueError: if `a` does not hold square matrices, or `UPLO` is unknown."],
)


def as_inexact_operand(a: ArrayLike, name: str) -> Any:
    """Convert integers and booleans to floats; return arrays of floats or complex numbers unchanged."""
    return a if is_inexact(type_of(a, name).dtype) else _as_inexact(a)


@compiled_function
def _as_inexact(a: ArrayLike) -> Any:
    return as_inexact(a, "linalg")


class EigResult(NamedTuple):
    """The result of `eig`."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """The result of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """The result of `qr`."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """The result of `svd`."""

    U: Array
    S: Array
    Vh: Array


@documented(MATRICES, returns="The triangular factors; NaN for matrices that are not positive definite.")
def cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    """Compute the Cholesky decomposition `a = L L*` of Hermitian positive-definite matrices.

    Args:
        upper: whether to return the upper triangular factor `L*` instead of the lower triangular `L`.
        symmetrize_input: whether to replace `a` by the mean of `a` and its adjoint. If false, only one triangle of `a`
            is read: the upper one with `upper`, else the lower one.

    Raises:
        ValueError: if `a` does not hold square matrices.

    Example:
        >>> jnp.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
        Array([[2., 0.],
               [1., 3.]], dtype=float32)
    """
    return _cholesky(a, upper=bool(upper), symmetrize_input=bool(symmetrize_input))


@compiled_function
def _cholesky(a: ArrayLike, *, upper: bool, symmetrize_input: bool) -> Any:
    a = as_matrices("cholesky", a, square=True)
    if symmetrize_input:
        a = symmetrize(a)
    elif upper:
        a = adjoint(a)  # Cholesky reads the lower triangle
    factor = Cholesky()(a)
    return adjoint(factor) if upper else factor


@overload
def qr(a: ArrayLike, mode: Literal["reduced", "complete", "raw", "full"] = "reduced") -> QRResult: ...


@overload
def qr(a: ArrayLike, mode: Literal["r"]) -> Array: ...


@overload
def qr(a: ArrayLike, mode: str = "reduced") -> Any: ...


def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """Compute the QR decomposition `a = Q R`, with orthonormal columns of Q and upper triangular R.

    Args:
        a: the matrices, of shape (..., M, N).
        mode: "reduced" returns Q of shape (..., M, K) with K = min(M, N), "complete" a square Q, and "r" only R. "full"
            is another name of "reduced", as in JAX. "raw"
            returns the transpose of LAPACK's packed result of `geqrf` (R and the Householder reflectors) and the
            coefficients tau.

    Returns:
        A named tuple (Q, R), or R alone if `mode` is "r".

    Raises:
        TypeError: if `a` has a rank below 2, or a float dtype of 16 bits or less.
        ValueError: if `mode` is unknown.

    Example:
        >>> jnp.linalg.qr(jnp.array([[3.0, 0.0], [4.0, 5.0]]), mode="r")
        Array([[-5., -4.],
               [ 0.,  3.]], dtype=float32)
    """
    if mode not in ("reduced", "complete", "r", "raw", "full"):
        raise ValueError(f"qr: mode must be 'reduced' (or 'full'), 'complete', 'r' or 'raw', not {mode!r}")
    if mode == "raw":
        return QRResult(*_raw_qr(a))
    result = QRResult(*lax.qr(as_inexact_operand(a, "qr"), full_matrices=mode == "complete"))
    return result.R if mode == "r" else result


@compiled_list_function
def _raw_qr(a: ArrayLike) -> list[Any]:
    packed, taus = Geqrf()(as_matrices("qr", a))
    return [matrix_transpose(packed), taus]


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> SVDResult: ...


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    *,
    compute_uv: Literal[False],
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Array: ...


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any: ...


def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """Compute the singular value decomposition `a = U diag(S) Vh`.

    Args:
        a: the matrices, of shape (..., M, N).
        full_matrices: whether U and Vh are square. Otherwise they have min(M, N) columns and rows.
        compute_uv: whether to return U and Vh too.
        hermitian: a promise that `a` is Hermitian; then the cheaper eigendecomposition is used.
        subset_by_index: a pair (start, end): compute only the singular values start, ..., end - 1 and their vectors.
            Needs `full_matrices=False` or `compute_uv=False`.

    Returns:
        A named tuple (U, S, Vh), or S alone if `compute_uv` is false. The singular values S are in descending order.

    Raises:
        TypeError: if `a` has a rank below 2, or a float dtype of 16 bits or less.
        ValueError: if `subset_by_index` is out of bounds or combined with full matrices, or if `hermitian` is set and
            the matrices are not square.
        NotImplementedError: if both `hermitian` and `subset_by_index` are set.

    Example:
        >>> jnp.linalg.svd(jnp.array([[0.0, 2.0], [3.0, 0.0]]), compute_uv=False)
        Array([3., 2.], dtype=float32)
    """
    if not hermitian:
        result = lax.svd(
            as_inexact_operand(a, "svd"),
            full_matrices=full_matrices,
            compute_uv=compute_uv,
            subset_by_index=subset_by_index,
        )
        return SVDResult(*result) if compute_uv else result
    if subset_by_index is not None:
        raise NotImplementedError("svd: subset_by_index is not supported with hermitian=True; omit one of them")
    *vectors, values = _hermitian_svd(a, vectors=bool(compute_uv))
    return SVDResult(vectors[0], values, vectors[1]) if compute_uv else values


@compiled_list_function
def _hermitian_svd(a: ArrayLike, *, vectors: bool) -> list[Any]:
    """Compute the SVD of Hermitian matrices from their eigendecomposition.

    The singular values are the absolute values of the eigenvalues. The sign of an eigenvalue goes to its row of Vh.
    """
    u, values = Eigh()(as_matrices("svd", a, square=True))
    last = values.type.ndim - 1
    index = Iota(values.type.shape, last, INDEX)()
    singular_values, values, order = Sort(last, 1, descending=True)(Abs()(values), values, index)
    if not vectors:
        return [singular_values]
    u = permute_along(u, order, last + 1)
    signs = where(Expr(values) < 0, -1, Expr(values).full_like(1)).array
    return [u, adjoint(scale_columns(u, signs)), singular_values]


@documented(MATRICES, returns="The singular values in descending order, along the last dim.")
def svdvals(x: ArrayLike, /) -> Array:
    """Compute the singular values of matrices.

    Raises:
        TypeError: if `x` has a rank below 2, or a float dtype of 16 bits or less.

    Example:
        >>> jnp.linalg.svdvals(jnp.array([[0.0, 2.0], [3.0, 0.0]]))
        Array([3., 2.], dtype=float32)
    """
    return svd(x, compute_uv=False)


@documented(MATRICES, returns="A named tuple (eigenvalues, eigenvectors), both complex. The eigenvectors are columns.")
def eig(a: ArrayLike) -> EigResult:
    """Compute the eigenvalues and right eigenvectors of general square matrices.

    Raises:
        TypeError: if `a` does not hold square matrices, or has a float dtype of 16 bits or less.

    Example:
        >>> jnp.linalg.eig(jnp.array([[1.0, 2.0], [0.0, 3.0]])).eigenvalues
        Array([1.+0.j, 3.+0.j], dtype=complex64)
    """
    return EigResult(*lax.eig(as_inexact_operand(a, "eig"), compute_left_eigenvectors=False))


@documented(MATRICES, returns="The eigenvalues, complex and in no particular order.")
def eigvals(a: ArrayLike) -> Array:
    """Compute the eigenvalues of general square matrices.

    Raises:
        TypeError: if `a` does not hold square matrices, or has a float dtype of 16 bits or less.

    Example:
        >>> jnp.linalg.eigvals(jnp.array([[0.0, -1.0], [1.0, 0.0]]))
        Array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    a = as_inexact_operand(a, "eigvals")
    return lax.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


@documented(_HERMITIAN)
def eigh(a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Compute the eigenvalues and eigenvectors of Hermitian matrices.

    Args:
        UPLO: the triangle of `a` to read, "L" (the default) or "U". It has no effect if `symmetrize_input` is true.

    Returns:
        A named tuple (eigenvalues, eigenvectors). The eigenvalues are real and ascending, the eigenvectors are columns.

    Example:
        >>> jnp.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]])).eigenvalues
        Array([1., 3.], dtype=float32)
    """
    lower = _is_lower("eigh", UPLO)
    vectors, values = lax.eigh(as_inexact_operand(a, "eigh"), lower=lower, symmetrize_input=symmetrize_input)
    return EighResult(values, vectors)


@documented(_HERMITIAN, returns="The eigenvalues, real and ascending.")
def eigvalsh(a: ArrayLike, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Array:
    """Compute the eigenvalues of Hermitian matrices.

    Example:
        >>> jnp.linalg.eigvalsh(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
        Array([1., 3.], dtype=float32)
    """
    lower = _is_lower("eigvalsh", UPLO)
    return lax.eigh(as_matrices("eigvalsh", a, square=True), lower=lower, symmetrize_input=symmetrize_input)[1]


def _is_lower(name: str, triangle: str | None) -> bool:
    if triangle not in (None, "L", "U"):
        raise ValueError(f"{name}: UPLO must be None, 'L' or 'U', not {triangle!r}")
    return triangle != "U"
