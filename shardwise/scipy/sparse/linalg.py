"""scipy.sparse.linalg: Krylov solvers of linear systems whose unknown is a pytree of arrays.

The matrix is a linear function or a 2-D array. Solutions have implicit derivatives: the loops are not differentiated, a
derivative solves one more system, with the matrix or its transpose. All functions accept sharded arrays; an iteration
then needs the collectives of the matrix product and those of two or three inner products.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.api.control import fori_loop, while_loop
from shardwise.api.transformations.differentiate import linear_transpose
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact
from shardwise.compiler.dtypes import DType
from shardwise.lax.solve import custom_linear_solve

Function = Callable[..., Any]


_SOLVER = Family(
    {
        "A": "a 2-D array, or a linear function from a pytree like `b` to another.",
        "b": "the right-hand side, a pytree of arrays.",
        "x0": "the pytree where the iteration starts; zeros if None.",
        "tol, atol": "the iteration ends when the norm of the residual is at most `max(tol * norm(b),\natol)`.",
        "maxiter": "the limit of iterations; 10 times the number of elements of `b` if None.",
        "M": "the preconditioner, an approximation of the inverse of `A`: a 2-D array or a linear function.",
    },
    returns="The pair of the solution and None.",
    raises=[
        "TypeError: if `A` or `M` is neither a function nor an array, or returns other types than those\nof `b`.",
        "ValueError: if `A` or `M` is not a square matrix, or `x0` has another structure or other shapes\nthan `b`.",
    ],
)


@documented(_SOLVER)
def cg(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """Solve `A x = b` by the method of conjugate gradients, for a Hermitian positive definite `A`.

    Example:
        >>> x, _ = jax.scipy.sparse.linalg.cg(lambda x: 4.0 * x, jnp.array([2.0, 8.0]))
        >>> x
        Array([0.5, 2. ], dtype=float32)
    """
    is_real = all(np.dtype(jnp.result_type(leaf)).kind != "c" for leaf in tree.leaves(b))
    return _solve("cg", _conjugate_gradients, A, b, x0, tol, atol, maxiter, M, symmetric=is_real)


@documented(_SOLVER)
def bicgstab(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """Solve `A x = b` by the stabilized method of biconjugate gradients, for any regular `A`.

    Example:
        >>> x, _ = jax.scipy.sparse.linalg.bicgstab(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([3.0, 4.0]))
        >>> x.round(4)
        Array([1., 1.], dtype=float32)
    """
    return _solve("bicgstab", _stabilized_biconjugate_gradients, A, b, x0, tol, atol, maxiter, M, symmetric=False)


@documented(_SOLVER)
def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
    solve_method: str = "batched",
) -> tuple[Any, Array]:
    """Solve `A x = b` by the generalized minimal residual method, for any regular `A`.

    A cycle builds an orthonormal basis of a Krylov space and minimizes the residual in it; the next one starts there.

    Args:
        restart: the size of the basis, which memory and work grow with; at most the number of elements of `b`.
        maxiter: the limit of cycles; 10 times the number of elements of `b` if None.
        solve_method: "batched" completes the basis before it minimizes; "incremental" minimizes after every vector, and
            ends a cycle when the residual is small enough.

    Returns:
        The pair of the solution and a status: -1 if the solution is NaN, else 0.

    Raises:
        ValueError: if `A` or `M` is not a square matrix, `x0` has another structure or other shapes than `b`, or
            `solve_method` is unknown.

    Example:
        >>> x, _ = jax.scipy.sparse.linalg.gmres(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([3.0, 4.0]))
        >>> x.round(4)
        Array([1., 1.], dtype=float32)
    """
    if solve_method not in ("batched", "incremental"):
        raise ValueError(f"gmres: solve_method must be 'batched' or 'incremental', not {solve_method!r}")
    size = max(1, sum(int(np.prod(np.shape(leaf))) for leaf in tree.leaves(b)))
    solver = partial(_restarted_gmres, restart=min(restart, size), stops_early=solve_method == "incremental")
    solution, _ = _solve("gmres", solver, A, b, x0, tol, atol, maxiter, M, symmetric=False)
    return solution, jnp.where(jnp.isnan(_norm(solution)), -1, 0)


def _solve(
    name: str,
    solver: Function,
    A: Any,
    b: Any,
    x0: Any,
    tol: float,
    atol: float,
    maxiter: int | None,
    M: Any,
    symmetric: bool,
) -> tuple[Any, None]:
    """Solve a system by `solver`, which `custom_linear_solve` also calls for the transposed system."""
    b = tree.map(partial(as_inexact, name=name), b)
    guess = tree.map(jnp.zeros_like, b) if x0 is None else tree.map(partial(as_inexact, name=name), x0)
    shapes = [tree.map(jnp.shape, values) for values in (guess, b)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{name}: x0 must have the structure and shapes of b, {shapes[1]}, not {shapes[0]}")
    guess = tree.map(lambda x, y: x.astype(y.dtype), guess, b)
    operator = _as_function(name, "A", A)
    preconditioner = (lambda x: x) if M is None else _as_function(name, "M", M)
    limit = 10 * sum(leaf.size for leaf in tree.leaves(b)) if maxiter is None else maxiter

    def solve(matvec: Function, right: Any, start: Any, precondition: Function) -> Any:
        threshold = jnp.maximum(tol * _norm(right), atol)
        return solver(matvec, right, start, precondition, threshold, limit)

    def transposed_preconditioner(x: Any) -> Any:
        (result,) = linear_transpose(preconditioner, b)(x)
        return result

    solution = custom_linear_solve(
        operator,
        b,
        lambda matvec, right: solve(matvec, right, guess, preconditioner),
        lambda vecmat, right: solve(vecmat, right, tree.map(jnp.zeros_like, right), transposed_preconditioner),
        symmetric=symmetric,
    )
    return solution, None


def _as_function(name: str, parameter: str, matrix: Any) -> Function:
    """Return a linear function, given as itself or as a square matrix."""
    if callable(matrix):
        return matrix
    if not hasattr(matrix, "__matmul__") or not hasattr(matrix, "shape"):
        raise TypeError(f"{name}: {parameter} must be a function or a 2-D array, not {type(matrix).__name__}")
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name}: {parameter} must be a square matrix, not of shape {tuple(matrix.shape)}")
    matrix = jnp.asarray(matrix) if isinstance(matrix, np.ndarray) else matrix
    return lambda x: matrix @ x


def _inner(x: Any, y: Any) -> Any:
    """Return the inner product of two pytrees, which is conjugate linear in the first."""
    products = [jnp.vdot(a, b) for a, b in zip(tree.leaves(x), tree.leaves(y), strict=True)]
    return reduce(jnp.add, products)


def _norm(x: Any) -> Any:
    return jnp.sqrt(_inner(x, x).real)


def _add(x: Any, factor: Any, y: Any) -> Any:
    """Return x + factor * y, in the dtypes of x."""
    return tree.map(lambda a, b: (a + factor * b).astype(a.dtype), x, y)


def _subtract(x: Any, y: Any) -> Any:
    return tree.map(jnp.subtract, x, y)


def _divide(x: Any, y: Any) -> Any:
    """Return x / y, and 0 where y is 0: there the iteration has found the solution or breaks down."""
    is_zero = y == 0
    return jnp.where(is_zero, 0, x / jnp.where(is_zero, 1, y))


def _conjugate_gradients(matvec: Function, b: Any, x: Any, precondition: Function, threshold: Any, limit: int) -> Any:
    def step(state: Any) -> Any:
        x, residual, direction, product, count = state
        image = matvec(direction)
        length = _divide(product, _inner(direction, image).real)
        x, residual = _add(x, length, direction), _add(residual, -length, image)
        preconditioned = precondition(residual)
        new_product = _inner(residual, preconditioned).real
        direction = _add(preconditioned, _divide(new_product, product), direction)
        return x, residual, direction, new_product, count + 1

    residual = _subtract(b, matvec(x))
    direction = precondition(residual)
    start = x, residual, direction, _inner(residual, direction).real, 0
    x, *_ = while_loop(lambda state: (_norm(state[1]) > threshold) & (state[4] < limit), step, start)
    return x


class _BiconjugateState(NamedTuple):
    x: Any
    residual: Any
    direction: Any
    product: Any  # of the residual and the shadow residual
    count: Any
    has_failed: Any


def _stabilized_biconjugate_gradients(
    matvec: Function, b: Any, x: Any, precondition: Function, threshold: Any, limit: int
) -> Any:
    shadow = _subtract(b, matvec(x))

    def step(state: _BiconjugateState) -> _BiconjugateState:
        direction = precondition(state.direction)
        image = matvec(direction)
        length = _divide(state.product, _inner(shadow, image))
        half = _add(state.residual, -length, image)
        smoothed = precondition(half)
        smoothed_image = matvec(smoothed)
        weight = _divide(_inner(smoothed_image, half), _inner(smoothed_image, smoothed_image))
        x = _add(_add(state.x, length, direction), weight, smoothed)
        residual = _add(half, -weight, smoothed_image)
        product = _inner(shadow, residual)
        factor = _divide(product, state.product) * _divide(length, weight)
        next_direction = _add(residual, factor, _add(state.direction, -weight, image))
        has_failed = (product == 0) | (weight == 0) | (length == 0)
        return _BiconjugateState(x, residual, next_direction, product, state.count + 1, has_failed)

    def continues(state: _BiconjugateState) -> Any:
        return (_norm(state.residual) > threshold) & (state.count < limit) & ~state.has_failed

    start = _BiconjugateState(x, shadow, shadow, _inner(shadow, shadow), 0, False)
    return while_loop(continues, step, start).x


def _restarted_gmres(
    matvec: Function,
    b: Any,
    x: Any,
    precondition: Function,
    threshold: Any,
    limit: int,
    *,
    restart: int,
    stops_early: bool,
) -> Any:
    """Cycles of GMRES with the preconditioner on the right: `A M y = b`, `x = M y`, which keeps the residual."""

    def residual_of(x: Any) -> tuple[Any, Any]:
        residual = _subtract(b, matvec(x))
        return residual, _norm(residual)

    def cycle(state: Any) -> Any:
        x, (residual, norm), count = state
        weights, basis = _krylov_minimizer(
            lambda vector: matvec(precondition(vector)), residual, norm, restart, threshold if stops_early else None
        )
        correction = tree.map(lambda vectors: jnp.tensordot(weights, vectors[:restart], 1), basis)
        x = _add(x, 1, precondition(tree.map(lambda y, like: y.astype(like.dtype), correction, x)))
        return x, residual_of(x), count + 1

    x, *_ = while_loop(lambda state: (state[1][1] > threshold) & (state[2] < limit), cycle, (x, residual_of(x), 0))
    return x


def _krylov_minimizer(operator: Function, residual: Any, norm: Any, restart: int, threshold: Any) -> tuple[Any, Any]:
    """Return the weights of the basis vectors that minimize the residual, and the orthonormal basis.

    With a `threshold`, the basis ends when the norm of the residual is below it; its other vectors are 0.
    """
    dtype = jnp.result_type(*tree.leaves(residual))
    basis = tree.map(lambda x: jnp.zeros((restart + 1, *x.shape), x.dtype).at[0].set(_divide(x, norm)), residual)

    def extend(state: Any) -> Any:
        basis, hessenberg, _, k = state
        vector = operator(tree.map(lambda vectors: vectors[k], basis))
        column = jnp.zeros(restart + 1, dtype)
        for _ in range(2):  # one pass of Gram-Schmidt loses orthogonality to rounding
            overlaps = reduce(jnp.add, tree.leaves(tree.map(_overlaps, basis, vector)))
            vector = tree.map(partial(_without_overlaps, overlaps), vector, basis)
            column += overlaps
        length = _norm(vector)
        is_exhausted = length <= _relative_rounding(dtype) * jnp.linalg.norm(column)
        length = jnp.where(is_exhausted, 0, length)
        basis = tree.map(lambda v, x: v.at[k + 1].set(_divide(x, length)), basis, vector)
        hessenberg = hessenberg.at[:, k].set(column.at[k + 1].set(length))
        error = _minimum(hessenberg, norm)[1] if threshold is not None else norm
        return basis, hessenberg, error, k + 1

    state = basis, jnp.zeros((restart + 1, restart), dtype), norm, 0
    if threshold is None:
        basis, hessenberg, *_ = fori_loop(0, restart, lambda _, state: extend(state), state)
    else:
        basis, hessenberg, *_ = while_loop(lambda state: (state[2] > threshold) & (state[3] < restart), extend, state)
    return _minimum(hessenberg, norm)[0], basis


def _overlaps(basis: Any, vector: Any) -> Any:
    return jnp.tensordot(basis.conj(), vector, vector.ndim)


def _without_overlaps(overlaps: Any, vector: Any, basis: Any) -> Any:
    return vector - jnp.tensordot(overlaps, basis, 1).astype(vector.dtype)


def _relative_rounding(dtype: DType) -> float:
    return 10 * float(jnp.finfo(dtype).eps)


def _minimum(hessenberg: Any, norm: Any) -> tuple[Any, Any]:
    """Return the y that minimizes |norm e₀ - H y|, and this minimum. Columns of zeros get the weight 0."""
    right = jnp.zeros(hessenberg.shape[0], hessenberg.dtype).at[0].set(norm)
    solution, *_ = jnp.linalg.lstsq(hessenberg, right)
    return solution, jnp.linalg.norm(right - hessenberg @ solution)


publish(__name__)
