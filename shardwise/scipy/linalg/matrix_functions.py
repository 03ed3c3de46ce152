"""Matrix functions: the exponential, the square root, and arbitrary scalar functions by Parlett's recurrence."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.control import fori_loop
from shardwise.api.transformations.differentiate import jvp
from shardwise.compiler.arrays.matrices import as_matrices
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function, compiled_list_function, type_of
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.rounding import Ceil
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp, Log
from shardwise.compiler.ops.linalg.batched import as_dtype, batched_matmul, diagonal_part, identity, row_column_mask
from shardwise.compiler.ops.linalg.lu import solve
from shardwise.compiler.ops.linalg.triangular import TriangularSolve
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceMax
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.lax.indexing import dynamic_index_in_dim, dynamic_update_index_in_dim
from shardwise.numpy.linalg.decompositions import as_inexact_operand
from shardwise.scipy.linalg.decompositions import schur
from shardwise.typing import ArrayLike

# (degree, norm): the Padé approximant of this degree is accurate to working precision up to this 1-norm.
_PADE_SINGLE, _PADE_DOUBLE = (7, 3.925724783138660), (13, 5.371920351148152)


def expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:
    """Compute the matrix exponential by scaling and squaring.

    Args:
        A: the square matrices.
        upper_triangular: ignored; accepted for compatibility with JAX.
        max_squarings: the largest number of squarings. The result is NaN where the norm of a matrix needs more.

    Returns:
        The exponentials, in the shape of `A`.

    Raises:
        ValueError: if `A` does not hold square matrices.
        TypeError: if `A` is not an array, or has a dtype that LAPACK does not support (such as float16).

    Example:
        >>> jax.scipy.linalg.expm(jnp.array([[0.0, 1.0], [0.0, 0.0]]))
        Array([[1., 1.],
               [0., 1.]], dtype=float32)
    """
    return _expm(A, max_squarings=int(max_squarings))


@compiled_function
def _expm(a: ArrayLike, *, max_squarings: int) -> Any:
    """Compute exp(A) = exp(A / 2ˢ) ** (2ˢ), with s such that the Padé approximant of exp(A / 2ˢ) is accurate."""
    a = as_matrices("expm", a, square=True)
    if not a.type.size:
        return a
    ndim = a.type.ndim
    batch = tuple(range(ndim - 2))
    is_double = a.type.dtype.itemsize // (1 + (a.type.dtype.kind == "c")) == 8
    degree, norm_bound = _PADE_DOUBLE if is_double else _PADE_SINGLE
    norm = ReduceMax((ndim - 2,))(Sum((ndim - 2,))(Abs()(StopGradient()(a))))
    squarings = (Log()(norm) - math.log(norm_bound)) * (1 / math.log(2))
    squarings = Max()(Ceil()(squarings), zeros_like(norm))
    scale = Exp()(squarings * -math.log(2))
    power = _pade_exp(a * as_dtype(Broadcast(a.type.shape, batch)(scale), a.type.dtype), degree)
    one = identity(a.type.shape, a.type.dtype)
    for index in range(max_squarings):
        is_needed = Broadcast(a.type.shape, batch)(Compare("GT")(squarings, full_like(norm, index)))
        power = batched_matmul(power, Select()(is_needed, power, one))
    too_large = Broadcast(a.type.shape, batch)(Compare("GT")(squarings, full_like(norm, max_squarings)))
    return Select()(too_large, full_like(power, np.nan), power)


def _pade_exp(a: Array, degree: int) -> Any:
    """Return the diagonal Padé approximant p(A) / p(-A) of exp(A)."""
    coefficients = [
        math.factorial(2 * degree - k)
        * math.factorial(degree)
        // (math.factorial(k) * math.factorial(degree - k) * math.factorial(degree))
        for k in range(degree + 1)
    ]
    scale = coefficients[-1]
    square = batched_matmul(a, a)
    power = identity(a.type.shape, a.type.dtype)
    even, odd = zeros_like(a), zeros_like(a)
    for k in range(0, degree, 2):
        even = even + power * (coefficients[k] / scale)
        odd = odd + power * (coefficients[k + 1] / scale)
        power = batched_matmul(power, square) if k + 2 < degree else power
    odd = batched_matmul(a, odd)
    return solve(even - odd, even + odd)


def expm_frechet(A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """Compute the matrix exponential and its Fréchet derivative at `A` in the direction `E`.

    Args:
        A: the square matrices.
        E: the directions, of the shape and dtype of `A`.
        method: None, "SPS" or "blockEnlarge". All use the JVP of `expm`.
        compute_expm: whether to return the exponential too.

    Returns:
        The tuple of the exponential and the derivative, or the derivative alone without `compute_expm`.

    Raises:
        ValueError: if `method` is unknown, or if `A` does not hold square matrices.
        TypeError: if an argument is not an array, or if `E` does not have the shape and dtype of `A`.

    Example:
        >>> jax.scipy.linalg.expm_frechet(jnp.zeros((1, 1)), jnp.ones((1, 1)))[1]
        Array([[1.]], dtype=float32)
    """
    if method not in (None, "SPS", "blockEnlarge"):
        raise ValueError(f"expm_frechet: method must be 'SPS' or 'blockEnlarge', not {method!r}")
    exponential, derivative = jvp(
        expm, (as_inexact_operand(A, "expm_frechet"),), (as_inexact_operand(E, "expm_frechet"),)
    )
    return (exponential, derivative) if compute_expm else derivative


def funm(A: ArrayLike, func: Callable[[Any], Any], disp: bool = True) -> Any:
    """Evaluate a matrix function given as a scalar function, by the Schur decomposition and Parlett's recurrence.

    The result is inaccurate where eigenvalues of `A` are nearly equal. It is not differentiable.

    Args:
        A: the square matrix.
        func: the scalar function, applied elementwise to a vector of complex eigenvalues.
        disp: whether to return the result alone, without the error estimate.

    Returns:
        The complex matrix `func(A)`, and without `disp` an error estimate between the machine epsilon and 1.

    Raises:
        ValueError: if `A` is not one square matrix.
        TypeError: if `A` is not an array.

    Example:
        >>> jax.scipy.linalg.funm(jnp.array([[1.0, 0.0], [0.0, 4.0]]), jnp.sqrt).real
        Array([[1., 0.],
               [0., 2.]], dtype=float32)
    """
    a_type = type_of(A, "funm")
    if a_type.ndim != 2 or a_type.shape[0] != a_type.shape[1]:
        raise ValueError(f"funm: A must be one square matrix, not {a_type}")
    upper, vectors = schur(as_inexact_operand(A, "funm"), "complex")
    result, smallest_gap = _parlett(upper, func(jnp.diagonal(upper)))
    result = vectors @ result @ vectors.conj().T
    if disp:
        return result
    epsilon = float(np.finfo(upper.dtype).eps)
    norm = jnp.max(jnp.sum(jnp.abs(jnp.triu(upper, 1)), axis=0), initial=0)
    error = jnp.minimum(1, jnp.maximum(epsilon, epsilon / jnp.where(smallest_gap == 0, epsilon, smallest_gap) * norm))
    return result, jnp.where(jnp.all(jnp.isfinite(result)), error, np.inf)


@compiled_list_function
def _parlett(t: Array, values: Array) -> list[Any]:
    """Return F = f(T) of the upper triangular T, and the smallest distance between two eigenvalues.

    `values` are f of the diagonal of T. F is computed one superdiagonal after the other, from F T = T F.
    """
    size = t.type.shape[0]
    index = jnp.arange(size)
    gaps = jnp.diagonal(t)[None, :] - jnp.diagonal(t)[:, None]
    divisor = jnp.where(gaps == 0, 1, gaps)

    def step(number: Array, f: Array) -> Any:
        is_next = index[None, :] - index[:, None] == number + 1
        return jnp.where(is_next, (t @ f - f @ t) / divisor, f)

    f = fori_loop(0, max(size - 1, 0), step, jnp.diag(values.astype(t.dtype)))
    above = index[None, :] > index[:, None]
    return [f, jnp.min(jnp.where(above, jnp.abs(gaps), np.inf), initial=np.inf)]


def sqrtm(A: ArrayLike, blocksize: int = 1) -> Array:
    """Compute the principal square root of a matrix by the Schur decomposition.

    The result is not differentiable.

    Args:
        A: the square matrix.
        blocksize: not supported; must be 1.

    Returns:
        The complex matrix whose square is `A`.

    Raises:
        NotImplementedError: if `blocksize` is not 1.
        ValueError: if `A` is not one square matrix.
        TypeError: if `A` is not an array.

    Example:
        >>> jax.scipy.linalg.sqrtm(jnp.array([[4.0, 0.0], [0.0, 9.0]]))
        Array([[2.+0.j, 0.+0.j],
               [0.+0.j, 3.+0.j]], dtype=complex64)
    """
    if blocksize != 1:
        raise NotImplementedError(f"sqrtm: blocksize={blocksize} is not supported; leave out blocksize")
    a_type = type_of(A, "sqrtm")
    if a_type.ndim != 2 or a_type.shape[0] != a_type.shape[1]:
        raise ValueError(f"sqrtm: A must be one square matrix, not {a_type}")
    upper, vectors = schur(as_inexact_operand(A, "sqrtm"), "complex")
    return vectors @ _sqrtm_triangular(upper) @ vectors.conj().T


@compiled_function
def _sqrtm_triangular(t: Array) -> Any:
    """Return the upper triangular R with `R R = T`, column by column.

    The part x of column j above the diagonal solves (R + rⱼⱼ I) x = tⱼ, with R of the columns before it.
    """
    solve_upper = TriangularSolve(left_side=True, is_lower=False)
    one = identity(t.type.shape, t.type.dtype)
    on_diagonal = row_column_mask(t.type.shape, "EQ")
    diagonal = Select()(on_diagonal, Sqrt()(diagonal_part(t)), zeros_like(t))
    above = Select()(row_column_mask(t.type.shape, "LT"), t, zeros_like(t))

    def step(number: Array, root: Array) -> Any:
        pivot = dynamic_index_in_dim(dynamic_index_in_dim(diagonal, number, 1), number, 0)
        column = solve_upper(root + one * pivot, dynamic_index_in_dim(above, number, 1))
        return dynamic_update_index_in_dim(root, column + dynamic_index_in_dim(diagonal, number, 1), number, 1)

    return fori_loop(0, t.type.shape[0], step, t * 0)
