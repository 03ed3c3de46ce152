"""Norms, condition numbers and ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays import reductions
from shardwise.compiler.arrays.arithmetic import bitwise_and, divide, invert, multiply, power
from shardwise.compiler.arrays.matrices import as_matrices
from shardwise.compiler.arrays.methods import Array, astype
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    broadcast_to_shape,
    canonical_axes,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import inexact_dtype
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.linalg.batched import epsilon
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.numpy.families import MATRICES, REDUCTION
from shardwise.numpy.linalg.decompositions import eigvalsh, svdvals
from shardwise.numpy.linalg.linear_systems import inv
from shardwise.typing import ArrayLike

_NORM = REDUCTION.extended(returns="The norms.")

Order = int | float | str | None


@documented(_NORM)
def norm(x: ArrayLike, ord: Order = None, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Compute a norm of vectors along one axis, or of matrices along two axes.

    Args:
        ord: the order of the norm. None is the square root of the sum of squares. Orders of vectors: inf and -inf
            (largest and smallest absolute value), 0 (number of nonzero elements), any other number p for the p-norm.
            Orders of matrices: "fro" (Frobenius), "nuc" (sum of the singular values), 2 and -2 (largest and smallest
            singular value), 1 and -1 (largest and smallest sum of a column's absolute values), inf and -inf (of a
            row's).
        axis: one axis for vectors, a pair of axes for matrices. By default all axes of `x`.

    Raises:
        TypeError: if `x` is not an array or a number, or if `ord` needs an SVD of a 16-bit float dtype.
        ValueError: if `ord` does not exist for vectors or matrices, if an axis is out of bounds or repeats, or if there
            are more than two axes and `ord` is not None.

    Example:
        >>> jnp.linalg.norm(jnp.array([[3.0, 0.0], [0.0, 4.0]]))
        Array(5., dtype=float32)
    """
    x_type = type_of(x, "norm")
    if axis is None and ord is None:
        return _vector_norm(x, ord=2, dims=tuple(range(x_type.ndim)), keepdims=bool(keepdims))
    axes = tuple(range(x_type.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    dims = canonical_axes("norm", axes, x_type)
    if len(dims) == 1:
        return _vector_norm(x, ord=_vector_order("norm", ord), dims=dims, keepdims=bool(keepdims))
    if len(dims) == 2:
        return _matrix_norm(x, ord=_matrix_order("norm", ord), dims=dims, keepdims=bool(keepdims))
    raise ValueError(f"norm: axis must be one axis (vectors) or two (matrices), not {len(dims)} axes {axes}")


@documented(_NORM, raises=["ValueError: if `ord` is a string, or if an axis is out of bounds or repeats."])
def vector_norm(
    x: ArrayLike, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: Order = 2
) -> Array:
    """Compute a norm of vectors.

    Args:
        axis: the axis or axes that hold the vectors; several axes are flattened into one. By default all axes.
        ord: the order of the norm, a number, inf or -inf, as in `norm`.

    Example:
        >>> jnp.linalg.vector_norm(jnp.array([3.0, 4.0]))
        Array(5., dtype=float32)
    """
    x_type = type_of(x, "vector_norm")
    axes = tuple(range(x_type.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    dims = canonical_axes("vector_norm", axes, x_type)
    return _vector_norm(x, ord=_vector_order("vector_norm", ord), dims=dims, keepdims=bool(keepdims))


@documented(_NORM)
def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Order = "fro") -> Array:
    """Compute a norm of matrices.

    Args:
        x: the matrices, in the last two dims.
        keepdims: whether to keep the last two dims with size 1.
        ord: the order of the norm: "fro", "nuc", 1, -1, 2, -2, inf or -inf, as in `norm`.

    Raises:
        TypeError: if `x` is not an array or a number, or if `ord` needs an SVD of a 16-bit float dtype.
        ValueError: if `x` has a rank below 2, or if `ord` is unknown.

    Example:
        >>> jnp.linalg.matrix_norm(jnp.array([[3.0, 0.0], [0.0, 4.0]]), ord="nuc")
        Array(7., dtype=float32)
    """
    x_type = type_of(x, "matrix_norm")
    dims = canonical_axes("matrix_norm", (-2, -1), x_type)
    return _matrix_norm(x, ord=_matrix_order("matrix_norm", ord), dims=dims, keepdims=bool(keepdims))


def _vector_order(name: str, order: Order) -> float:
    """Check the order of a vector norm; None is 2."""
    if isinstance(order, str):
        raise ValueError(f"{name}: ord={order!r} is not a norm of vectors; use a number, inf or -inf")
    return 2 if order is None else order


def _matrix_order(name: str, order: Order) -> Order:
    """Check the order of a matrix norm."""
    if order not in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        raise ValueError(
            f"{name}: ord={order!r} is not a norm of matrices; use 'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        )
    return order


@compiled_function
def _vector_norm(x: ArrayLike, *, ord: float, dims: tuple[int, ...], keepdims: bool) -> Any:
    x = _drop_weak_type(as_inexact(x, "norm"))
    if ord == 2:
        return Sqrt()(reductions.sum(_abs_squared(x), axis=dims, keepdims=keepdims))
    magnitude = Abs()(x)
    if ord in (np.inf, -np.inf):
        reduce = reductions.amax if ord > 0 else reductions.amin
        return reduce(magnitude, axis=dims, keepdims=keepdims, allow_empty=ord > 0)
    if ord == 0:
        nonzero = Convert(magnitude.type.dtype)(Compare("NE")(x, full_like(x, 0)))
        return reductions.sum(nonzero, axis=dims, keepdims=keepdims)
    if ord == 1:
        return reductions.sum(magnitude, axis=dims, keepdims=keepdims)
    return power(reductions.sum(power(magnitude, ord), axis=dims, keepdims=keepdims), 1.0 / ord)


def _abs_squared(x: Array) -> Any:
    if x.type.dtype.kind == "c":
        magnitude = Abs()(x)
        return Mul()(magnitude, magnitude)
    return Mul()(x, x)


def _drop_weak_type(x: Array) -> Array:
    return astype_weak(x, x.type.dtype, False)


@compiled_function
def _matrix_norm(x: ArrayLike, *, ord: Any, dims: tuple[int, ...], keepdims: bool) -> Any:
    x = _drop_weak_type(as_inexact(x, "norm"))
    row, column = dims
    if ord in (None, "fro"):
        return Sqrt()(reductions.sum(_abs_squared(x), axis=dims, keepdims=keepdims))
    if ord in ("nuc", 2, -2):
        batch_dims = tuple(dim for dim in range(x.type.ndim) if dim not in dims)
        (values,) = Svd(vectors=False)(as_matrices("norm", permute(x, (*batch_dims, row, column))))
        if ord == "nuc":
            reduced = reductions.sum(values, axis=-1)
        else:
            reduced = (reductions.amax if ord > 0 else reductions.amin)(values, axis=-1)
        shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape))
        return Reshape(shape)(reduced) if keepdims else reduced
    summed_dim, compared_dim = (row, column) if abs(ord) == 1 else (column, row)
    sums = reductions.sum(Abs()(x), axis=summed_dim, keepdims=True)
    result = (reductions.amax if ord > 0 else reductions.amin)(sums, axis=compared_dim, keepdims=True)
    return result if keepdims else Reshape(result.type.without(dims).shape)(result)


@documented(MATRICES, returns="The condition numbers; infinity for singular matrices.")
def cond(x: ArrayLike, p: Order = None) -> Array:
    """Compute the condition number of matrices: the norm of a matrix times the norm of its inverse.

    Args:
        p: the order of the norm, as in `norm`. None and 2 are the ratio of the largest to the smallest singular value,
            -2 is its inverse; other orders need square matrices.

    Raises:
        ValueError: if `x` has a rank below 2, if it is not square although `p` needs its inverse, or if `p` is unknown.

    Example:
        >>> jnp.linalg.cond(jnp.array([[4.0, 0.0], [0.0, 2.0]]))
        Array(2., dtype=float32)
    """
    x_type = type_of(x, "cond")
    if p in (None, 2, -2):
        return _singular_value_ratio(x, inverted=p == -2)
    if x_type.ndim < 2 or x_type.shape[-1] != x_type.shape[-2]:
        raise ValueError(f"cond: p={p} needs square matrices, not {x_type}")
    result = multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))
    return _infinite_if_singular(result, x)


