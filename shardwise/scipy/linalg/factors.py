"""Factors of matrices, as scipy spells them. Dims before the last two are a batch."""

from typing import Any

import numpy as np

from shardwise import numpy
from shardwise.api.control import fori_loop
from shardwise.compiler.ops.condensed import Hessenberg
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Select
from shardwise.compiler.ops.householder import HouseholderProduct
from shardwise.compiler.ops.lu import Lu, PivotsToPermutation
from shardwise.compiler.ops.matrix import (
    INDEX,
    as_matrices,
    block,
    compared_indices,
    identity,
    lower_triangle,
    upper_triangle,
)
from shardwise.compiler.ops.operands import composed, composed_list, type_of
from shardwise.compiler.ops.shape import Broadcast, Iota, full, zeros_like
from shardwise.compiler.ops.slicing import Concatenate
from shardwise.lax import linalg as lax
from shardwise.lax.indexing import dynamic_slice, dynamic_update_slice
from shardwise.numpy import linalg
from shardwise.numpy.linalg.factors import as_floats
from shardwise.numpy.shapes import matrix_transpose


def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The upper triangular R with `a = R* R`, or the lower triangular L with `a = L L*`; only that triangle is read.

    >>> jax.scipy.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
    Array([[2., 1.],
           [0., 3.]], dtype=float32)
    """
    return linalg.cholesky(a, upper=not lower, symmetrize_input=False)


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
    """What `cho_solve` takes: the Cholesky factor, and whether it is the lower one.

    >>> jax.scipy.linalg.cho_factor(jnp.array([[4.0, 2.0], [2.0, 10.0]]))[0]
    Array([[2., 1.],
           [0., 3.]], dtype=float32)
    """
    return cholesky(a, lower), bool(lower)


def qr(
    a: Any,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Any, ...]:
    """Q with orthonormal columns, R of `a = Q R`, and with `pivoting` the order of columns. `mode` "full": a square Q;
    "economic": as many columns as it takes; "r": without Q.

    >>> jax.scipy.linalg.qr(jnp.array([[3.0, 0.0], [4.0, 5.0]]), mode="r")[0]
    Array([[-5., -4.],
           [ 0.,  3.]], dtype=float32)
    """
    if mode not in ("full", "economic", "r"):
        raise ValueError(f"qr: mode {mode!r} is none of 'full', 'economic' and 'r'")
    found = lax.qr(as_floats(a, "qr"), pivoting=pivoting, full_matrices=mode != "economic")
    return found[1:] if mode == "r" else found


def qr_multiply(
    a: Any,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Any, ...]:
    """`c Q`, or for `mode` "left" `Q c`, and the R of `a = Q R`; with `pivoting` the order of columns too.

    Q has as many columns as it takes; `conjugate` multiplies by its conjugate. `c` may be a vector.

    >>> jax.scipy.linalg.qr_multiply(jnp.array([[3.0], [4.0]]), jnp.array([1.0, 2.0]))[0]
    Array([-2.2], dtype=float32)
    """
    if mode not in ("left", "right"):
        raise ValueError(f"qr_multiply: mode must be 'left' or 'right', not {mode!r}")
    q, *rest = qr(a, mode="economic", pivoting=pivoting)
    x = as_floats(c, "qr_multiply")
    size = q.shape[-1] if mode == "left" else q.shape[-2]
    if not x.ndim or x.shape[0 if mode == "left" and x.ndim == 1 else -2 if mode == "left" else -1] != size:
        raise ValueError(f"qr_multiply: {type_of(x)} does not go with a Q of {type_of(q)} on the {mode}")
    q = q.conj() if conjugate else q
    return (q @ x if mode == "left" else x @ q), *rest


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """U, the singular values, descending, and V* of `a = U diag(values) V*`; without `compute_uv` the values alone.

    >>> jax.scipy.linalg.svd(jnp.array([[0.0, 2.0], [3.0, 0.0]]), compute_uv=False)
    Array([3., 2.], dtype=float32)
    """
    return lax.svd(as_floats(a, "svd"), full_matrices=full_matrices, compute_uv=compute_uv)


def eigh(
    a: Any,
    b: None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> Any:
    """The eigenvalues of Hermitian matrices, ascending, and the eigenvectors as columns, unless `eigvals_only`.

    >>> jax.scipy.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]]), eigvals_only=True)
    Array([1., 3.], dtype=float32)
    """
    if b is not None or eigvals is not None or type != 1:
        raise NotImplementedError(
            "eigh: generalized problems and parts of the values are not here: leave out b, eigvals"
        )
    vectors, values = lax.eigh(as_floats(a, "eigh"), lower=lower)
    return values if eigvals_only else (values, vectors)


def eigh_tridiagonal(
    d: Any,
    e: Any,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[float, float] | None = None,
    tol: float | None = None,
    key: Any = None,
) -> Any:
    """The eigenvalues, and unless `eigvals_only` the eigenvectors, of the Hermitian matrix with `d` on its diagonal and
    `e` below it. `select` "i": those from the first index of `select_range` to the last.

    >>> jax.scipy.linalg.eigh_tridiagonal(jnp.array([2.0, 2.0]), jnp.array([1.0]), eigvals_only=True)
    Array([1., 3.], dtype=float32)
    """
    kinds = type_of(d, "eigh_tridiagonal"), type_of(e, "eigh_tridiagonal")
    if kinds[0].ndim != 1 or kinds[1].shape != (max(0, kinds[0].size - 1),) or kinds[0].dtype != kinds[1].dtype:
        raise TypeError(
            f"eigh_tridiagonal: needs a diagonal and one shorter by 1, of one dtype, not {kinds[0]}, {kinds[1]}"
        )
    if select not in ("a", "i"):
        raise NotImplementedError(f"eigh_tridiagonal: select {select!r} is not here; 'a' and 'i' are")
    if (select == "i") != (select_range is not None):
        raise ValueError("eigh_tridiagonal: select_range goes with select='i'")
    part = None if select_range is None else (int(select_range[0]), int(select_range[1]) + 1)
    matrix = _tridiagonal(as_floats(d, "eigh_tridiagonal"), as_floats(e, "eigh_tridiagonal"))
    vectors, values = lax.eigh(matrix, symmetrize_input=False, subset_by_index=part)
    return values if eigvals_only else (values, vectors)


@composed
def _tridiagonal(d: Any, e: Any) -> Any:
    """The lower half of it, which is all that is read."""
    size = d.type.size
    shape = (size, size)
    on = Broadcast(shape, (1,))(d)
    found = Select()(compared_indices(shape, "EQ"), on, zeros_like(on))
    if size < 2:
        return found
    below = Concatenate(0)(e, full((1,), 0, e.type.dtype))
    return Select()(compared_indices(shape, "EQ", -1), Broadcast(shape, (1,))(below), found)


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, Any]:
    """What `lu_solve` takes: L and U in one matrix, and the pivots.

    >>> jax.scipy.linalg.lu_factor(jnp.array([[1.0, 2.0], [4.0, 4.0]]))[0]
    Array([[4.  , 4.  ],
           [0.25, 1.  ]], dtype=float32)
    """
    both, pivots, _ = lax.lu(as_floats(a, "lu_factor"))
    return both, pivots


def lu(a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, ...]:
    """A permutation matrix P, the lower triangular L with ones on its diagonal, and the upper triangular U of
    `a = P L U`. `permute_l`: `P L` in one.

    >>> jax.scipy.linalg.lu(jnp.array([[1.0, 2.0], [4.0, 4.0]]))[2]
    Array([[4., 4.],
           [0., 1.]], dtype=float32)
    """
    return tuple(_lu(a, permute_l=bool(permute_l)))


@composed_list
def _lu(a: Any, *, permute_l: bool) -> list[Any]:
    a = as_matrices("lu", a)
    *batch, rows, columns = a.type.shape
    size = min(rows, columns)
    both, pivots = Lu()(a)
    order = PivotsToPermutation(rows)(pivots)
    square = (*batch, rows, rows)
    ndim = len(square)
    # Row i of L U is row order[i] of a: so column i of P has its one there.
    place = Broadcast(square, (*range(ndim - 2), ndim - 1))(order)
    permutation = Convert(a.type.dtype)(Compare("EQ")(Iota(square, ndim - 2, INDEX)(), place))
    lower = block(both, (0, rows), (0, size))
    lower = Add()(lower_triangle(lower, -1), identity(lower.type.shape, a.type.dtype))
    upper = upper_triangle(block(both, (0, size), (0, columns)))
    return [permutation @ lower, upper] if permute_l else [permutation, lower, upper]


def schur(a: Any, output: str = "real") -> tuple[Any, Any]:
    """The upper triangular T and the unitary Z of `a = Z T Z*`. T of real matrices has blocks of 2 × 2 for pairs of
    complex eigenvalues, unless `output` is "complex".

    >>> jax.scipy.linalg.schur(jnp.array([[1.0, 2.0], [0.0, 3.0]]))[0]
    Array([[1., 2.],
           [0., 3.]], dtype=float32)
    """
    if output not in ("real", "complex"):
        raise ValueError(f"schur: output must be 'real' or 'complex', not {output!r}")
    a = as_floats(a, "schur")
    found, vectors = lax.schur(as_complex(a) if output == "complex" else a)
    return found, vectors


def rsf2csf(T: Any, Z: Any, check_finite: bool = True) -> tuple[Any, Any]:
    """The complex factors of Schur of the real ones: T without its blocks of 2 × 2, and Z.

    >>> T, Z = jax.scipy.linalg.rsf2csf(jnp.array([[0.0, 1.0], [-1.0, 0.0]]), jnp.eye(2))
    >>> T.round(3) + 0
    Array([[0.+1.j, 0.+0.j],
           [0.+0.j, 0.-1.j]], dtype=complex64)
    """
    t, z = type_of(T, "rsf2csf"), type_of(Z, "rsf2csf")
    if t.ndim != 2 or t.shape[0] != t.shape[1] or t.shape != z.shape:
        raise ValueError(f"rsf2csf: needs two square matrices of one size, not {t} and {z}")
    found, vectors = _rotated(as_complex(as_floats(T, "rsf2csf")), as_complex(as_floats(Z, "rsf2csf")))
    return found, vectors


@composed_list
def _rotated(t: Any, z: Any) -> list[Any]:
    """Each block of 2 × 2, from the last, made triangular by a rotation of its two rows and columns."""
    size = t.type.shape[0]
    if size < 2:
        return [t, z]
    tiny = float(np.finfo(t.dtype).eps)

    def step(turn: Any, pair: Any) -> Any:
        t, z = pair
        last = size - 1 - turn
        (a, b), (c, d) = dynamic_slice(t, (last - 1, last - 1), (2, 2))
        half = (a - d) / 2
        distance = half + numpy.sqrt(half * half + b * c)  # of an eigenvalue from the last element
        is_block = numpy.abs(c) > tiny * (numpy.abs(a) + numpy.abs(d))
        length = numpy.sqrt(numpy.abs(distance) ** 2 + numpy.abs(c) ** 2)
        length = numpy.where(is_block, length, 1)
        cosine = numpy.where(is_block, distance / length, 1)
        sine = numpy.where(is_block, c / length, 0)
        turned = numpy.stack([numpy.stack([cosine.conj(), sine]), numpy.stack([-sine, cosine])])
        rows = turned @ dynamic_slice(t, (last - 1, 0), (2, size))
        t = dynamic_update_slice(t, rows, (last - 1, 0))
        back = turned.conj().T
        t, z = (
            dynamic_update_slice(x, dynamic_slice(x, (0, last - 1), (size, 2)) @ back, (0, last - 1)) for x in (t, z)
        )
        return dynamic_update_slice(t, t[:1, :1] * 0, (last, last - 1)), z

    found = fori_loop(0, size - 1, step, (t, z))
    return [numpy.triu(found[0]), found[1]]


@composed
def as_complex(a: Any) -> Any:
    """Floats as complex numbers."""
    return a if a.type.dtype.kind == "c" else Convert(np.result_type(a.type.dtype, np.complex64))(a)


def hessenberg(a: Any, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Similar matrices H with zeros below the first subdiagonal; with `calc_q` also the unitary Q of `a = Q H Q*`.

    >>> jax.scipy.linalg.hessenberg(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    found = _hessenberg(a, vectors=bool(calc_q))
    return tuple(found) if calc_q else found[0]


@composed_list
def _hessenberg(a: Any, *, vectors: bool) -> list[Any]:
    a = as_matrices("hessenberg", a, square=True)
    packed, taus = Hessenberg()(a)
    found = upper_triangle(packed, -1)
    if not vectors:
        return [found]
    size, ndim = a.type.shape[-1], a.type.ndim
    if size < 2:
        return [found, identity(a.type.shape, a.type.dtype)]
    # The reflections leave the first row and column alone.
    inner = HouseholderProduct()(block(packed, (1, size), (0, size - 1)), taus)
    first = identity((*a.type.shape[:-2], 1, size), a.type.dtype)
    column = full((*a.type.shape[:-2], size - 1, 1), 0, a.type.dtype)
    return [found, Concatenate(ndim - 2)(first, Concatenate(ndim - 1)(column, inner))]


def polar(
    a: Any, side: str = "right", *, method: str = "qdwh", eps: float | None = None, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """The matrix U with orthonormal columns, or rows, nearest to `a`, and the positive semidefinite P of `a = U P`; of
    `a = P U` where `side` is "left". Both are made of singular vectors, whatever `method` says.

    >>> jax.scipy.linalg.polar(jnp.array([[0.0, -2.0], [3.0, 0.0]]))[1]
    Array([[3., 0.],
           [0., 2.]], dtype=float32)
    """
    if side not in ("right", "left"):
        raise ValueError(f"polar: side must be 'right' or 'left', not {side!r}")
    if method not in ("qdwh", "svd"):
        raise ValueError(f"polar: method must be 'qdwh' or 'svd', not {method!r}")
    u, s, vh = lax.svd(as_floats(a, "polar"), full_matrices=False)
    if side == "right":
        return u @ vh, (matrix_transpose(vh).conj() * s[..., None, :]) @ vh
    return u @ vh, (u * s[..., None, :]) @ matrix_transpose(u).conj()
