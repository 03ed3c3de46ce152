"""Linear systems (solve, inv, pinv, lstsq, tensorsolve, tensorinv) and determinants (det, slogdet)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shardwise.api.transformations.custom import custom_jvp
from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.matrices import as_matrices
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    compiled_list_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import inexact_dtype, promote_dtypes
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Sub
from shardwise.compiler.ops.elementwise.base import INEXACT
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Sign
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Log
from shardwise.compiler.ops.linalg.batched import (
    INDEX,
    adjoint,
    as_dtype,
    batched_matmul,
    diagonal,
    epsilon,
    identity,
    row_column_mask,
    scale_columns,
    scale_rows,
)
from shardwise.compiler.ops.linalg.eigen import Eigh
from shardwise.compiler.ops.linalg.householder import Geqrf
from shardwise.compiler.ops.linalg.lu import Lu, PivotsToPermutation, solve_factored
from shardwise.compiler.ops.linalg.lu import solve as lu_solve
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceMax, ReduceProd
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.numpy.families import MATRICES, SQUARE_MATRICES
from shardwise.numpy.linalg.decompositions import as_inexact_operand
from shardwise.typing import ArrayLike


class SlogdetResult(NamedTuple):
    """The result of `slogdet`."""

    sign: Array
    logabsdet: Array


@compiled_function
def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """Solve the linear systems `a x = b` by LU decomposition.

    Args:
        a: the square matrices, in the last two dims.
        b: the right-hand sides: one vector if it has rank 1, else matrices with one right-hand side per column. The
            batch dims of `a` and `b` broadcast.

    Returns:
        The solutions x.

    Raises:
        TypeError: if the batch dims do not broadcast, or if a float dtype has 16 bits or less.
        ValueError: if `a` does not hold square matrices, or if `b` does not have as many rows.

    Example:
        >>> jnp.linalg.solve(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([4.0, 8.0]))
        Array([1., 2.], dtype=float32)
    """
    dtype, _ = promote_dtypes("solve", [type_of(x, "solve") for x in (a, b)])
    dtype = inexact_dtype(dtype)
    a = as_matrices("solve", astype_weak(as_operand(a), dtype, False), square=True)
    b = astype_weak(as_operand(b), dtype, False)
    if not b.type.ndim or b.type.shape[-1 if b.type.ndim == 1 else -2] != a.type.shape[-1]:
        raise ValueError(
            f"solve: b must have as many rows as the matrices {a.type}, not {b.type}; for a batch of vectors pass "
            "b[..., None]"
        )
    if b.type.ndim == 1:
        x = _solve_matrices(a, Reshape((*b.type.shape, 1))(b))
        return Reshape(x.type.shape[:-1])(x)
    return _solve_matrices(a, b)


def _solve_matrices(a: Array, b: Array) -> Any:
    """Solve for matrices `b`, whose batch dims broadcast with those of `a`."""
    if a.type.ndim == 2 and b.type.ndim > 2:  # one matrix for all of the batch: decompose it only once
        rows = b.type.ndim - 2
        order = (rows, *(dim for dim in range(b.type.ndim) if dim != rows))
        rows_first = permute(b, order)
        flat = lu_solve(a, Reshape((rows_first.type.shape[0], math.prod(rows_first.type.shape[1:])))(rows_first))
        return permute(Reshape(rows_first.type.shape)(flat), (*range(1, rows + 1), 0, rows + 1))
    batch = broadcast_shapes("solve", a.type.shape[:-2], b.type.shape[:-2])
    return lu_solve(*(broadcast_to_shape(x, (*batch, *x.type.shape[-2:])) for x in (a, b)))


@compiled_function
@documented(SQUARE_MATRICES)
def inv(a: ArrayLike) -> Array:
    """Invert square matrices.

    Returns:
        The inverses. A singular matrix does not raise; its result holds infinities or NaN.

    Example:
        >>> jnp.linalg.inv(jnp.array([[2.0, 0.0], [1.0, 1.0]]))
        Array([[ 0.5,  0. ],
               [-0.5,  1. ]], dtype=float32)
    """
    a = as_matrices("inv", a, square=True)
    return lu_solve(a, identity(a.type.shape, a.type.dtype))


def slogdet(a: ArrayLike, *, method: str | None = None) -> SlogdetResult:
    """Compute the sign and the logarithm of the absolute value of determinants.

    Args:
        a: the square matrices, in the last two dims.
        method: the decomposition: "lu" or None, which is the same, or "qr" for real matrices.

    Returns:
        A named tuple (sign, logabsdet). The sign is 0 or has absolute value 1; it is complex for complex matrices.

    Raises:
        TypeError: if `a` has a float dtype of 16 bits or less.
        ValueError: if `a` does not hold square matrices, or if `method` is unknown.
        NotImplementedError: if `method` is "qr" and the matrices are complex.

    Example:
        >>> jnp.linalg.slogdet(jnp.array([[0.0, 1.0], [1.0, 0.0]])).sign
        Array(-1., dtype=float32)
    """
    if method not in (None, "lu", "qr"):
        raise ValueError(f"slogdet: method must be None, 'lu' or 'qr', not {method!r}")
    if method != "qr":
        return SlogdetResult(*_slogdet(a))
    matrices = as_inexact_operand(a, "slogdet")
    if type_of(matrices).dtype.kind == "c":
        raise NotImplementedError("slogdet: method 'qr' does not support complex matrices; use 'lu'")
    return SlogdetResult(*_qr_slogdet(as_operand(matrices)))


@compiled_list_function
def _slogdet(a: ArrayLike) -> list[Any]:
    a = as_matrices("slogdet", a, square=True)
    parity, u_diagonal = _lu_parity_and_diagonal(a)
    last = u_diagonal.type.ndim - 1
    magnitudes = Abs()(u_diagonal)
    signs = where(Expr(magnitudes) == 0, 0, Expr(u_diagonal) / Expr(as_dtype(magnitudes, a.type.dtype)))
    return [parity * ReduceProd((last,))(signs.array), Sum((last,))(Log()(magnitudes))]


@custom_jvp
def _qr_slogdet(a: Array) -> Any:
    return _qr_slogdet_primal(a)


@_qr_slogdet.defjvp
def _qr_slogdet_jvp(primals: tuple[Array], tangents: tuple[Array]) -> Any:
    """The tangent of log |det a| is the trace of a^-1 da; the sign is constant."""
    (a,), (da,) = primals, tangents
    sign, logabsdet = _qr_slogdet(a)
    trace = Sum((a.type.ndim - 2,))(diagonal(lu_solve(a, da)))
    return (sign, logabsdet), (zeros_like(sign), trace)


@compiled_list_function
def _qr_slogdet_primal(a: Array) -> list[Any]:
    """Compute the determinants of R and of the reflections, each of which is -1 unless it is the identity."""
    a = as_matrices("slogdet", a, square=True)
    packed, taus = Geqrf()(a)
    r_diagonal = diagonal(packed)
    last = r_diagonal.type.ndim - 1
    # The last reflection of a square real matrix is the identity.
    signs = Mul()(Sign()(r_diagonal), where(Expr(taus) == 0, 1, Expr(full(taus.type.shape, -1, taus.type.dtype))).array)
    return [ReduceProd((last,))(signs), Sum((last,))(Log()(Abs()(r_diagonal)))]


def _lu_parity_and_diagonal(a: Array) -> tuple[Any, Any]:
    """Return the parity of the row permutation of the LU decomposition, 1 or -1, and the diagonal of U."""
    lu, pivots = Lu()(a)
    return _parity(pivots, a.type.dtype), diagonal(lu)


def _parity(pivots: Array, dtype: np.dtype[Any]) -> Any:
    """Return 1 if LAPACK's pivots exchange rows an even number of times, else -1."""
    last = pivots.type.ndim - 1
    exchanged = Convert(INDEX)(Compare("NE")(pivots, Iota(pivots.type.shape, last, INDEX)()))
    odd = And()(Sum((last,))(exchanged), full(pivots.type.shape[:-1], 1, INDEX))
    odd = as_dtype(odd, dtype)
    return 1 - odd * 2


