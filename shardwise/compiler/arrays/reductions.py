"""Reductions along axes, composed of ops, with the promotion of numpy and JAX."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.compiler.arrays.arithmetic import as_bool, divide, subtract
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    as_strong,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    canonical_axes,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype, inexact_dtype
from shardwise.compiler.dtypes import DTypeLike, is_float, is_integer, numpy_carrier
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

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike
    from shardwise.compiler.arrays.methods import Array

Axes = int | Sequence[int] | None


@compiled_function
def sum(x: "ArrayLike", *, axis: Axes = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Any:
    """Sum along `axis`, or over all dims if it is None."""
    x = as_operand(x, "sum")
    dims = reduced_dims("sum", axis, x.type)
    out_dtype = canonical_dtype(dtype) if dtype is not None else sum_dtype(x.type)
    narrow = is_float(out_dtype) and out_dtype.itemsize < np.dtype(np.float32).itemsize
    x = astype_weak(x, np.float32 if narrow else out_dtype, False)
    return _keep_dims(astype_weak(Sum(dims)(x), out_dtype, False), x.type, dims, keepdims)


@compiled_function
def prod(x: "ArrayLike", *, axis: Axes = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Any:
    """Multiply along `axis`, or over all dims if it is None."""
    x = as_operand(x, "prod")
    dims = reduced_dims("prod", axis, x.type)
    x = astype_weak(x, canonical_dtype(dtype) if dtype is not None else sum_dtype(x.type), False)
    return _keep_dims(ReduceProd(dims)(x), x.type, dims, keepdims)


@compiled_function
def amax(x: "ArrayLike", *, axis: Axes = None, keepdims: bool = False, allow_empty: bool = False) -> Any:
    """Return the maximum along `axis`, or over all dims if it is None. NaN propagates."""
    return _extremum("max", ReduceMax, x, axis, keepdims, allow_empty)


@compiled_function
def amin(x: "ArrayLike", *, axis: Axes = None, keepdims: bool = False, allow_empty: bool = False) -> Any:
    """Return the minimum along `axis`, or over all dims if it is None. NaN propagates."""
    return _extremum("min", ReduceMin, x, axis, keepdims, allow_empty)


def _extremum(name: str, op: type[Reduce], x: "ArrayLike", axis: Axes, keepdims: bool, allow_empty: bool) -> Any:
    x = as_operand(x, name)
    dims = reduced_dims(name, axis, x.type)
    if not allow_empty and (empty := [dim for dim in dims if not x.type.shape[dim]]):
        raise ValueError(f"{name}: dims {empty} of {x.type} are empty, and the {name} of no elements is undefined")
    return _keep_dims(op(dims)(astype_weak(x, x.type.dtype, False)), x.type, dims, keepdims)


@compiled_function
def alltrue(x: "ArrayLike", *, axis: Axes = None, keepdims: bool = False) -> Any:
    """Return whether all elements along `axis` are nonzero."""
    x = as_strong(as_bool(x, "all"))
    dims = reduced_dims("all", axis, x.type)
    return _keep_dims(ReduceAnd(dims)(x), x.type, dims, keepdims)


@compiled_function
def sometrue(x: "ArrayLike", *, axis: Axes = None, keepdims: bool = False) -> Any:
    """Return whether any element along `axis` is nonzero."""
    x = as_strong(as_bool(x, "any"))
    dims = reduced_dims("any", axis, x.type)
    return _keep_dims(ReduceOr(dims)(x), x.type, dims, keepdims)


@compiled_function
def argmax(x: "ArrayLike", *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the index of the first maximum along `axis`, or in the flattened array if it is None."""
    return _arg_extremum("argmax", Argmax, x, axis, keepdims)


