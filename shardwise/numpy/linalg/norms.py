"""How large matrices and vectors are: norms, condition numbers and ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops import along_axes
from shardwise.compiler.ops.elementwise import Compare, Convert, Mul, Select, like
from shardwise.compiler.ops.matrix import as_matrices, epsilon
from shardwise.compiler.ops.methods import astype
from shardwise.compiler.ops.numeric import bitwise_and, divide, invert, multiply, power
from shardwise.compiler.ops.operands import as_inexact, as_operand, astype_weak, composed, dims_of, stretch, type_of
from shardwise.compiler.ops.parts import Abs
from shardwise.compiler.ops.powers import Sqrt
from shardwise.compiler.ops.promote import default_dtype
from shardwise.compiler.ops.shape import Reshape, permuted
from shardwise.compiler.ops.svd import Svd
from shardwise.numpy.linalg.factors import eigvalsh, svdvals
from shardwise.numpy.linalg.solving import inv

Order = int | float | str | None


def norm(x: Any, ord: Order = None, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """The norm of vectors along one axis, or of matrices along two. Without `ord`, the root of the sum of squares.

    Of vectors: inf, -inf, 0 (how many are not 0), or any power. Of matrices: "fro", "nuc" (the sum of the singular
    values), 2 and -2 (the largest and the smallest), 1, -1, inf and -inf (of the sums of columns, or of rows).

    >>> jnp.linalg.norm(jnp.array([[3.0, 0.0], [0.0, 4.0]]))
    Array(5., dtype=float32)
    """
    kind = type_of(x, "norm")
    if axis is None and ord is None:
        return _vector_norm(x, ord=2, dims=tuple(range(kind.ndim)), keepdims=bool(keepdims))
    axes = tuple(range(kind.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    dims = dims_of("norm", axes, kind)
    if len(dims) == 1:
        return _vector_norm(x, ord=_vector_order("norm", ord), dims=dims, keepdims=bool(keepdims))
    if len(dims) == 2:
        return _matrix_norm(x, ord=_matrix_order("norm", ord), dims=dims, keepdims=bool(keepdims))
    raise ValueError(f"norm: axis {axes} names {len(dims)} axes: one is of vectors, two are of matrices")


def vector_norm(x: Any, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: Order = 2) -> Any:
    """The norm of vectors along `axis`; several axes, or all where none is given, count as one.

    >>> jnp.linalg.vector_norm(jnp.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    kind = type_of(x, "vector_norm")
    axes = tuple(range(kind.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    dims = dims_of("vector_norm", axes, kind)
    return _vector_norm(x, ord=_vector_order("vector_norm", ord), dims=dims, keepdims=bool(keepdims))


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Order = "fro") -> Any:
    """The norm of matrices, which are the last two dims; see `norm` for the orders.

    >>> jnp.linalg.matrix_norm(jnp.array([[3.0, 0.0], [0.0, 4.0]]), ord="nuc")
    Array(7., dtype=float32)
    """
    kind = type_of(x, "matrix_norm")
    dims = dims_of("matrix_norm", (-2, -1), kind)
    return _matrix_norm(x, ord=_matrix_order("matrix_norm", ord), dims=dims, keepdims=bool(keepdims))


def _vector_order(name: str, order: Order) -> Order:
    if isinstance(order, str):
        raise ValueError(f"{name}: {order!r} is not a norm of vectors; these are numbers, inf and -inf")
    return 2 if order is None else order


def _matrix_order(name: str, order: Order) -> Order:
    if order not in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        raise ValueError(
            f"{name}: {order!r} is not a norm of matrices; these are 'fro', 'nuc', 1, -1, 2, -2, inf, -inf"
        )
    return order


@composed
def _vector_norm(x: Any, *, ord: Any, dims: tuple[int, ...], keepdims: bool) -> Any:
    x = _strong(as_inexact(x, "norm"))
    if ord == 2:
        return Sqrt()(along_axes.sum(_squares(x), axis=dims, keepdims=keepdims))
    size = Abs()(x)
    if ord in (np.inf, -np.inf):
        return (along_axes.amax if ord > 0 else along_axes.amin)(size, axis=dims, keepdims=keepdims, or_none=ord > 0)
    if ord == 0:
        counted = Convert(size.type.dtype)(Compare("NE")(x, like(x, 0)))
        return along_axes.sum(counted, axis=dims, keepdims=keepdims)
    if ord == 1:
        return along_axes.sum(size, axis=dims, keepdims=keepdims)
    return power(along_axes.sum(power(size, ord), axis=dims, keepdims=keepdims), 1.0 / ord)


def _squares(x: Any) -> Any:
    if x.type.dtype.kind == "c":
        size = Abs()(x)
        return Mul()(size, size)
    return Mul()(x, x)


def _strong(x: Any) -> Any:
    return astype_weak(x, x.type.dtype, False)


@composed
def _matrix_norm(x: Any, *, ord: Any, dims: tuple[int, ...], keepdims: bool) -> Any:
    x = _strong(as_inexact(x, "norm"))
    row, column = dims
    if ord in (None, "fro"):
        return Sqrt()(along_axes.sum(_squares(x), axis=dims, keepdims=keepdims))
    if ord in ("nuc", 2, -2):
        kept = tuple(dim for dim in range(x.type.ndim) if dim not in dims)
        (values,) = Svd(vectors=False)(as_matrices("norm", permuted(x, (*kept, row, column))))
        if ord == "nuc":
            reduced = along_axes.sum(values, axis=-1)
        else:
            reduced = (along_axes.amax if ord > 0 else along_axes.amin)(values, axis=-1)
        shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape))
        return Reshape(shape)(reduced) if keepdims else reduced
    summed, rest = (row, column) if abs(ord) == 1 else (column, row)
    sums = along_axes.sum(Abs()(x), axis=summed, keepdims=True)
    found = (along_axes.amax if ord > 0 else along_axes.amin)(sums, axis=rest, keepdims=True)
    return found if keepdims else Reshape(found.type.without(dims).shape)(found)


