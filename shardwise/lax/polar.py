"""The polar factors of a matrix by products, QR and Cholesky factors alone: Halley's iteration with weights that are
chosen anew at every step (Nakatsukasa, Bai, Gygi: "Optimizing Halley's iteration for computing the matrix polar
decomposition", 2010).
"""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.control import cond, while_loop
from shardwise.compiler.arrays.operands import compiled_list_function, type_of
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ops.linalg.batched import adjoint
from shardwise.compiler.ops.linalg.householder import Qr
from shardwise.compiler.ops.linalg.triangular import Cholesky, TriangularSolve

_STEPS = 10  # more than any matrix takes whose condition fits its dtype
_BY_QR = 100.0  # a weight above which Cholesky factors would lose digits


def qdwh(
    x: Any,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[Any, Any] | None = None,
) -> tuple[Any, Any, Any, Any]:
    """The polar factors of a matrix of full rank with no more columns than rows: `x = u @ h`, where the columns of `u`
    are orthonormal and `h` is Hermitian and positive semidefinite; then the number of iterations, and whether they
    were enough.

    `eps`: they are, when the last one changes `u` by less than `(4 * eps)**(1/3)` of it; by default that of the dtype.
    `max_iterations`: 10 by default. `dynamic_shape`: how much of `x` counts, rows and columns; the rest of the factors
    is 0. `is_hermitian` changes nothing.

    >>> u, h, iterations, is_converged = lax.linalg.qdwh(jnp.array([[0.0, -2.0], [3.0, 0.0]]))
    >>> u.round() + 0.0
    Array([[ 0., -1.],
           [ 1.,  0.]], dtype=float32)
    """
    kind = type_of(x, "qdwh")
    if kind.ndim != 2 or kind.shape[0] < kind.shape[1]:
        raise ValueError(f"qdwh: needs one matrix with no more columns than rows, not {kind}")
    if not (is_float(kind.dtype) or kind.dtype.kind == "c"):
        raise ValueError(f"qdwh: needs floats or complex numbers, not {kind}")
    shape = () if dynamic_shape is None else tuple(dynamic_shape)
    u, h, steps, is_converged = _qdwh(
        x,
        *shape,
        most=_STEPS if max_iterations is None else max_iterations,
        precision=float(np.finfo(kind.dtype).eps) if eps is None else float(eps),
    )
    return u, h, steps, is_converged


@compiled_list_function
def _qdwh(x: Any, *shape: Any, most: int, precision: float) -> list[Any]:
    if shape:
        rows, columns = (jnp.arange(size) < count for size, count in zip(x.shape, shape, strict=True))
        x = jnp.where(rows[:, None] & columns, x, 0)
    real = np.finfo(x.dtype).dtype
    # A bound of the largest singular value; of nothing but zeros, any.
    bound = jnp.sqrt(jnp.abs(x).sum(0).max(initial=0) * jnp.abs(x).sum(1).max(initial=0))
    start = (x / jnp.where(bound == 0, 1, bound)).astype(x.dtype)
    least = np.finfo(x.dtype).eps  # a bound of the smallest one, of a matrix that has full rank

    def goes_on(state: Any) -> Any:
        _, _, step, is_settled = state
        return ~is_settled & (step < most)

    def improve(state: Any) -> Any:
        u, low, step, _ = state
        a, b, c = _weights(low)
        found = cond(c > _BY_QR, _by_qr, _by_cholesky, u, a, b, c)
        low = low * (a + b * low**2) / (1 + c * low**2)
        change = jnp.sqrt((jnp.abs(found - u) ** 2).sum())
        is_settled = change <= jnp.sqrt((jnp.abs(found) ** 2).sum()) * (4 * precision) ** (1 / 3)
        # The first steps change only what is smallest.
        return found, jnp.minimum(low, 1).astype(real), step + 1, is_settled & (1 - low <= 10 * precision)

    first = (start, jnp.asarray(least, real), 0, jnp.asarray(False))
    u, _, steps, is_settled = while_loop(goes_on, improve, first)
    u = 1.5 * u - 0.5 * u @ (adjoint(u) @ u)  # a step of Newton and Schulz, which rounds little
    h = adjoint(u) @ x
    return [u.astype(x.dtype), ((h + adjoint(h)) / 2).astype(x.dtype), steps, is_settled]


def _weights(low: Any) -> tuple[Any, Any, Any]:
    """Those that bring singular values between `low` and 1 closest to 1 in one step."""
    square = low**2
    d = jnp.cbrt(4 * (1 - square) / square**2)
    root = jnp.sqrt(1 + d)
    a = root + jnp.sqrt(8 - 4 * d + 8 * (2 - square) / (square * root)) / 2
    b = (a - 1) ** 2 / 4
    return a, b, a + b - 1


def _by_qr(u: Any, a: Any, b: Any, c: Any) -> Any:
    rows, columns = u.shape
    q, _ = Qr(full=False)(jnp.concatenate([(jnp.sqrt(c) * u).astype(u.dtype), jnp.eye(columns, dtype=u.dtype)]))
    product = q[:rows] @ adjoint(q[rows:])
    return (b / c * u + (a - b / c) / jnp.sqrt(c) * product).astype(u.dtype)


def _by_cholesky(u: Any, a: Any, b: Any, c: Any) -> Any:
    gram = (c * (adjoint(u) @ u) + jnp.eye(u.shape[1], dtype=u.dtype)).astype(u.dtype)
    factor = Cholesky()(gram)
    half = TriangularSolve(left_side=True, is_lower=True)(factor, adjoint(u))
    solved = TriangularSolve(left_side=True, is_lower=True, transpose_a=True, conjugate_a=True)(factor, half)
    return (b / c * u + (a - b / c) * adjoint(solved)).astype(u.dtype)