@documented(SQUARE_MATRICES, returns="The determinants.")
def det(a: ArrayLike) -> Array:
    """Compute the determinants of square matrices.

    Matrices up to 3 x 3 use the Leibniz formula, larger ones an LU decomposition.

    Raises:
        TypeError: if `a` has a float dtype of 16 bits or less and the matrices are larger than 3 x 3.

    Example:
        >>> jnp.linalg.det(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
        Array(-2., dtype=float32)
    """
    a_type = type_of(a, "det")
    if a_type.ndim >= 2 and a_type.shape[-1] == a_type.shape[-2] and a_type.shape[-1] <= len(_LEIBNIZ_TERMS):
        return _leibniz_det(a)
    return _lu_det(as_inexact_operand(a, "det"))


# The terms of the Leibniz formula for sizes 1, 2 and 3: the column of each row, and the sign of the permutation.
_LEIBNIZ_TERMS: tuple[tuple[tuple[tuple[int, ...], int], ...], ...] = (
    (((0,), 1),),
    (((0, 1), 1), ((1, 0), -1)),
    (
        ((0, 1, 2), 1),
        ((1, 2, 0), 1),
        ((2, 0, 1), 1),
        ((2, 1, 0), -1),
        ((0, 2, 1), -1),
        ((1, 0, 2), -1),
    ),
)


