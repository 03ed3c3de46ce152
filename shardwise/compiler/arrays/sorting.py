"""Functions for which the order of elements along an axis matters, composed of ops: running totals, sorting."""

from typing import Any

import numpy as np

from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Reverse
from shardwise.compiler.reduction import Reduction


@compiled_function
def cumulative_along(x: Any, *, reduction: Reduction, axis: int | None = None, dtype: Any = None) -> Any:
    """The totals ("sum" or "prod") up to each element along `axis`; without one, of the flattened array."""
    x, dim = _row(f"cum{reduction}", as_operand(x, f"cum{reduction}"), axis)
    if dtype is None:
        dtype = default_dtype("int*") if x.type.dtype == np.bool_ else x.type.dtype
    wanted = canonical_dtype(dtype)
    if wanted == np.bool_:  # totals of integers, of which each is then false where it is 0
        return astype_weak(Cumulative(dim, reduction)(astype_weak(x, default_dtype("int*"), False)), wanted, False)
    return Cumulative(dim, reduction)(astype_weak(x, wanted, False))


@compiled_function
def sort_along(x: Any, *, axis: int | None = -1, descending: bool = False) -> Any:
    """The elements along `axis` in order, NaN last; without one, those of the flattened array."""
    x, dim = _row("sort", as_operand(x, "sort"), axis)
    (found,) = Sort(dim)(x)
    return Reverse((dim,))(found) if descending else found


@compiled_function
def argsort_along(x: Any, *, axis: int | None = -1, descending: bool = False, dtype: Any = None) -> Any:
    """Where the elements along `axis` would be taken from to be in order; of equal ones the first comes first."""
    x, dim = _row("argsort", as_operand(x, "argsort"), axis)
    _, found = Sort(dim, 1, descending)(x, Iota(x.type.shape, dim, np.dtype(np.int32))())
    return astype_weak(found, default_dtype("int*") if dtype is None else canonical_dtype(dtype), False)


def _row(name: str, x: Any, axis: int | None) -> tuple[Any, int]:
    if axis is None:
        return (x if x.type.ndim == 1 else Reshape((x.type.size,))(x)), 0
    return x, canonical_axis(name, axis, x.type.ndim)
