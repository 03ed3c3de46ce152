"""Factors of matrices: cholesky, qr, svd, and eigenvalues with their vectors."""

from typing import Any, NamedTuple

from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops.eigen import Eigh
from shardwise.compiler.ops.elementwise import Compare, Select, like
from shardwise.compiler.ops.householder import Geqrf
from shardwise.compiler.ops.matrix import INDEX, adjoint, as_matrices, by_column, in_order, transposed
from shardwise.compiler.ops.operands import as_inexact, composed, composed_list, type_of
from shardwise.compiler.ops.parts import Abs
from shardwise.compiler.ops.shape import Iota
from shardwise.compiler.ops.sort import Sort
from shardwise.compiler.ops.triangular import Cholesky, hermitian
from shardwise.lax import linalg as lax


def as_floats(a: Any, name: str) -> Any:
    """`a` where it holds floats or complex numbers, else as floats."""
    return a if is_inexact(type_of(a, name).dtype) else _converted(a)


@composed
def _converted(a: Any) -> Any:
    return as_inexact(a, "linalg")


class EigResult(NamedTuple):
    eigenvalues: Any
    eigenvectors: Any


class EighResult(NamedTuple):
    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    Q: Any
    R: Any


class SVDResult(NamedTuple):
    U: Any
    S: Any
    Vh: Any


def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Any:
    """The lower triangular L with `a = L L*`, or its adjoint where `upper`; NaN where `a` is not positive definite.

    >>> jnp.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
    Array([[2., 0.],
           [1., 3.]], dtype=float32)
    """
    return _cholesky(a, upper=bool(upper), symmetrize_input=bool(symmetrize_input))


@composed
def _cholesky(a: Any, *, upper: bool, symmetrize_input: bool) -> Any:
    a = as_matrices("cholesky", a, square=True)
    if symmetrize_input:
        a = hermitian(a)
    elif upper:
        a = adjoint(a)  # the triangle that is read is the one that is asked for
    found = Cholesky()(a)
    return adjoint(found) if upper else found


def qr(a: Any, mode: str = "reduced") -> Any:
    """Q with orthonormal columns and the upper triangular R of `a = Q R`.

    `mode` "reduced": as many columns of Q as it takes; "complete": a square Q; "r": R alone; "raw": the transpose of
    R and its reflections, as LAPACK packs them, and the taus.

    >>> jnp.linalg.qr(jnp.array([[3.0, 0.0], [4.0, 5.0]]), mode="r")
    Array([[-5., -4.],
           [ 0.,  3.]], dtype=float32)
    """
    if mode not in ("reduced", "complete", "r", "raw", "full"):
        raise ValueError(f"qr: mode {mode!r} is none of 'reduced', 'complete', 'r' and 'raw'")
    if mode == "raw":
        return QRResult(*_packed(a))
    found = QRResult(*lax.qr(as_floats(a, "qr"), full_matrices=mode == "complete"))
    return found.R if mode == "r" else found


@composed_list
def _packed(a: Any) -> list[Any]:
    packed, taus = Geqrf()(as_matrices("qr", a))
    return [transposed(packed), taus]


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """U, the singular values S, descending, and Vh of `a = U diag(S) Vh`; without `compute_uv` S alone.

    `hermitian`: `a` is Hermitian, which takes less time. `subset_by_index`: only the values from the first number up
    to the second, and their vectors.

    >>> jnp.linalg.svd(jnp.array([[0.0, 2.0], [3.0, 0.0]]), compute_uv=False)
    Array([3., 2.], dtype=float32)
    """
    if not hermitian:
        found = lax.svd(
            as_floats(a, "svd"),
            full_matrices=full_matrices,
            compute_uv=compute_uv,
            subset_by_index=subset_by_index,
        )
        return SVDResult(*found) if compute_uv else found
    if subset_by_index is not None:
        raise NotImplementedError("svd: of Hermitian matrices all values are found; leave out subset_by_index")
    *vectors, values = _svd_of_hermitian(a, vectors=bool(compute_uv))
    return SVDResult(vectors[0], values, vectors[1]) if compute_uv else values


@composed_list
def _svd_of_hermitian(a: Any, *, vectors: bool) -> list[Any]:
    """The singular values are the magnitudes of the eigenvalues; a negative one turns the vector on one side."""
    u, values = Eigh()(as_matrices("svd", a, square=True))
    last = values.type.ndim - 1
    place = Iota(values.type.shape, last, INDEX)()
    sizes, values, order = Sort(last, 1, descending=True)(Abs()(values), values, place)
    if not vectors:
        return [sizes]
    u = in_order(u, order, last + 1)
    signs = Select()(Compare("LT")(values, like(values, 0)), like(values, -1), like(values, 1))
    return [u, adjoint(by_column(u, signs)), sizes]


def svdvals(x: Any, /) -> Any:
    """The singular values of matrices, descending.

    >>> jnp.linalg.svdvals(jnp.array([[0.0, 2.0], [3.0, 0.0]]))
    Array([3., 2.], dtype=float32)
    """
    return svd(x, compute_uv=False)


def eig(a: Any) -> EigResult:
    """The eigenvalues of square matrices, and the eigenvectors as columns, all complex.

    >>> jnp.linalg.eig(jnp.array([[1.0, 2.0], [0.0, 3.0]])).eigenvalues
    Array([1.+0.j, 3.+0.j], dtype=complex64)
    """
    return EigResult(*lax.eig(as_floats(a, "eig"), compute_left_eigenvectors=False))


def eigvals(a: Any) -> Any:
    """The eigenvalues of square matrices, complex.

    >>> jnp.linalg.eigvals(jnp.array([[0.0, -1.0], [1.0, 0.0]]))
    Array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    a = as_floats(a, "eigvals")
    return lax.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """The eigenvalues of Hermitian matrices, ascending, and the eigenvectors as columns.

    Without `symmetrize_input`, which takes the mean of `a` and its adjoint, only the triangle `UPLO` is read.

    >>> jnp.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]])).eigenvalues
    Array([1., 3.], dtype=float32)
    """
    lower = _is_lower("eigh", UPLO)
    vectors, values = lax.eigh(as_floats(a, "eigh"), lower=lower, symmetrize_input=symmetrize_input)
    return EighResult(values, vectors)


def eigvalsh(a: Any, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Any:
    """The eigenvalues of Hermitian matrices, ascending.

    >>> jnp.linalg.eigvalsh(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
    Array([1., 3.], dtype=float32)
    """
    lower = _is_lower("eigvalsh", UPLO)
    return lax.eigh(as_floats(a, "eigvalsh"), lower=lower, symmetrize_input=symmetrize_input)[1]


def _is_lower(name: str, triangle: str | None) -> bool:
    if triangle not in (None, "L", "U"):
        raise ValueError(f"{name}: UPLO must be None, 'L' or 'U', not {triangle!r}")
    return triangle != "U"