@compiled_function
def _leibniz_det(a: ArrayLike) -> Any:
    """Compute determinants as polynomials of the elements, which are differentiable at singular matrices too."""
    a = as_matrices("det", a, square=True, dtypes=INEXACT)
    batch, size = a.type.shape[:-2], a.type.shape[-1]
    if not size:
        return full(batch, 1, a.type.dtype)
    row_dim, column_dim = a.type.ndim - 2, a.type.ndim - 1

    def element(row: int, column: int) -> Any:
        return Reshape(batch)(slice_along(slice_along(a, row_dim, row, row + 1), column_dim, column, column + 1))

    det = None
    for columns, sign in _LEIBNIZ_TERMS[size - 1]:
        term = element(0, columns[0])
        for row, column in enumerate(columns[1:], 1):
            term = Mul()(term, element(row, column))
        det = term if det is None else (Add() if sign > 0 else Sub())(det, term)
    return det


@custom_jvp
def _lu_det(a: Array) -> Any:
    return _lu_det_primal(a)


@compiled_function
def _lu_det_primal(a: Array) -> Any:
    parity, u_diagonal = _lu_parity_and_diagonal(as_matrices("det", a, square=True))
    return Mul()(parity, ReduceProd((u_diagonal.type.ndim - 1,))(u_diagonal))


@_lu_det.defjvp
def _lu_det_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (a,), (da,) = primals, tangents
    return _lu_det(a), _lu_det_tangent(a, da)


@compiled_function
def _lu_det_tangent(a: Array, da: Array) -> Any:
    """Compute the tangent of the determinant by Jacobi's formula, det(a) tr(a⁻¹ da).

    The formula also holds at singular matrices in the limit: pivots of U that are 0 are replaced by a number that is
    negligible at the precision of the dtype.
    """
    a = as_matrices("det", a, square=True)
    lu, pivots = Lu()(a)
    size = a.type.shape[-1]
    ndim = a.type.ndim
    largest = ReduceMax((ndim - 2, ndim - 1))(Abs()(lu))
    machine_epsilon = epsilon(a.type.dtype)
    tiny = Expr(largest) * machine_epsilon
    tiny = where(tiny == 0, machine_epsilon, tiny)
    replacement = as_dtype(Broadcast(a.type.shape, tuple(range(ndim - 2)))(tiny.array), a.type.dtype)
    is_zero_pivot = Expr(row_column_mask(a.type.shape, "EQ")) & (Expr(lu) == 0)
    lu = Select()(is_zero_pivot.array, replacement, lu)
    solution = solve_factored(lu, PivotsToPermutation(size)(pivots), da)
    det = _parity(pivots, a.type.dtype) * ReduceProd((ndim - 2,))(diagonal(lu))
    return det * Sum((ndim - 2,))(diagonal(solution))


@documented(MATRICES, returns="The pseudo-inverses, of shape (..., N, M).")
def pinv(
    a: ArrayLike, rtol: ArrayLike | None = None, hermitian: bool = False, *, rcond: ArrayLike | None = None
) -> Array:
    """Compute the Moore-Penrose pseudo-inverse of matrices.

    Args:
        a: the matrices, of shape (..., M, N).
        rtol: the cutoff: singular values that do not exceed `rtol` times the largest one count as 0. By default 10 *
            max(M, N) times the machine epsilon.
        rcond: a deprecated name of `rtol`.

    Raises:
        ValueError: if `a` has a rank below 2, if it is not square although `hermitian` is set, or if both `rtol` and
            `rcond` are passed.

    Example:
        >>> jnp.linalg.pinv(jnp.array([[2.0], [0.0]]))
        Array([[0.5, 0. ]], dtype=float32)
    """
    if rtol is not None and rcond is not None:
        raise ValueError("pinv: `rcond` is a deprecated name of `rtol`; pass only one of them")
    cutoff = rcond if rtol is None else rtol
    a_type = type_of(a, "pinv")
    if cutoff is None:
        dtype = inexact_dtype(a_type.dtype)
        cutoff = 10 * max(a_type.shape[-2:], default=1) * epsilon(dtype)
    return _pinv(as_inexact_operand(a, "pinv"), cutoff, bool(hermitian))


