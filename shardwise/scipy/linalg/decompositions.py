"""Matrix decompositions with the signatures of scipy. Dims before the last two are batch dims."""

from typing import Any, Literal, overload

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.control import fori_loop
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.matrices import as_matrices
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function, compiled_list_function, type_of
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.linalg.batched import (
    INDEX,
    identity,
    lower_triangle,
    row_column_mask,
    submatrix,
    upper_triangle,
)
from shardwise.compiler.ops.linalg.hessenberg_schur import Hessenberg
from shardwise.compiler.ops.linalg.householder import HouseholderProduct
from shardwise.compiler.ops.linalg.lu import Lu, PivotsToPermutation
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.slicing import Concatenate
from shardwise.lax import linalg as lax_linalg
from shardwise.lax.indexing import dynamic_slice, dynamic_update_slice
from shardwise.numpy import linalg
from shardwise.numpy.linalg.decompositions import as_inexact_operand
from shardwise.numpy.shapes import matrix_transpose
from shardwise.numpy.vectorized import vectorize
from shardwise.typing import ArrayLike

_MATRICES = Family(
    {
        "a": Parameter(
            "the matrices.",
            "TypeError: if {} is not an array, or has a dtype that LAPACK does not support (such as float16).",
        ),
        "overwrite_a, check_finite": "ignored; accepted for compatibility with scipy.",
    }
)
_SQUARE_MATRICES = _MATRICES.extended(raises=["ValueError: if `a` does not hold square matrices."])
_RANK_2 = _MATRICES.extended(
    {
        "a": Parameter(
            "the matrices.",
            "TypeError: if {} is not an array of rank 2 or more, or has a dtype that LAPACK does not support.",
        )
    }
)


