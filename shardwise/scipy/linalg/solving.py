"""Linear equations, as scipy spells them."""

import operator
from typing import Any

from shardwise.api.control import fori_loop
from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops.elementwise import INEXACT, Kinds
from shardwise.compiler.ops.lapack import FACTORED
from shardwise.compiler.ops.lu import PivotsToPermutation, permuted_rows
from shardwise.compiler.ops.matrix import INDEX, adjoint, as_matrices, identity
from shardwise.compiler.ops.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    composed,
    stretch,
    type_of,
)
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.shape import Iota, Reshape
from shardwise.compiler.ops.sort import Sort
from shardwise.compiler.ops.triangular import TriangularSolve, solve_positive
from shardwise.lax.indexing import dynamic_index_in_dim, dynamic_update_index_in_dim
from shardwise.numpy import linalg
from shardwise.scipy.linalg.factors import cholesky, schur

_WAYS = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The determinants of square matrices.

    >>> jax.scipy.linalg.det(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    return linalg.det(a)


def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The inverses of square matrices.

    >>> jax.scipy.linalg.inv(jnp.array([[2.0, 0.0], [1.0, 1.0]]))
    Array([[ 0.5,  0. ],
           [-0.5,  1. ]], dtype=float32)
    """
    return linalg.inv(a)


def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Any:
    """The x of `a x = b`. `assume_a` "pos": a is Hermitian and positive definite, of which the triangle `lower` says is
    read; "gen", "sym", "her": any matrix.

    >>> jax.scipy.linalg.solve(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([4.0, 8.0]))
    Array([1., 2.], dtype=float32)
    """
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise ValueError(f"solve: assume_a {assume_a!r} is none of 'gen', 'sym', 'her' and 'pos'")
    return linalg.solve(a, b) if assume_a != "pos" else cho_solve((cholesky(a, lower), bool(lower)), b)


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """The x of `a x = b`, given what `cho_factor` makes of a.

    >>> factor = jax.scipy.linalg.cho_factor(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
    >>> jax.scipy.linalg.cho_solve(factor, jnp.array([6.0, 12.0]))
    Array([1., 1.], dtype=float32)
    """
    factor, lower = c_and_lower
    return _cho_solve(factor, b, lower=bool(lower))


@composed
def _cho_solve(factor: Any, b: Any, *, lower: bool) -> Any:
    factor, b, shape = _pair("cho_solve", factor, b, FACTORED)
    return Reshape(shape)(solve_positive(factor if lower else adjoint(factor), b))


def _pair(name: str, a: Any, b: Any, takes: Kinds) -> tuple[Any, Any, tuple[int, ...]]:
    """Matrices a and b with one dtype and one batch, and the shape that the result has: b may be one vector."""
    dtype, _ = meet(name, [type_of(x, name) for x in (a, b)])
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    a = as_matrices(name, astype_weak(as_operand(a), dtype, False), square=True, takes=takes)
    b = astype_weak(as_operand(b), dtype, False)
    is_vector = b.type.ndim == 1
    b = Reshape((*b.type.shape, 1))(b) if is_vector else b
    if b.type.ndim < 2 or b.type.shape[-2] != a.type.shape[-1]:
        raise ValueError(f"{name}: matrices of {a.type} need as many rows of b, not {b.type}")
    batch = broadcast_shapes(name, a.type.shape[:-2], b.type.shape[:-2])
    a, b = (stretch(x, (*batch, *x.type.shape[-2:])) for x in (a, b))
    return a, b, b.type.shape[:-1] if is_vector else b.type.shape


def lu_solve(
    lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    """The x of `a x = b`, given what `lu_factor` makes of a; of the transpose of a where `trans` is 1, of its adjoint
    where it is 2.

    >>> factors = jax.scipy.linalg.lu_factor(jnp.array([[2.0, 1.0], [0.0, 4.0]]))
    >>> jax.scipy.linalg.lu_solve(factors, jnp.array([4.0, 8.0]))
    Array([1., 2.], dtype=float32)
    """
    if trans not in (0, 1, 2):
        raise ValueError(f"lu_solve: trans must be 0, 1 or 2, not {trans!r}")
    both, pivots = lu_and_piv
    return _lu_solve(both, pivots, b, trans=operator.index(trans))


@composed
def _lu_solve(both: Any, pivots: Any, b: Any, *, trans: int) -> Any:
    both, b, shape = _pair("lu_solve", both, b, FACTORED)
    order = PivotsToPermutation(both.type.shape[-1])(as_operand(pivots))
    order = stretch(order, both.type.shape[:-1])
    way = {"transpose_a": trans > 0, "conjugate_a": trans == 2}
    by_lower = TriangularSolve(left_side=True, is_lower=True, unit_diagonal=True, **way)
    by_upper = TriangularSolve(left_side=True, is_lower=False, **way)
    if not trans:
        return Reshape(shape)(by_upper(both, by_lower(both, permuted_rows(b, order))))
    found = by_lower(both, by_upper(both, b))
    return Reshape(shape)(permuted_rows(found, _inverse_order(order)))


def _inverse_order(order: Any) -> Any:
    """Where each number is in permutations."""
    last = order.type.ndim - 1
    places = Iota(order.type.shape, last, INDEX)()
    return Sort(last)(order, places)[1]


def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Any:
    """The x of `a x = b`, of triangular matrices a; of their transposes where `trans` is 1 or "T", of their adjoints
    where it is 2 or "C".

    >>> jax.scipy.linalg.solve_triangular(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([4.0, 8.0]))
    Array([1., 2.], dtype=float32)
    """
    if trans not in _WAYS:
        raise ValueError(f"solve_triangular: trans must be 0, 1, 2, 'N', 'T' or 'C', not {trans!r}")
    way = _WAYS[trans]
    return _solve_triangular(a, b, op=TriangularSolve(True, bool(lower), way > 0, way == 2, bool(unit_diagonal)))


@composed
def _solve_triangular(a: Any, b: Any, *, op: TriangularSolve) -> Any:
    a, b, shape = _pair("solve_triangular", a, b, INEXACT)
    return Reshape(shape)(op(a, b))


def solve_sylvester(A: Any, B: Any, C: Any, *, method: str = "schur", tol: float = 1e-8) -> Any:
    """The X of `A X + X B = C`, of square matrices A and B.

    >>> jax.scipy.linalg.solve_sylvester(jnp.array([[2.0]]), jnp.array([[3.0]]), jnp.array([[10.0]]))
    Array([[2.]], dtype=float32)
    """
    if method not in ("schur", "eigen"):
        raise ValueError(f"solve_sylvester: method must be 'schur' or 'eigen', not {method!r}")
    kinds = [type_of(x, "solve_sylvester") for x in (A, B, C)]
    if any(kind.ndim != 2 for kind in kinds) or kinds[2].shape != (kinds[0].shape[0], kinds[1].shape[0]):
        raise ValueError(f"solve_sylvester: needs two square matrices and one that fits, not {kinds}")
    (left, u), (right, v) = schur(A, "complex"), schur(B, "complex")
    found = u @ _sylvester(left, right, u.conj().T @ C @ v) @ v.conj().T
    return found if any(kind.dtype.kind == "c" for kind in kinds) else found.real


@composed
def _sylvester(r: Any, s: Any, f: Any) -> Any:
    """The Y of `R Y + Y S = F`, of upper triangular R and S: one column after the other."""
    by_upper = TriangularSolve(left_side=True, is_lower=False)
    one = identity(r.type.shape, r.type.dtype)

    def step(number: Any, y: Any) -> Any:
        above = dynamic_index_in_dim(s, number, 1)
        pivot = dynamic_index_in_dim(above, number, 0)
        # Columns of Y that are not known yet are 0: of `Y S` this sums those that are.
        left = dynamic_index_in_dim(f, number, 1) - y @ above
        return dynamic_update_index_in_dim(y, by_upper(r + one * pivot, left), number, 1)

    return fori_loop(0, s.type.shape[0], step, f * 0)
