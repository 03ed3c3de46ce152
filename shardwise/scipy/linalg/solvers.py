"""Solvers of linear systems, determinants and inverses, with the signatures of scipy."""

import operator
from typing import Any

from shardwise.api.control import fori_loop
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.matrices import as_matrices
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import inexact_dtype, promote_dtypes
from shardwise.compiler.ops.elementwise.base import INEXACT, DtypeSet
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.linalg.batched import INDEX, adjoint, identity
from shardwise.compiler.ops.linalg.lapack import LAPACK_DTYPES
from shardwise.compiler.ops.linalg.lu import PivotsToPermutation, permute_rows
from shardwise.compiler.ops.linalg.triangular import TriangularSolve, solve_cholesky
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.lax.indexing import dynamic_index_in_dim, dynamic_update_index_in_dim
from shardwise.numpy import linalg
from shardwise.numpy.linalg.decompositions import as_inexact_operand
from shardwise.numpy.vectorized import vectorize
from shardwise.scipy.linalg.decompositions import cholesky, schur
from shardwise.typing import ArrayLike

_TRANS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


_SOLVER = Family(
    {
        "a": "the square matrices.",
        "overwrite_a, check_finite": "ignored; accepted for compatibility with scipy.",
        "b": "the right-hand sides: matrices whose columns are solved for, or a vector.",
    },
    returns="The solution x.",
    raises=[
        "TypeError: if an argument is not an array, if its dtype is not supported, or if the batch dims\n"
        "do not broadcast.",
        "ValueError: if `a` does not hold square matrices.",
    ],
)