@documented(_SQUARE_MATRICES, returns="The triangular factors, with zeros in the other triangle.")
def cholesky(a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Compute the Cholesky decomposition of Hermitian positive definite matrices.

    The result is NaN where a matrix is not positive definite. Only the triangle selected by `lower` is read.

    Args:
        lower: whether to return the lower factor L with `a = L L*` instead of the upper factor R with `a = R* R`.

    Example:
        >>> jax.scipy.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
        Array([[2., 1.],
               [0., 3.]], dtype=float32)
    """
    return linalg.cholesky(a, upper=not lower, symmetrize_input=False)


@documented(_SQUARE_MATRICES, returns="The Cholesky factor and `lower`.")
def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, bool]:
    """Compute the Cholesky decomposition in the form that `cho_solve` expects.

    Args:
        a: the Hermitian positive definite matrices.
        lower: whether to compute the lower factor instead of the upper one.

    Example:
        >>> jax.scipy.linalg.cho_factor(jnp.array([[4.0, 2.0], [2.0, 10.0]]))[0]
        Array([[2., 1.],
               [0., 3.]], dtype=float32)
    """
    return cholesky(a, lower), bool(lower)


@documented(_RANK_2, raises=["ValueError: if `mode` is unknown."])
def qr(
    a: ArrayLike,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Array, ...]:
    """Compute the QR decomposition `a = Q R`, with Q unitary and R upper triangular.

    Args:
        a: the matrices, of shape `(..., m, n)`.
        overwrite_a, lwork, check_finite: ignored; accepted for compatibility with scipy.
        mode: "full" returns a square Q, "economic" only its first `min(m, n)` columns, "r" only R.
        pivoting: whether to permute the columns of `a` so that the diagonal of R does not increase in magnitude.

    Returns:
        A tuple of Q (unless `mode` is "r"), R, and with `pivoting` the column permutation.

    Example:
        >>> jax.scipy.linalg.qr(jnp.array([[3.0, 0.0], [4.0, 5.0]]), mode="r")[0]
        Array([[-5., -4.],
               [ 0.,  3.]], dtype=float32)
    """
    if mode not in ("full", "economic", "r"):
        raise ValueError(f"qr: mode must be 'full', 'economic' or 'r', not {mode!r}")
    factors = lax_linalg.qr(as_inexact_operand(a, "qr"), pivoting=pivoting, full_matrices=mode != "economic")
    return factors[1:] if mode == "r" else factors


def qr_multiply(
    a: ArrayLike,
    c: ArrayLike,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Array, ...]:
    """Compute the QR decomposition `a = Q R` and the product of Q with `c`.

    Q is that of the "economic" decomposition.

    Args:
        a: the matrices to decompose.
        c: the matrices or the vector to multiply by Q.
        mode: "right" computes `c Q`, "left" computes `Q c`.
        pivoting: whether to decompose with column pivoting.
        conjugate: whether to multiply by the complex conjugate of Q.
        overwrite_a, overwrite_c: ignored; accepted for compatibility with scipy.

    Returns:
        A tuple of the product, R, and with `pivoting` the column permutation.

    Raises:
        ValueError: if `mode` is unknown, or if the shape of `c` does not match that of Q.
        TypeError: if `a` or `c` is not an array, or has a dtype that LAPACK does not support.

    Example:
        >>> jax.scipy.linalg.qr_multiply(jnp.array([[3.0], [4.0]]), jnp.array([1.0, 2.0]))[0]
        Array([-2.2], dtype=float32)
    """
    if mode not in ("left", "right"):
        raise ValueError(f"qr_multiply: mode must be 'left' or 'right', not {mode!r}")
    q, *rest = qr(a, mode="economic", pivoting=pivoting)
    x = as_inexact_operand(c, "qr_multiply")
    size = q.shape[-1] if mode == "left" else q.shape[-2]
    if not x.ndim or x.shape[0 if mode == "left" and x.ndim == 1 else -2 if mode == "left" else -1] != size:
        raise ValueError(
            f"qr_multiply: c of {type_of(x)} cannot be multiplied by Q of {type_of(q)} with mode={mode!r}: "
            f"the contracted axis of c must have size {size}"
        )
    q = q.conj() if conjugate else q
    return (q @ x if mode == "left" else x @ q), *rest


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> tuple[Array, Array, Array]: ...


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any: ...


@documented(_RANK_2)
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """Compute the singular value decomposition `a = U diag(s) V*`.

    Args:
        full_matrices: whether U and V* are square, instead of having only as many vectors as singular values.
        compute_uv: whether to return U and V*.
        overwrite_a, check_finite, lapack_driver: ignored; accepted for compatibility with scipy.

    Returns:
        The tuple `(U, s, V*)`, or `s` alone without `compute_uv`. The singular values are in descending order.

    Example:
        >>> jax.scipy.linalg.svd(jnp.array([[0.0, 2.0], [3.0, 0.0]]), compute_uv=False)
        Array([3., 2.], dtype=float32)
    """
    return lax_linalg.svd(as_inexact_operand(a, "svd"), full_matrices=full_matrices, compute_uv=compute_uv)


@overload
def eigh(
    a: ArrayLike,
    b: None = None,
    lower: bool = True,
    eigvals_only: Literal[False] = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> tuple[Array, Array]: ...


@overload
def eigh(
    a: ArrayLike,
    b: None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> Any: ...


def eigh(
    a: ArrayLike,
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
    """Compute the eigenvalues and eigenvectors of Hermitian matrices.

    Args:
        a: the Hermitian matrices.
        b: not supported; must be None.
        lower: whether to read the lower instead of the upper triangle of the mean of `a` and its adjoint.
        eigvals_only: whether to return the eigenvalues alone.
        overwrite_a, overwrite_b, turbo, check_finite: ignored; accepted for compatibility with scipy.
        eigvals: not supported; must be None.
        type: the type of a generalized problem; only 1 is supported.

    Returns:
        The eigenvalues in ascending order, and unless `eigvals_only` the eigenvectors as columns.

    Raises:
        NotImplementedError: if `b`, `eigvals` or `type` is passed.
        TypeError: if `a` is not an array of square matrices, or has a dtype that LAPACK does not support.

    Example:
        >>> jax.scipy.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]]), eigvals_only=True)
        Array([1., 3.], dtype=float32)
    """
    if b is not None or eigvals is not None or type != 1:
        raise NotImplementedError(
            "eigh: generalized problems (b, type) and subsets of the eigenvalues (eigvals) are not supported; "
            "leave out b, type and eigvals"
        )
    vectors, values = lax_linalg.eigh(as_inexact_operand(a, "eigh"), lower=lower)
    return values if eigvals_only else (values, vectors)


def eigh_tridiagonal(
    d: ArrayLike,
    e: ArrayLike,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[float, float] | None = None,
    tol: float | None = None,
    key: ArrayLike | None = None,
) -> Any:
    """Compute the eigenvalues and eigenvectors of a Hermitian tridiagonal matrix.

    Args:
        d: the diagonal, of n elements.
        e: the subdiagonal, of n - 1 elements.
        eigvals_only: whether to return the eigenvalues alone.
        select: "a" for all eigenvalues, "i" for those with the indices in `select_range`.
        select_range: with `select="i"`, the first and the last index, both inclusive.
        tol, key: ignored; accepted for compatibility with JAX.

    Returns:
        The eigenvalues in ascending order, and unless `eigvals_only` the eigenvectors as columns.

    Raises:
        NotImplementedError: if `select` is another value.
        ValueError: if `select_range` is passed without `select="i"` or is missing with it, or if it is out of range.
        TypeError: if `d` and `e` are not vectors of matching lengths and equal dtypes.

    Example:
        >>> jax.scipy.linalg.eigh_tridiagonal(jnp.array([2.0, 2.0]), jnp.array([1.0]), eigvals_only=True)
        Array([1., 3.], dtype=float32)
    """
    d_type, e_type = type_of(d, "eigh_tridiagonal"), type_of(e, "eigh_tridiagonal")
    if d_type.ndim != 1 or e_type.shape != (max(0, d_type.size - 1),) or d_type.dtype != e_type.dtype:
        raise TypeError(
            "eigh_tridiagonal: d must be a vector, and e a vector of one element less and the same dtype, "
            f"not {d_type} and {e_type}"
        )
    if select not in ("a", "i"):
        raise NotImplementedError(f"eigh_tridiagonal: select={select!r} is not supported; use 'a' or 'i'")
    if (select == "i") != (select_range is not None):
        raise ValueError("eigh_tridiagonal: select='i' and select_range must be passed together")
    subset = None if select_range is None else (int(select_range[0]), int(select_range[1]) + 1)
    matrix = _tridiagonal(as_inexact_operand(d, "eigh_tridiagonal"), as_inexact_operand(e, "eigh_tridiagonal"))
    vectors, values = lax_linalg.eigh(matrix, symmetrize_input=False, subset_by_index=subset)
    return values if eigvals_only else (values, vectors)


@compiled_function
def _tridiagonal(d: Array, e: Array) -> Any:
    """Return the lower triangle of the tridiagonal matrix; the upper one is not read."""
    size = d.type.size
    shape = (size, size)
    diagonal = Broadcast(shape, (1,))(d)
    matrix = Select()(row_column_mask(shape, "EQ"), diagonal, zeros_like(diagonal))
    if size < 2:
        return matrix
    subdiagonal = Concatenate(0)(e, full((1,), 0, e.type.dtype))
    return Select()(row_column_mask(shape, "EQ", -1), Broadcast(shape, (1,))(subdiagonal), matrix)


@documented(_RANK_2)
def lu_factor(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, Array]:
    """Compute the LU decomposition with partial pivoting in the form that `lu_solve` expects.

    Returns:
        L (below the diagonal, without its unit diagonal) and U packed into one matrix, and the pivots: row i was
        interchanged with row `pivots[i]`.

    Example:
        >>> jax.scipy.linalg.lu_factor(jnp.array([[1.0, 2.0], [4.0, 4.0]]))[0]
        Array([[4.  , 4.  ],
               [0.25, 1.  ]], dtype=float32)
    """
    packed, pivots, _ = lax_linalg.lu(as_inexact_operand(a, "lu_factor"))
    return packed, pivots


@documented(_MATRICES, returns="The tuple `(P, L, U)`, or `(P L, U)` with `permute_l`.")
def lu(
    a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, ...]:
    """Compute the LU decomposition `a = P L U` with partial pivoting.

    P is a permutation matrix, L is lower triangular with a unit diagonal, and U is upper triangular.

    Args:
        permute_l: whether to return the product `P L` instead of P and L.

    Raises:
        ValueError: if `a` has a rank below 2.

    Example:
        >>> jax.scipy.linalg.lu(jnp.array([[1.0, 2.0], [4.0, 4.0]]))[2]
        Array([[4., 4.],
               [0., 1.]], dtype=float32)
    """
    return tuple(_lu(a, permute_l=bool(permute_l)))


@compiled_list_function
def _lu(a: ArrayLike, *, permute_l: bool) -> list[Any]:
    a = as_matrices("lu", a)
    *batch, rows, columns = a.type.shape
    size = min(rows, columns)
    packed, pivots = Lu()(a)
    permutation = PivotsToPermutation(rows)(pivots)
    square = (*batch, rows, rows)
    ndim = len(square)
    # Row i of L U is row permutation[i] of a, so column i of P has its 1 in that row.
    row_of_one = Broadcast(square, (*range(ndim - 2), ndim - 1))(permutation)
    permutation_matrix = Convert(a.type.dtype)(Compare("EQ")(Iota(square, ndim - 2, INDEX)(), row_of_one))
    lower = submatrix(packed, (0, rows), (0, size))
    lower = lower_triangle(lower, -1) + identity(lower.type.shape, a.type.dtype)
    upper = upper_triangle(submatrix(packed, (0, size), (0, columns)))
    return [permutation_matrix @ lower, upper] if permute_l else [permutation_matrix, lower, upper]


def schur(a: ArrayLike, output: str = "real") -> tuple[Array, Array]:
    """Compute the Schur decomposition `a = Z T Z*`, with Z unitary and T upper triangular.

    T of a real decomposition is quasi upper triangular: it has a 2 × 2 block on its diagonal for each pair of complex
    conjugate eigenvalues. The decomposition is not differentiable.

    Args:
        a: the square matrices.
        output: "real" or "complex", the kind of decomposition of real matrices.

    Returns:
        The tuple `(T, Z)`.

    Raises:
        ValueError: if `output` is unknown.
        TypeError: if `a` is not an array of square matrices, or has a dtype that LAPACK does not support.

    Example:
        >>> jax.scipy.linalg.schur(jnp.array([[1.0, 2.0], [0.0, 3.0]]))[0]
        Array([[1., 2.],
               [0., 3.]], dtype=float32)
    """
    if output not in ("real", "complex"):
        raise ValueError(f"schur: output must be 'real' or 'complex', not {output!r}")
    matrix = as_inexact_operand(a, "schur")
    triangular, vectors = lax_linalg.schur(as_complex(matrix) if output == "complex" else matrix)
    return triangular, vectors


def rsf2csf(T: ArrayLike, Z: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """Convert a real Schur decomposition into a complex one.

    Args:
        T: the quasi upper triangular matrices of real decompositions, of shape (..., n, n).
        Z: their orthogonal matrices. Batch dims broadcast.
        check_finite: ignored; accepted for compatibility with scipy.

    Returns:
        The upper triangular T and the unitary Z of the complex decomposition.

    Raises:
        ValueError: if `T` and `Z` are not square matrices of equal size.
        TypeError: if an argument is not an array or a number.

    Example:
        >>> T, Z = jax.scipy.linalg.rsf2csf(jnp.array([[0.0, 1.0], [-1.0, 0.0]]), jnp.eye(2))
        >>> T.round(3) + 0
        Array([[0.+1.j, 0.+0.j],
               [0.+0.j, 0.-1.j]], dtype=complex64)
    """
    t_type, z_type = type_of(T, "rsf2csf"), type_of(Z, "rsf2csf")
    sizes = {*t_type.shape[-2:], *z_type.shape[-2:]}
    if min(t_type.ndim, z_type.ndim) < 2 or len(sizes) > 1:
        raise ValueError(f"rsf2csf: T and Z must be square matrices of equal size, not {t_type} and {z_type}")
    rotate = vectorize(lambda t, z: tuple(_rotate_blocks(t, z)), signature="(n,n),(n,n)->(n,n),(n,n)")
    triangular, vectors = rotate(
        as_complex(as_inexact_operand(T, "rsf2csf")), as_complex(as_inexact_operand(Z, "rsf2csf"))
    )
    return triangular, vectors


@compiled_list_function
def _rotate_blocks(t: Array, z: Array) -> list[Any]:
    """Make each 2 × 2 diagonal block triangular by a Givens rotation of its two rows and columns, last block first."""
    size = t.type.shape[0]
    if size < 2:
        return [t, z]
    epsilon = float(np.finfo(t.dtype).eps)

    def step(number: Array, pair: Any) -> Any:
        t, z = pair
        last = size - 1 - number
        (a, b), (c, d) = dynamic_slice(t, (last - 1, last - 1), (2, 2))
        half = (a - d) / 2
        distance = half + jnp.sqrt(half * half + b * c)  # an eigenvalue minus d
        is_block = jnp.abs(c) > epsilon * (jnp.abs(a) + jnp.abs(d))
        length = jnp.sqrt(jnp.abs(distance) ** 2 + jnp.abs(c) ** 2)
        length = jnp.where(is_block, length, 1)
        cosine = jnp.where(is_block, distance / length, 1)
        sine = jnp.where(is_block, c / length, 0)
        rotation = jnp.stack([jnp.stack([cosine.conj(), sine]), jnp.stack([-sine, cosine])])
        rows = rotation @ dynamic_slice(t, (last - 1, 0), (2, size))
        t = dynamic_update_slice(t, rows, (last - 1, 0))
        adjoint = rotation.conj().T
        t, z = (
            dynamic_update_slice(x, dynamic_slice(x, (0, last - 1), (size, 2)) @ adjoint, (0, last - 1)) for x in (t, z)
        )
        return dynamic_update_slice(t, t[:1, :1] * 0, (last, last - 1)), z

    triangular, vectors = fori_loop(0, size - 1, step, (t, z))
    return [jnp.triu(triangular), vectors]


@compiled_function
def as_complex(a: Array) -> Any:
    """Convert floats to complex numbers; leave complex numbers unchanged."""
    return a if a.type.dtype.kind == "c" else Convert(np.result_type(a.type.dtype, np.complex64))(a)


@documented(_SQUARE_MATRICES, returns="H, or the tuple `(H, Q)` with `calc_q`.")
def hessenberg(a: ArrayLike, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Reduce square matrices to Hessenberg form: `a = Q H Q*` with H zero below the first subdiagonal and Q unitary.

    The reduction is not differentiable.

    Args:
        a: the square matrices.
        calc_q: whether to return Q.

    Example:
        >>> jax.scipy.linalg.hessenberg(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
        Array([[1., 2.],
               [3., 4.]], dtype=float32)
    """
    factors = _hessenberg(a, calc_q=bool(calc_q))
    return tuple(factors) if calc_q else factors[0]