@partial(custom_jvp, nondiff_argnums=(2,))
def _pinv(a: Array, rtol: ArrayLike, hermitian: bool) -> Any:
    return _pinv_primal(a, rtol, hermitian=hermitian)


@compiled_function
def _pinv_primal(a: Array, rtol: ArrayLike, *, hermitian: bool) -> Any:
    a = as_matrices("pinv", a, square=hermitian)
    if not a.type.size:
        return full((*a.type.shape[:-2], *a.type.shape[:-3:-1]), 0, a.type.dtype)
    if hermitian:
        u, s = Eigh()(a)
        v, magnitudes = u, Abs()(s)
    else:
        u, s, vh = Svd()(a)
        v, magnitudes = adjoint(vh), s
    largest = ReduceMax((s.type.ndim - 1,))(magnitudes)
    bound = Mul()(largest, broadcast_to_shape(astype_weak(as_operand(rtol), s.type.dtype, False), largest.type.shape))
    kept = Compare("GT")(magnitudes, Broadcast(s.type.shape, tuple(range(s.type.ndim - 1)))(bound))
    inverted = where(Expr(kept), 1 / Expr(s), 0)
    return batched_matmul(scale_columns(v, inverted.array), adjoint(u))


@_pinv.defjvp
def _pinv_jvp(hermitian: bool, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    (a, rtol), (da, _) = primals, tangents
    result = _pinv(a, rtol, hermitian)
    return result, _pinv_tangent(a, result, da)


@compiled_function
def _pinv_tangent(a: Array, p: Array, da: Array) -> Any:
    """Compute -P dA P + P P* dA* (I - A P) + (I - P A) dA* P* P, which holds where the rank of A is constant."""
    da_adjoint, p_adjoint = adjoint(da), adjoint(p)
    right = da_adjoint - _cheapest_product(da_adjoint, a, p)
    left = _cheapest_product(da_adjoint, p_adjoint, p)
    tangent = -_cheapest_product(p, da, p) + _cheapest_product(p, p_adjoint, right)
    return tangent + (left - _cheapest_product(p, a, left))


def _cheapest_product(x: Array, y: Array, z: Array) -> Any:
    """Multiply three matrices in the order of fewer flops: a long and thin factor then forms no large square matrix."""
    rows, inner, outer, columns = x.type.shape[-2], x.type.shape[-1], y.type.shape[-1], z.type.shape[-1]
    if rows * outer * (inner + columns) <= inner * columns * (outer + rows):
        return batched_matmul(batched_matmul(x, y), z)
    return batched_matmul(x, batched_matmul(y, z))


def lstsq(
    a: ArrayLike, b: ArrayLike, rcond: float | None = None, *, numpy_resid: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Compute the least-squares solution of `a x = b`, the one of minimal norm if there are several.

    Args:
        a: the matrix, of shape (M, N).
        b: the right-hand sides, of shape (M,) or (M, K).
        rcond: the cutoff: singular values below `rcond` times the largest one count as 0. By default max(M, N) times
            the machine epsilon; a negative number is the machine epsilon.
        numpy_resid: whether to return empty residuals if `a` does not have full column rank or has no more rows than
            columns, as numpy does. Not supported inside `jit` if M > N.

    Returns:
        A tuple of the solution x, the sums of squared residuals per column of `b`, the rank of `a`, and the singular
        values of `a`.

    Raises:
        TypeError: if the shapes do not match, or if a float dtype has 16 bits or less.
        ConcretizationTypeError: if `numpy_resid` is set inside `jit` and M > N.

    Example:
        >>> jnp.linalg.lstsq(jnp.array([[2.0], [0.0]]), jnp.array([4.0, 3.0]))[0]
        Array([2.], dtype=float32)
    """
    types = type_of(a, "lstsq"), type_of(b, "lstsq")
    if types[0].ndim != 2 or types[1].ndim not in (1, 2) or types[0].shape[0] != types[1].shape[0]:
        raise TypeError(
            f"lstsq: a must be a matrix, and b a vector or matrix with as many rows, not {types[0]} and {types[1]}"
        )
    x, residuals, rank, values = _lstsq(a, b, rcond=None if rcond is None else float(rcond))
    rows, columns = types[0].shape
    if numpy_resid and (rows <= columns or int(rank) < columns):
        residuals = residuals[:0]
    return x, residuals, rank, values


@compiled_list_function
def _lstsq(a: ArrayLike, b: ArrayLike, *, rcond: float | None) -> list[Any]:
    dtype, _ = promote_dtypes("lstsq", [type_of(x, "lstsq") for x in (a, b)])
    dtype = inexact_dtype(dtype)
    a = as_matrices("lstsq", astype_weak(as_operand(a), dtype, False))
    b = astype_weak(as_operand(b), dtype, False)
    shape = b.type.shape
    b = b if len(shape) == 2 else Reshape((*shape, 1))(b)
    rows, columns = a.type.shape
    if not a.type.size:
        magnitude = Abs()(b)
        residuals = Sum((0,))(magnitude * magnitude)
        return [
            full((columns, *shape[1:]), 0, dtype),
            residuals,
            full((), 0, INDEX),
            full((0,), 0, magnitude.type.dtype),
        ]
    u, s, vh = Svd()(a)
    if rcond is None:
        rcond = epsilon(dtype) * max(rows, columns)
    elif rcond < 0:
        rcond = epsilon(dtype)
    largest = _broadcast_first(s)
    values = Expr(s)
    kept = (values >= Expr(largest) * rcond) & (values > 0)
    inverted = where(kept, 1 / where(kept, values, 1), 0)
    x = batched_matmul(adjoint(vh), scale_rows(batched_matmul(adjoint(u), b), inverted.array))
    magnitude = Abs()(b - batched_matmul(a, x))
    residuals = Sum((0,))(magnitude * magnitude)
    rank = Sum((0,))(Convert(INDEX)(kept.array))
    return [x if len(shape) == 2 else Reshape((columns,))(x), residuals, rank, s]


def _broadcast_first(x: Array) -> Any:
    """Broadcast the first element to the shape of `x`."""
    return Broadcast(x.type.shape, ())(Reshape(())(slice_along(x, 0, 0, 1)))


def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """Invert an array as the linear map from its last dims to its first `ind` dims.

    Args:
        a: the array, whose first `ind` dims have as many elements as the others.
        ind: the number of leading dims that the map goes to.

    Returns:
        The inverse, with the last dims of `a` first.

    Raises:
        TypeError: if `a` is not an array or a number, or has a float dtype of 16 bits or less.
        ValueError: if `ind` is not positive, or if the numbers of elements differ.

    Example:
        >>> jnp.linalg.tensorinv(jnp.array([[2.0, 0.0], [0.0, 4.0]]), ind=1)
        Array([[0.5 , 0.  ],
               [0.  , 0.25]], dtype=float32)
    """
    a_type = type_of(a, "tensorinv")
    if ind <= 0:
        raise ValueError(f"tensorinv: ind must be positive, not {ind}")
    first, last = a_type.shape[:ind], a_type.shape[ind:]
    if math.prod(first) != math.prod(last):
        raise ValueError(
            f"tensorinv: the first {ind} dims of {a_type} must have as many elements as the others, not "
            f"{math.prod(first)} and {math.prod(last)}"
        )
    return inv(as_operand(a).reshape(math.prod(first), -1)).reshape(*last, *first)


def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Solve `tensordot(a, x, x.ndim) = b` for x.

    Args:
        a: the array of coefficients. Its first dims have the shape of `b`, the others that of x.
        b: the right-hand side.
        axes: axes of `a` that are moved to the end first.

    Returns:
        The solution x.

    Raises:
        TypeError: if an argument is not an array or a number, or has a float dtype of 16 bits or less.
        ValueError: if `a` is not a square map for `b`.

    Example:
        >>> jnp.linalg.tensorsolve(jnp.array([[2.0, 0.0], [0.0, 4.0]]), jnp.array([2.0, 8.0]))
        Array([1., 2.], dtype=float32)
    """
    types = type_of(a, "tensorsolve"), type_of(b, "tensorsolve")
    coefficients = as_operand(a)
    if axes is not None:
        moved = [axis % types[0].ndim for axis in axes]
        coefficients = permute(coefficients, (*(dim for dim in range(types[0].ndim) if dim not in moved), *moved))
    x_shape = coefficients.shape[types[1].ndim :]
    if math.prod(x_shape) != types[1].size or types[0].size != types[1].size ** 2:
        raise ValueError(f"tensorsolve: {types[0]} must map as many elements as {types[1]} has to as many")
    return solve(coefficients.reshape(-1, math.prod(x_shape)), as_operand(b).reshape(-1)).reshape(x_shape)