@compiled_function
def _singular_value_ratio(x: ArrayLike, *, inverted: bool) -> Any:
    (values,) = Svd(vectors=False)(as_matrices("cond", x))
    largest, smallest = reductions.amax(values, axis=-1), reductions.amin(values, axis=-1)
    return divide(smallest, largest) if inverted else divide(largest, smallest)


@compiled_function
def _infinite_if_singular(result: Array, x: ArrayLike) -> Any:
    """Replace NaN, which the inverse of a singular matrix leads to, by infinity; keep NaN if `x` contains NaN."""
    x = as_inexact(x, "cond")
    has_nan = reductions.sometrue(Compare("NE")(x, x), axis=(-2, -1))
    is_singular = bitwise_and(Compare("NE")(result, result), invert(has_nan))
    return Select()(is_singular, full_like(result, np.inf), result)


def matrix_rank(
    M: ArrayLike, rtol: ArrayLike | None = None, *, hermitian: bool = False, tol: ArrayLike | None = None
) -> Array:
    """Compute the rank of matrices: the number of singular values above a tolerance.

    Args:
        M: the matrices, in the last two dims. An array of rank 0 or 1 has rank 1 if any element is not 0, else 0.
        rtol: the tolerance relative to the largest singular value. By default the larger matrix dimension times the
            machine epsilon.
        hermitian: a promise that the matrices are Hermitian; then the cheaper eigenvalues are used.
        tol: an absolute tolerance, instead of `rtol`.

    Returns:
        The ranks, as int32.

    Raises:
        TypeError: if `M` has a float dtype of 16 bits or less, or if it is not square although `hermitian` is set.
        ValueError: if both `rtol` and `tol` are passed.

    Example:
        >>> jnp.linalg.matrix_rank(jnp.array([[1.0, 2.0], [2.0, 4.0]]))
        Array(1, dtype=int32)
    """
    if rtol is not None and tol is not None:
        raise ValueError("matrix_rank: pass `tol` or `rtol`, not both")
    m_type = type_of(M, "matrix_rank")
    if m_type.ndim < 2:
        return astype(reductions.sometrue(M), dtype=np.int32)
    if rtol is None and tol is None:
        dtype = inexact_dtype(m_type.dtype)
        rtol = max(m_type.shape[-2:]) * epsilon(dtype)
    values = _abs(eigvalsh(M)) if hermitian else svdvals(M)
    return _count_above(values, tol if rtol is None else rtol, relative=rtol is not None)


@compiled_function
def _abs(x: Array) -> Any:
    return Abs()(x)


@compiled_function
def _count_above(values: Array, bound: ArrayLike | None, *, relative: bool) -> Any:
    """Count the values along the last dim that exceed `bound`, or `bound` times the largest value if `relative`."""
    if not values.type.shape[-1]:
        return reductions.sum(Convert(np.dtype(np.int32))(values), axis=-1)
    limit = astype_weak(as_operand(bound), values.type.dtype, False)
    limit = Reshape((*limit.type.shape, 1))(limit)
    if relative:
        largest = reductions.amax(values, axis=-1, keepdims=True)
        limit = Mul()(largest, broadcast_to_shape(limit, largest.type.shape))
    above = Compare("GT")(values, broadcast_to_shape(limit, values.type.shape))
    return reductions.sum(Convert(np.dtype(np.int32))(above), axis=-1)