@compiled_function
def argmin(x: "ArrayLike", *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the index of the first minimum along `axis`, or in the flattened array if it is None."""
    return _arg_extremum("argmin", Argmin, x, axis, keepdims)


def _arg_extremum(
    name: str, op: Callable[[tuple[int, ...], Any], Op], x: "ArrayLike", axis: int | None, keepdims: bool
) -> Any:
    x = as_operand(x, name)
    if isinstance(axis, Sequence):
        raise TypeError(f"{name}: axis must be one integer or None, not {axis!r}; flatten several axes with `reshape`")
    dims = reduced_dims(name, axis, x.type)
    if not math.prod(x.type.shape[dim] for dim in dims):
        raise ValueError(f"{name}: {x.type} has no elements along the reduced axes")
    # An array of rank 0 is a vector with one element.
    operand, reduced = (x, dims) if x.type.ndim else (Reshape((1,))(x), (0,))
    return _keep_dims(op(reduced, default_dtype("int*"))(operand), x.type, dims, keepdims)


@compiled_function
def mean(x: "ArrayLike", *, axis: Axes = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Any:
    """Return the mean along `axis`, or over all dims if it is None. Integers become floats."""
    x = as_operand(x, "mean")
    reduced_dims("mean", axis, x.type)  # checks the axes, so that an error message refers to `mean`
    out_dtype = _mean_dtype(x.type, dtype)
    total = sum(x, axis=axis, dtype=numpy_carrier(out_dtype), keepdims=keepdims)  # a sum of f16 may overflow
    count = x.type.size // max(1, total.type.size) if x.type.size else 0
    return astype_weak(divide(total, count), out_dtype, False)


@compiled_function
def mean_where(
    x: "ArrayLike", where: "ArrayLike", *, axis: Axes = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Any:
    """Return the mean along `axis` of the elements where the broadcast mask `where` is true."""
    x = as_operand(x, "mean")
    out_dtype = _mean_dtype(x.type, dtype)
    mask = broadcast_to_shape(
        as_bool(where, "mean"), broadcast_shapes("mean", x.type.shape, type_of(where, "mean").shape)
    )
    masked = Select()(mask, x, full_like(x, 0))
    total = sum(masked, axis=axis, dtype=numpy_carrier(out_dtype), keepdims=keepdims)
    return astype_weak(divide(total, sum(mask, axis=axis, keepdims=keepdims)), out_dtype, False)


def _mean_dtype(type: ArrayType, dtype: DTypeLike | None) -> Any:
    if dtype is not None:
        return canonical_dtype(dtype)
    return inexact_dtype(type.dtype)


def check_variance_dtype(name: str, type: ArrayType, dtype: DTypeLike | None) -> None:
    """Raise if a real dtype is requested for the variance of complex numbers, for which numpy is inconsistent."""
    if dtype is not None and type.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise ValueError(f"{name}: dtype {np.dtype(dtype)} is real, but {type} is complex; pass a complex dtype")


@compiled_function
def var(
    x: "ArrayLike", *, axis: Axes = None, dtype: DTypeLike | None = None, ddof: int = 0, keepdims: bool = False
) -> Any:
    """Return the variance along `axis`. The divisor is the number of elements minus `ddof`."""
    x = as_inexact(x, "var")
    check_variance_dtype("var", x.type, dtype)
    out_dtype = x.type.dtype if dtype is None else canonical_dtype(dtype)
    wide = astype_weak(x, numpy_carrier(x.type.dtype if dtype is None else out_dtype), False)
    deviation = subtract(wide, mean(wide, axis=axis, keepdims=True))
    square = Square()(Abs()(deviation) if deviation.type.dtype.kind == "c" else deviation)
    total = sum(square, axis=axis, keepdims=keepdims)
    count = math.prod(x.type.shape[dim] for dim in reduced_dims("var", axis, x.type)) - ddof
    variance = divide(total, max(count, 0))
    return variance if dtype is None and out_dtype.kind == "c" else astype_weak(variance, out_dtype, False)


@compiled_function
def std(
    x: "ArrayLike", *, axis: Axes = None, dtype: DTypeLike | None = None, ddof: int = 0, keepdims: bool = False
) -> Any:
    """Return the standard deviation along `axis`."""
    return Sqrt()(var(x, axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims))


def sum_dtype(type: ArrayType) -> Any:
    """Return the dtype of a sum: narrow integers and booleans are widened to the default integer, as in numpy."""
    if type.dtype == np.bool_:
        return default_dtype("int*")
    if is_integer(type.dtype) and type.dtype.itemsize < default_dtype("int*").itemsize:
        return default_dtype("int*") if type.dtype.kind != "u" else canonical_dtype(np.uint64)
    return type.dtype


def reduced_dims(name: str, axis: Axes, type: ArrayType) -> tuple[int, ...]:
    """Return the dims of `axis`; all dims if it is None."""
    if axis is None:
        return tuple(range(type.ndim))
    return canonical_axes(name, axis if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,), type)


def _keep_dims(result: "Array", type: ArrayType, dims: tuple[int, ...], keepdims: bool) -> Any:
    """Return the result of a reduction; with `keepdims`, insert the reduced dims with size 1."""
    if not keepdims:
        return result
    return Reshape(tuple(1 if dim in dims else size for dim, size in enumerate(type.shape)))(result)