@compiled_list_function
def _hessenberg(a: ArrayLike, *, calc_q: bool) -> list[Any]:
    a = as_matrices("hessenberg", a, square=True)
    packed, taus = Hessenberg()(a)
    reduced = upper_triangle(packed, -1)
    if not calc_q:
        return [reduced]
    size, ndim = a.type.shape[-1], a.type.ndim
    if size < 2:
        return [reduced, identity(a.type.shape, a.type.dtype)]
    # The reflections do not change the first row and column of Q.
    inner = HouseholderProduct()(submatrix(packed, (1, size), (0, size - 1)), taus)
    first_row = identity((*a.type.shape[:-2], 1, size), a.type.dtype)
    zero_column = full((*a.type.shape[:-2], size - 1, 1), 0, a.type.dtype)
    return [reduced, Concatenate(ndim - 2)(first_row, Concatenate(ndim - 1)(zero_column, inner))]


@documented(_RANK_2, returns="The tuple `(U, P)`.", raises=["ValueError: if `side` or `method` is unknown."])
def polar(
    a: ArrayLike,
    side: str = "right",
    *,
    method: str = "qdwh",
    eps: float | None = None,
    max_iterations: int | None = None,
) -> tuple[Array, Array]:
    """Compute the polar decomposition `a = U P`, with U unitary and P Hermitian positive semidefinite.

    U of a matrix that is not square has orthonormal columns or rows.

    Args:
        side: "right" for `a = U P`, "left" for `a = P U`.
        method: "qdwh" or "svd". Both use the singular value decomposition.
        eps, max_iterations: ignored; accepted for compatibility with JAX.

    Example:
        >>> jax.scipy.linalg.polar(jnp.array([[0.0, -2.0], [3.0, 0.0]]))[1]
        Array([[3., 0.],
               [0., 2.]], dtype=float32)
    """
    if side not in ("right", "left"):
        raise ValueError(f"polar: side must be 'right' or 'left', not {side!r}")
    if method not in ("qdwh", "svd"):
        raise ValueError(f"polar: method must be 'qdwh' or 'svd', not {method!r}")
    u, s, vh = lax_linalg.svd(as_inexact_operand(a, "polar"), full_matrices=False)
    if side == "right":
        return u @ vh, (matrix_transpose(vh).conj() * s[..., None, :]) @ vh
    return u @ vh, (u * s[..., None, :]) @ matrix_transpose(u).conj()
