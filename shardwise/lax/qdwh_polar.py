"""Polar decomposition by the QDWH algorithm: a dynamically weighted Halley iteration that needs only matrix products,
QR and Cholesky factorizations (Nakatsukasa, Bai, Gygi: "Optimizing Halley's iteration for computing the matrix polar
decomposition", 2010).
"""

from typing import Any

import numpy as np

from shardwise.api.control import cond, while_loop
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_list_function, type_of
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ops.linalg.batched import adjoint, identity
from shardwise.compiler.ops.linalg.householder import Qr
from shardwise.compiler.ops.linalg.triangular import Cholesky, TriangularSolve
from shardwise.lax.creation import full, full_like, iota
from shardwise.lax.elementwise import cbrt, min, select, sqrt
from shardwise.lax.slicing import concatenate
from shardwise.typing import ArrayLike

_MAX_ITERATIONS = 10  # enough for any condition number that the dtype can represent
_QR_THRESHOLD = 100.0  # with a weight c above it, the Cholesky step would lose precision


def qdwh(
    x: ArrayLike,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[Any, Any] | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Compute the polar decomposition `x = u @ h` by the QDWH algorithm.

    The columns of `u` are orthonormal; `h` is Hermitian and positive semidefinite.

    Args:
        x: one matrix of full rank, of floats or complex numbers, with no more columns than rows.
        is_hermitian: ignored.
        max_iterations: the maximal number of iterations. None means 10.
        eps: the precision. The iteration has converged when it changes `u` by a relative norm of at most `(4 *
            eps)**(1/3)`. None means the machine epsilon of the dtype.
        dynamic_shape: the number of rows and columns of `x` that count, which may be traced. The rest of the factors is
            0.

    Returns:
        A tuple: u, h, the number of iterations, and whether the iteration has converged.

    Raises:
        ValueError: if `x` is not one matrix with at least as many rows as columns, or holds integers or booleans.

    Example:
        >>> u, h, iterations, is_converged = lax.linalg.qdwh(jnp.array([[0.0, -2.0], [3.0, 0.0]]))
        >>> u.round() + 0.0
        Array([[ 0., -1.],
               [ 1.,  0.]], dtype=float32)
    """
    type = type_of(x, "qdwh")
    if type.ndim != 2 or type.shape[0] < type.shape[1]:
        raise ValueError(f"qdwh: needs one matrix with no more columns than rows, not {type}")
    if not (is_float(type.dtype) or type.dtype.kind == "c"):
        raise ValueError(f"qdwh: needs floats or complex numbers, not {type}")
    shape = () if dynamic_shape is None else tuple(dynamic_shape)
    u, h, steps, is_converged = _qdwh(
        x,
        *shape,
        max_iterations=_MAX_ITERATIONS if max_iterations is None else max_iterations,
        eps=float(np.finfo(type.dtype).eps) if eps is None else float(eps),
    )
    return u, h, steps, is_converged


@compiled_list_function
def _qdwh(x: ArrayLike, *shape: tuple[int, ...], max_iterations: int, eps: float) -> list[Any]:
    x = as_operand(x, "qdwh")
    if shape:
        rows, columns = (iota(np.int32, size) < count for size, count in zip(x.shape, shape, strict=True))
        x = select(rows[:, None] & columns, x, full_like(x, 0))
    real = np.finfo(x.dtype).dtype
    # An upper bound of the largest singular value. Any scale will do for a matrix of zeros.
    bound = sqrt(abs(x).sum(0).max(initial=0) * abs(x).sum(1).max(initial=0))
    start = (x / select(bound == 0, full_like(bound, 1), bound)).astype(x.dtype)
    smallest = np.finfo(x.dtype).eps  # a lower bound of the singular values, if the matrix has full rank

    def not_converged(state: Any) -> Any:
        _, _, iteration, is_converged = state
        return ~is_converged & (iteration < max_iterations)

    def halley_step(state: Any) -> Any:
        u, low, iteration, _ = state
        a, b, c = _weights(low)
        improved = cond(c > _QR_THRESHOLD, _qr_step, _cholesky_step, u, a, b, c)
        low = low * (a + b * low**2) / (1 + c * low**2)
        change = _frobenius_norm(improved - u)
        is_converged = change <= _frobenius_norm(improved) * (4 * eps) ** (1 / 3)
        # The norm alone is no criterion: the first iterations change only the smallest singular values.
        return improved, min(low, full_like(low, 1)).astype(real), iteration + 1, is_converged & (1 - low <= 10 * eps)

    init = (start, full((), smallest, real), 0, full((), False))
    u, _, iterations, is_converged = while_loop(not_converged, halley_step, init)
    u = 1.5 * u - 0.5 * u @ (adjoint(u) @ u)  # a Newton-Schulz step, which has a small rounding error
    h = adjoint(u) @ x
    return [u.astype(x.dtype), ((h + adjoint(h)) / 2).astype(x.dtype), iterations, is_converged]


def _frobenius_norm(x: Array) -> Any:
    return sqrt((abs(x) ** 2).sum())


def _weights(low: Array) -> tuple[Any, Any, Any]:
    """Return the Halley weights that bring singular values in [`low`, 1] closest to 1 in one step."""
    square = low**2
    d = cbrt(4 * (1 - square) / square**2)
    root = sqrt(1 + d)
    a = root + sqrt(8 - 4 * d + 8 * (2 - square) / (square * root)) / 2
    b = (a - 1) ** 2 / 4
    return a, b, a + b - 1


def _qr_step(u: Array, a: Array, b: Array, c: Array) -> Any:
    """Compute one Halley step by a QR decomposition."""
    rows, columns = u.shape
    q, _ = Qr(full=False)(concatenate([(sqrt(c) * u).astype(u.dtype), identity((columns, columns), u.dtype)], 0))
    product = q[:rows] @ adjoint(q[rows:])
    return (b / c * u + (a - b / c) / sqrt(c) * product).astype(u.dtype)


def _cholesky_step(u: Array, a: Array, b: Array, c: Array) -> Any:
    """Compute one Halley step by a Cholesky decomposition, which is faster."""
    gram = (c * (adjoint(u) @ u) + identity((u.shape[1], u.shape[1]), u.dtype)).astype(u.dtype)
    factor = Cholesky()(gram)
    half = TriangularSolve(left_side=True, is_lower=True)(factor, adjoint(u))
    solved = TriangularSolve(left_side=True, is_lower=True, transpose_a=True, conjugate_a=True)(factor, half)
    return (b / c * u + (a - b / c) * adjoint(solved)).astype(u.dtype)
