"""Functions that reduce along axes, composed of ops: they promote as numpy and JAX do."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.compiler.arrays.arithmetic import as_bool, divide, subtract
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    canonical_axes,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype
from shardwise.compiler.dtypes import is_float, is_inexact, is_integer, numpy_carrier
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.powers import Sqrt, Square
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.reduce.argminmax import Argmax, Argmin
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import Reshape

Axes = int | Sequence[int] | None


@compiled_function
def sum(x: Any, *, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The sum along `axis` (all dims where none is given)."""
    x = as_operand(x, "sum")
    dims = reduced_dims("sum", axis, x.type)
    wanted = canonical_dtype(dtype) if dtype is not None else _sum_dtype(x.type)
    narrow = is_float(wanted) and wanted.itemsize < np.dtype(np.float32).itemsize
    x = astype_weak(x, np.float32 if narrow else wanted, False)
    return _kept(astype_weak(Sum(dims)(x), wanted, False), x.type, dims, keepdims)


@compiled_function
def prod(x: Any, *, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The product along `axis` (all dims where none is given)."""
    x = as_operand(x, "prod")
    dims = reduced_dims("prod", axis, x.type)
    x = astype_weak(x, canonical_dtype(dtype) if dtype is not None else _sum_dtype(x.type), False)
    return _kept(ReduceProd(dims)(x), x.type, dims, keepdims)


@compiled_function
def amax(x: Any, *, axis: Axes = None, keepdims: bool = False, allow_empty: bool = False) -> Any:
    """The largest along `axis` (of all where none is given); NaN where any is. `allow_empty`: there may be none."""
    return _extreme("max", ReduceMax, x, axis, keepdims, allow_empty)


@compiled_function
def amin(x: Any, *, axis: Axes = None, keepdims: bool = False, allow_empty: bool = False) -> Any:
    """The smallest along `axis` (of all where none is given); NaN where any is. `allow_empty`: there may be none."""
    return _extreme("min", ReduceMin, x, axis, keepdims, allow_empty)


def _extreme(name: str, op: type[Reduce], x: Any, axis: Axes, keepdims: bool, allow_empty: bool) -> Any:
    x = as_operand(x, name)
    dims = reduced_dims(name, axis, x.type)
    if not allow_empty and (empty := [dim for dim in dims if not x.type.shape[dim]]):
        raise ValueError(f"{name}: dims {empty} of {x.type} are empty, and no element is the {name} of none")
    return _kept(op(dims)(astype_weak(x, x.type.dtype, False)), x.type, dims, keepdims)


@compiled_function
def alltrue(x: Any, *, axis: Axes = None, keepdims: bool = False) -> Any:
    """Whether all elements along `axis` differ from 0."""
    x = as_bool(x, "all")
    dims = reduced_dims("all", axis, x.type)
    return _kept(ReduceAnd(dims)(x), x.type, dims, keepdims)


@compiled_function
def sometrue(x: Any, *, axis: Axes = None, keepdims: bool = False) -> Any:
    """Whether any element along `axis` differs from 0."""
    x = as_bool(x, "any")
    dims = reduced_dims("any", axis, x.type)
    return _kept(ReduceOr(dims)(x), x.type, dims, keepdims)


@compiled_function
def argmax(x: Any, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Where along `axis` the first of the largest elements is; without one, in the flattened array."""
    return _position("argmax", Argmax, x, axis, keepdims)


@compiled_function
def argmin(x: Any, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Where along `axis` the first of the smallest elements is; without one, in the flattened array."""
    return _position("argmin", Argmin, x, axis, keepdims)


def _position(name: str, op: Callable[[int, Any], Op], x: Any, axis: int | None, keepdims: bool) -> Any:
    x = as_operand(x, name)
    dims = reduced_dims(name, axis, x.type)
    if not math.prod(x.type.shape[dim] for dim in dims):
        raise ValueError(f"{name}: {x.type} has no element to find")
    (dim,) = (0,) if axis is None else dims
    flat = Reshape((x.type.size,))(x) if axis is None else x
    return _kept(op(dim, default_dtype("int*"))(flat), x.type, dims, keepdims)


@compiled_function
def mean(x: Any, *, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The mean along `axis` (all dims where none is given); integers become floats."""
    x = as_operand(x, "mean")
    wanted = _mean_dtype(x.type, dtype)
    total = sum(x, axis=axis, dtype=numpy_carrier(wanted), keepdims=keepdims)  # of f16, the sum alone may overflow
    count = x.type.size // max(1, total.type.size) if x.type.size else 0
    return astype_weak(divide(total, count), wanted, False)


@compiled_function
def mean_where(x: Any, where: Any, *, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The mean along `axis` of the elements at which `where`, repeated to their shape, is true."""
    x = as_operand(x, "mean")
    wanted = _mean_dtype(x.type, dtype)
    chosen = broadcast_to_shape(
        as_bool(where, "mean"), broadcast_shapes("mean", x.type.shape, type_of(where, "mean").shape)
    )
    kept = Select()(chosen, x, full_like(x, 0))
    total = sum(kept, axis=axis, dtype=numpy_carrier(wanted), keepdims=keepdims)
    return astype_weak(divide(total, sum(chosen, axis=axis, keepdims=keepdims)), wanted, False)


def _mean_dtype(type: ArrayType, dtype: Any) -> Any:
    if dtype is not None:
        return canonical_dtype(dtype)
    return type.dtype if is_inexact(type.dtype) else default_dtype("float*")


@compiled_function
def var(x: Any, *, axis: Axes = None, dtype: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """The mean square distance from the mean along `axis`; the squares are shared by `ddof` fewer than there are."""
    x = as_inexact(x, "var")
    wanted = x.type.dtype if dtype is None else canonical_dtype(dtype)
    wide = astype_weak(x, numpy_carrier(x.type.dtype if dtype is None else wanted), False)
    away = subtract(wide, mean(wide, axis=axis, keepdims=True))
    square = Square()(Abs()(away) if away.type.dtype.kind == "c" else away)
    total = sum(square, axis=axis, keepdims=keepdims)
    count = math.prod(x.type.shape[dim] for dim in reduced_dims("var", axis, x.type)) - ddof
    found = divide(total, max(count, 0))
    return found if wanted.kind == "c" else astype_weak(found, wanted, False)


@compiled_function
def std(x: Any, *, axis: Axes = None, dtype: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """The square root of the variance along `axis`."""
    return Sqrt()(var(x, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims))


def _sum_dtype(type: ArrayType) -> Any:
    """Sums of small integers and booleans are taken in the default width, as numpy does."""
    if type.dtype == np.bool_:
        return default_dtype("int*")
    if is_integer(type.dtype) and type.dtype.itemsize < default_dtype("int*").itemsize:
        return default_dtype("int*") if type.dtype.kind != "u" else canonical_dtype(np.uint64)
    return type.dtype


def reduced_dims(name: str, axis: Axes, type: ArrayType) -> tuple[int, ...]:
    """The dims that `axis` means: all where it is None."""
    if axis is None:
        return tuple(range(type.ndim))
    return canonical_axes(name, (axis,) if isinstance(axis, int) else axis, type)


def _kept(found: Any, type: ArrayType, dims: tuple[int, ...], keepdims: bool) -> Any:
    """A reduction's result; with `keepdims`, the reduced dims stay, of size 1."""
    if not keepdims:
        return found
    return Reshape(tuple(1 if dim in dims else size for dim, size in enumerate(type.shape)))(found)