def cond(x: Any, p: Order = None) -> Any:
    """The condition number of matrices: their norm times that of their inverse; without `p`, by singular values.

    >>> jnp.linalg.cond(jnp.array([[4.0, 0.0], [0.0, 2.0]]))
    Array(2., dtype=float32)
    """
    kind = type_of(x, "cond")
    if p in (None, 2, -2):
        return _ratio(x, inverted=p == -2)
    if kind.ndim < 2 or kind.shape[-1] != kind.shape[-2]:
        raise ValueError(f"cond: with p={p} needs square matrices, not {kind}")
    found = multiply(matrix_norm(x, ord=p), matrix_norm(inv(x), ord=p))
    return _infinite_where_nan(found, x)


@composed
def _ratio(x: Any, *, inverted: bool) -> Any:
    (values,) = Svd(vectors=False)(as_matrices("cond", x))
    large, small = along_axes.amax(values, axis=-1), along_axes.amin(values, axis=-1)
    return divide(small, large) if inverted else divide(large, small)


@composed
def _infinite_where_nan(found: Any, x: Any) -> Any:
    """A singular matrix has no inverse; of one with NaN nothing is known."""
    x = as_inexact(x, "cond")
    unknown = along_axes.sometrue(Compare("NE")(x, x), axis=(-2, -1))
    singular = bitwise_and(Compare("NE")(found, found), invert(unknown))
    return Select()(singular, like(found, np.inf), found)


def matrix_rank(M: Any, rtol: Any = None, *, hermitian: bool = False, tol: Any = None) -> Any:
    """How many singular values are larger than `rtol` times the largest, or than `tol`; of vectors, whether any element
    is not 0.

    >>> jnp.linalg.matrix_rank(jnp.array([[1.0, 2.0], [2.0, 4.0]]))
    Array(1, dtype=int32)
    """
    if rtol is not None and tol is not None:
        raise ValueError("matrix_rank: pass one of `tol` and `rtol`, not both")
    kind = type_of(M, "matrix_rank")
    if kind.ndim < 2:
        return astype(along_axes.sometrue(M), dtype=np.int32)
    if rtol is None and tol is None:
        dtype = kind.dtype if is_inexact(kind.dtype) else default_dtype("float*")
        rtol = max(kind.shape[-2:]) * epsilon(dtype)
    values = _magnitudes(eigvalsh(M)) if hermitian else svdvals(M)
    return _count_above(values, tol if rtol is None else rtol, relative=rtol is not None)


@composed
def _magnitudes(x: Any) -> Any:
    return Abs()(x)


@composed
def _count_above(values: Any, bound: Any, *, relative: bool) -> Any:
    if not values.type.shape[-1]:
        return along_axes.sum(Convert(np.dtype(np.int32))(values), axis=-1)
    bound = astype_weak(as_operand(bound), values.type.dtype, False)
    bound = Reshape((*bound.type.shape, 1))(bound)
    if relative:
        largest = along_axes.amax(values, axis=-1, keepdims=True)
        bound = Mul()(largest, stretch(bound, largest.type.shape))
    above = Compare("GT")(values, stretch(bound, values.type.shape))
    return along_axes.sum(Convert(np.dtype(np.int32))(above), axis=-1)
