"""Cumulative reductions and sorting along an axis, composed of ops."""

from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype
from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Reverse
from shardwise.compiler.reduction import Reduction

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike
    from shardwise.compiler.arrays.methods import Array


@compiled_function
def cumulative_along(
    x: "ArrayLike", *, reduction: Reduction, axis: int | None = None, dtype: DTypeLike | None = None
) -> Any:
    """Return the cumulative sum or product along `axis`, or of the flattened array if it is None."""
    x, dim = _along_axis(f"cum{reduction}", as_operand(x, f"cum{reduction}"), axis)
    if dtype is None:
        dtype = default_dtype("int*") if x.type.dtype == np.bool_ else x.type.dtype
    out_dtype = canonical_dtype(dtype)
    if out_dtype == np.bool_:  # compute in integers and convert, so that a nonzero result is True
        return astype_weak(Cumulative(dim, reduction)(astype_weak(x, default_dtype("int*"), False)), out_dtype, False)
    return Cumulative(dim, reduction)(astype_weak(x, out_dtype, False))


@compiled_function
def sort_along(x: "ArrayLike", *, axis: int | None = -1, descending: bool = False) -> Any:
    """Sort along `axis`, NaN last; sort the flattened array if it is None."""
    x, dim = _along_axis("sort", as_operand(x, "sort"), axis)
    (values,) = Sort(dim)(x)
    return Reverse((dim,))(values) if descending else values


@compiled_function
def argsort_along(
    x: "ArrayLike", *, axis: int | None = -1, descending: bool = False, dtype: DTypeLike | None = None
) -> Any:
    """Return the indices that sort along `axis`. The sort is stable."""
    x, dim = _along_axis("argsort", as_operand(x, "argsort"), axis)
    _, indices = Sort(dim, 1, descending)(x, Iota(x.type.shape, dim, np.dtype(np.int32))())
    return astype_weak(indices, default_dtype("int*") if dtype is None else canonical_dtype(dtype), False)


def _along_axis(name: str, x: "Array", axis: int | None) -> tuple["Array", int]:
    """Return the array and the dim of `axis`; the flattened array and 0 if it is None."""
    if axis is None:
        return (x if x.type.ndim == 1 else Reshape((x.type.size,))(x)), 0
    return x, canonical_axis(name, axis, x.type.ndim)