@documented(_SOLVER, returns="The determinants, in the shape of the batch dims.")
def det(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Compute the determinants of square matrices.

    Raises:
        TypeError: if `a` is not an array, or has a dtype that LAPACK does not support (such as float16).

    Example:
        >>> jax.scipy.linalg.det(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
        Array(-2., dtype=float32)
    """
    return linalg.det(a)


@documented(_SOLVER)
def inv(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Compute the inverses of square matrices.

    Returns:
        The inverses, in the shape of `a`. Those of singular matrices hold NaN or infinite elements.

    Raises:
        TypeError: if `a` is not an array, or has a dtype that LAPACK does not support (such as float16).

    Example:
        >>> jax.scipy.linalg.inv(jnp.array([[2.0, 0.0], [1.0, 1.0]]))
        Array([[ 0.5,  0. ],
               [-0.5,  1. ]], dtype=float32)
    """
    return linalg.inv(a)


@documented(_SOLVER)
def solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Array:
    """Solve the linear system `a x = b`.

    Args:
        lower: with `assume_a="pos"`, whether to read the lower triangle of `a` instead of the upper one.
        overwrite_a, overwrite_b, debug, check_finite: ignored; accepted for compatibility with scipy.
        assume_a: "pos" solves by the Cholesky decomposition, for Hermitian positive definite matrices; "gen", "sym" and
            "her" solve by the LU decomposition.

    Raises:
        ValueError: if `assume_a` is unknown, if `a` is not square, or if `b` does not have as many rows as `a`.

    Example:
        >>> jax.scipy.linalg.solve(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([4.0, 8.0]))
        Array([1., 2.], dtype=float32)
    """
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise ValueError(f"solve: assume_a must be 'gen', 'sym', 'her' or 'pos', not {assume_a!r}")
    return linalg.solve(a, b) if assume_a != "pos" else cho_solve((cholesky(a, lower), bool(lower)), b)


@documented(_SOLVER)
def cho_solve(
    c_and_lower: tuple[Any, bool], b: ArrayLike, overwrite_b: bool = False, check_finite: bool = True
) -> Array:
    """Solve the linear system `a x = b`, given the Cholesky decomposition of a.

    Args:
        c_and_lower: the result of `cho_factor(a)`: the factor, and whether it is the lower one.
        overwrite_b, check_finite: ignored; accepted for compatibility with scipy.

    Raises:
        ValueError: if the factor does not hold square matrices, or if `b` does not have as many rows.

    Example:
        >>> factor = jax.scipy.linalg.cho_factor(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
        >>> jax.scipy.linalg.cho_solve(factor, jnp.array([6.0, 12.0]))
        Array([1., 1.], dtype=float32)
    """
    factor, lower = c_and_lower
    return _cho_solve(factor, b, lower=bool(lower))


@compiled_function
def _cho_solve(factor: ArrayLike, b: ArrayLike, *, lower: bool) -> Any:
    factor, b, shape = _prepare_operands("cho_solve", factor, b, LAPACK_DTYPES)
    return Reshape(shape)(solve_cholesky(factor if lower else adjoint(factor), b))


def _prepare_operands(name: str, a: ArrayLike, b: ArrayLike, dtypes: DtypeSet) -> tuple[Array, Array, tuple[int, ...]]:
    """Promote `a` and `b` to one of `dtypes`, broadcast their batch dims, and make a vector `b` a column.

    Returns the two operands and the shape of the solution.
    """
    dtype, _ = promote_dtypes(name, [type_of(x, name) for x in (a, b)])
    dtype = inexact_dtype(dtype)
    left = as_matrices(name, astype_weak(as_operand(a), dtype, False), square=True, dtypes=dtypes)
    right = astype_weak(as_operand(b), dtype, False)
    is_vector = right.type.ndim == 1
    right = Reshape((*right.type.shape, 1))(right) if is_vector else right
    if right.type.ndim < 2 or right.type.shape[-2] != left.type.shape[-1]:
        raise ValueError(f"{name}: b must have as many rows as a: a is {left.type}, b is {right.type}")
    batch = broadcast_shapes(name, left.type.shape[:-2], right.type.shape[:-2])
    left, right = (broadcast_to_shape(x, (*batch, *x.type.shape[-2:])) for x in (left, right))
    return left, right, right.type.shape[:-1] if is_vector else right.type.shape


@documented(_SOLVER)
def lu_solve(
    lu_and_piv: tuple[Any, Any], b: ArrayLike, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Array:
    """Solve the linear system `a x = b`, given the LU decomposition of a.

    Args:
        lu_and_piv: the result of `lu_factor(a)`: the packed factors and the pivots.
        trans: 0 solves with a, 1 with its transpose, 2 with its adjoint.
        overwrite_b, check_finite: ignored; accepted for compatibility with scipy.

    Raises:
        ValueError: if `trans` is unknown, if the factors are not square matrices, or if `b` does not have as many rows.

    Example:
        >>> factors = jax.scipy.linalg.lu_factor(jnp.array([[2.0, 1.0], [0.0, 4.0]]))
        >>> jax.scipy.linalg.lu_solve(factors, jnp.array([4.0, 8.0]))
        Array([1., 2.], dtype=float32)
    """
    if trans not in (0, 1, 2):
        raise ValueError(f"lu_solve: trans must be 0, 1 or 2, not {trans!r}")
    packed, pivots = lu_and_piv
    return _lu_solve(packed, pivots, b, trans=operator.index(trans))


@compiled_function
def _lu_solve(packed: ArrayLike, pivots: ArrayLike, b: ArrayLike, *, trans: int) -> Any:
    packed, b, shape = _prepare_operands("lu_solve", packed, b, LAPACK_DTYPES)
    permutation = PivotsToPermutation(packed.type.shape[-1])(as_operand(pivots))
    permutation = broadcast_to_shape(permutation, packed.type.shape[:-1])
    transposition = {"transpose_a": trans > 0, "conjugate_a": trans == 2}
    solve_lower = TriangularSolve(left_side=True, is_lower=True, unit_diagonal=True, **transposition)
    solve_upper = TriangularSolve(left_side=True, is_lower=False, **transposition)
    if not trans:
        return Reshape(shape)(solve_upper(packed, solve_lower(packed, permute_rows(b, permutation))))
    permuted = solve_lower(packed, solve_upper(packed, b))
    return Reshape(shape)(permute_rows(permuted, _inverse_permutation(permutation)))


def _inverse_permutation(permutation: Array) -> Any:
    """Return the inverse of each permutation along the last axis."""
    last = permutation.type.ndim - 1
    positions = Iota(permutation.type.shape, last, INDEX)()
    return Sort(last)(permutation, positions)[1]


@documented(_SOLVER)
def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Array:
    """Solve the linear system `a x = b` with triangular a.

    Args:
        a: the triangular matrices. The other triangle is not read.
        trans: 0 or "N" solves with a, 1 or "T" with its transpose, 2 or "C" with its adjoint.
        lower: whether a is lower triangular instead of upper triangular.
        unit_diagonal: whether the diagonal of a is 1 and not read.
        overwrite_b, debug, check_finite: ignored; accepted for compatibility with scipy.

    Raises:
        ValueError: if `trans` is unknown, if `a` does not hold square matrices, or if `b` does not have as many rows.
        TypeError: if an argument is not an array, or if the batch dims do not broadcast.

    Example:
        >>> jax.scipy.linalg.solve_triangular(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([4.0, 8.0]))
        Array([1., 2.], dtype=float32)
    """
    if trans not in _TRANS:
        raise ValueError(f"solve_triangular: trans must be 0, 1, 2, 'N', 'T' or 'C', not {trans!r}")
    code = _TRANS[trans]
    return _solve_triangular(a, b, op=TriangularSolve(True, bool(lower), code > 0, code == 2, bool(unit_diagonal)))


@compiled_function
def _solve_triangular(a: ArrayLike, b: ArrayLike, *, op: TriangularSolve) -> Any:
    a, b, shape = _prepare_operands("solve_triangular", a, b, INEXACT)
    return Reshape(shape)(op(a, b))


def solve_sylvester(A: ArrayLike, B: ArrayLike, C: ArrayLike, *, method: str = "schur", tol: float = 1e-8) -> Array:
    """Solve the Sylvester equation `A X + X B = C` by the Bartels-Stewart algorithm.

    The solution is not differentiable.

    Args:
        A: square matrices of size m.
        B: square matrices of size n.
        C: matrices of shape `(..., m, n)`. Batch dims of the three broadcast.
        method: "schur" or "eigen". Both use the Schur decomposition.
        tol: ignored; accepted for compatibility with JAX.

    Returns:
        The solution X.

    Raises:
        ValueError: if `method` is unknown, if an argument is not a matrix, or if the shape of `C` does not match.
        TypeError: if an argument is not an array, or if `A` or `B` is not square.

    Example:
        >>> jax.scipy.linalg.solve_sylvester(jnp.array([[2.0]]), jnp.array([[3.0]]), jnp.array([[10.0]]))
        Array([[2.]], dtype=float32)
    """
    if method not in ("schur", "eigen"):
        raise ValueError(f"solve_sylvester: method must be 'schur' or 'eigen', not {method!r}")
    types = [type_of(x, "solve_sylvester") for x in (A, B, C)]
    a_type, b_type, c_type = types
    rows, columns = a_type.shape[-1:], b_type.shape[-1:]
    is_matrix = all(x.ndim >= 2 for x in types)
    if (
        not is_matrix
        or (a_type.shape[-2:], b_type.shape[-2:]) != (rows * 2, columns * 2)
        or c_type.shape[-2:]
        != (
            *rows,
            *columns,
        )
    ):
        raise ValueError(
            "solve_sylvester: A must have shape (m, m), B (n, n) and C (m, n): "
            f"A is {a_type}, B is {b_type}, C is {c_type}"
        )
    (left, u), (right, v) = schur(A, "complex"), schur(B, "complex")
    solve = vectorize(_solve_triangular_sylvester, signature="(m,m),(n,n),(m,n)->(m,n)")
    right_side = u.conj().mT @ as_inexact_operand(C, "solve_sylvester") @ v
    solution = u @ solve(left, right, right_side) @ v.conj().mT
    return solution if any(x.dtype.kind == "c" for x in types) else solution.real


@compiled_function
def _solve_triangular_sylvester(r: Array, s: Array, f: Array) -> Any:
    """Solve `R Y + Y S = F` with upper triangular R and S for Y, column by column."""
    solve_upper = TriangularSolve(left_side=True, is_lower=False)
    one = identity(r.type.shape, r.type.dtype)

    def step(number: Array, y: Array) -> Any:
        column = dynamic_index_in_dim(s, number, 1)
        pivot = dynamic_index_in_dim(column, number, 0)
        # The columns of Y that are not computed yet are 0, so `y @ column` sums the earlier columns only.
        right_side = dynamic_index_in_dim(f, number, 1) - y @ column
        return dynamic_update_index_in_dim(y, solve_upper(r + one * pivot, right_side), number, 1)

    return fori_loop(0, s.type.shape[0], step, f * 0)
