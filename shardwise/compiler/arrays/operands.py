"""Conversion of function arguments to operands, promotion, broadcasting, and `compiled_function`."""

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from shardwise.base.call_site import warn_user
from shardwise.base.config import config
from shardwise.compiler.arrays.promotion import (
    canonical_dtype,
    inexact_dtype,
    promote_dtypes,
    scalar_type,
)
from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.dispatch import open_frames, recording_frame
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.errors import BroadcastError, ConcretizationTypeError

if TYPE_CHECKING:
    from shardwise.compiler.arrays.methods import Array

PYTHON_SCALARS = (bool, int, float, complex)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled_function(function: _Function) -> _Function:
    """Run `function` as one compiled program unless an open frame stages its ops.

    Positional arguments are arrays, keyword-only arguments are static.
    """
    return _staged(function, lambda args, static: dispatch.executor.call(function, args, static))


def compiled_list_function(function: _Function) -> _Function:
    """Like `compiled_function`, for a function that returns a list."""
    return _staged(function, lambda args, static: dispatch.executor.call_list(function, args, static))


def _staged(function: _Function, compiled: Callable[[Any, dict[str, Any]], Any]) -> _Function:
    array_names = cache(partial(_array_names, function))  # computed at the first call with keyword arguments

    @wraps(function)
    def call(*args: Any, **static: Any) -> Any:
        if static and not array_names().isdisjoint(static):  # some arrays are passed by keyword
            bound = inspect.signature(function).bind(*args, **static)
            bound.apply_defaults()
            args, static = bound.args, bound.kwargs
        if open_frames():
            args = tuple(map(resolve_array, args))
            if recording_frame(args) is not None:
                return function(*args, **static)
        return compiled(args, static)

    return call  # type: ignore[return-value]


def _array_names(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters that can be passed by position and by keyword, which are arrays."""
    parameters = inspect.signature(function).parameters
    return frozenset(
        name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    )


def type_of(x: object, name: str = "array") -> ArrayType:
    """Return the type of `x` as an operand. `name` is the calling function, for error messages."""
    array_type = getattr(x, "type", None)
    if isinstance(array_type, ArrayType):
        return array_type
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(f"{name}: numpy's masked arrays are not supported: use `x.filled(value)`")
    if isinstance(x, (np.ndarray, np.generic)):  # first: np.float64 is a subclass of float, but not weak
        return ArrayType(x.shape, canonical_dtype(x.dtype))
    if isinstance(x, PYTHON_SCALARS):
        return scalar_type(x)
    if hasattr(x, "__jax_array__"):
        return type_of(x.__jax_array__(), name)
    raise TypeError(f"{name}: needs an array or a number, not {x!r} of type {type(x).__name__}")


def resolve_array(x: object) -> Any:
    """Return `x.__jax_array__()` if there is such a method, else `x`."""
    return x.__jax_array__() if hasattr(x, "__jax_array__") else x


def concrete_value(name: str, x: object, unknown: str) -> np.ndarray[Any, Any]:
    """Return the elements of `x` as a numpy array; raise if `x` is traced.

    `unknown` completes the error message: the fact that is unknown under tracing, and what to do instead.
    """
    try:
        return np.asarray(resolve_array(x))
    except ConcretizationTypeError:
        raise ConcretizationTypeError(f"{name}: {type_of(x)} is traced, so {unknown}") from None


def as_operand(x: object, name: str = "array") -> "Array":
    """Convert `x` to an array or tracer, by its `__jax_array__` method if it has one."""
    array = resolve_array(x)
    type = type_of(array, name)
    if isinstance(array, (*PYTHON_SCALARS, np.generic)):
        return full((), array, type.dtype, type.weak)
    return dispatch.executor.place(array) if isinstance(array, np.ndarray) else array


def as_inexact(x: object, name: str) -> "Array":
    """Convert `x` to a floating or complex array or tracer. Integers and booleans become floats."""
    x = as_operand(x, name)
    return astype_weak(x, inexact_dtype(x.type.dtype), x.type.weak)


def astype_weak(x: "Array", dtype: DTypeLike, weak: bool) -> "Array":
    """Convert to a dtype and a weak type."""
    if x.type.dtype == dtype and x.type.weak == weak:
        return x
    return Convert(np.dtype(dtype), weak)(x)


def as_strong(x: "Array") -> "Array":
    """Return `x` with a type that is not weak."""
    return astype_weak(x, x.type.dtype, False)


def broadcast_shapes(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the broadcast shape of these shapes, by numpy's rule."""
    if len(set(shapes)) == 1:
        return shapes[0]
    ndim = max(map(len, shapes))
    out: list[int] = []
    for sizes in zip(*((1,) * (ndim - len(shape)) + shape for shape in shapes), strict=True):
        not_one = {size for size in sizes if size != 1}
        if len(not_one) > 1:
            raise BroadcastError(
                f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast: "
                f"sizes {' and '.join(map(str, sizes))} meet at dim {len(out) - ndim}, and neither is 1"
            )
        out.append(not_one.pop() if not_one else 1)
    return tuple(out)


def broadcast_to_shape(x: "Array", shape: tuple[int, ...]) -> "Array":
    """Broadcast `x` to `shape`, which must be compatible."""
    if x.type.shape == shape:
        return x
    lead = len(shape) - x.type.ndim
    kept = [dim for dim in range(x.type.ndim) if x.type.shape[dim] == shape[lead + dim]]
    squeezed = tuple(x.type.shape[dim] for dim in kept)
    if squeezed != x.type.shape:
        x = Reshape(squeezed)(x)
    return Broadcast(shape, tuple(lead + dim for dim in kept))(x)


def promote_and_broadcast(
    name: str, operands: Sequence[Any], dtype: DTypeLike | None = None, weak: bool | None = None
) -> list["Array"]:
    """Promote operands to a common dtype (or convert to `dtype`) and broadcast them to a common shape."""
    operands = [resolve_array(x) for x in operands]
    types = [type_of(x, name) for x in operands]
    if dtype is None:
        dtype, weak = promote_dtypes(name, types)
    shapes = [type.shape for type in types]
    if config.numpy_rank_promotion != "allow":
        _check_ranks(name, shapes)
    shape = broadcast_shapes(name, *shapes)
    out = []
    for x in operands:
        if isinstance(x, (*PYTHON_SCALARS, np.generic)):
            out.append(full(shape, x, dtype, bool(weak)))
        else:
            out.append(broadcast_to_shape(astype_weak(as_operand(x, name), dtype, bool(weak)), shape))
    return out


def _check_ranks(name: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Warn or raise, per `numpy_rank_promotion`, if shapes of different rank broadcast. Scalars are always allowed."""
    if len({len(shape) for shape in shapes if shape}) < 2:
        return
    text = (
        f"{name}: shapes {' and '.join(map(str, shapes))} differ in rank, and numpy_rank_promotion is "
        f"{config.numpy_rank_promotion!r}: add dims of size 1 with `x[None]`"
    )
    if config.numpy_rank_promotion == "raise":
        raise ValueError(text)
    warn_user(text)


def static_integer(name: str, parameter: str, value: Any) -> int:
    """Return an integer argument, which must be known while tracing. `name` and `parameter` are for messages."""
    try:
        return operator.index(value)
    except ConcretizationTypeError:
        raise
    except TypeError:
        raise TypeError(f"{name}: {parameter} must be an integer, not {value!r}") from None


def canonical_axes(name: str, axes: Sequence[int], type: ArrayType) -> tuple[int, ...]:
    """Convert axes to nonnegative dims; raise if one is out of bounds or repeats."""
    dims = []
    for axis in axes:
        if not hasattr(axis, "__index__"):
            raise TypeError(f"{name}: an axis must be an int or None, not {axis!r}")
        if not -type.ndim <= axis < type.ndim:
            raise ValueError(f"{name}: axis {axis} does not exist in {type}, which has rank {type.ndim}")
        dims.append(axis % type.ndim)
    if len(set(dims)) != len(dims):
        raise ValueError(f"{name}: an axis repeats in {tuple(axes)}")
    return tuple(dims)


def static_axes(axes: Any) -> Any:
    """Convert axes or sizes that may be arrays or lists to integers and tuples, which are hashable."""
    if isinstance(axes, (list, tuple)):
        return tuple(map(_static_axis, axes))
    return integer_tuple(axes) if getattr(axes, "ndim", 0) == 1 else _static_axis(axes)


def _static_axis(axis: Any) -> Any:
    if isinstance(axis, float) and axis.is_integer():  # it would hit the cache entry of the equal integer
        raise TypeError(f"an axis must be an int or None, not {axis!r}")
    return operator.index(axis) if hasattr(axis, "ndim") else axis


def integer_tuple(value: Any) -> tuple[int, ...]:
    """Return an integer, or a sequence or an array of integers, as a tuple; raise if it is traced."""
    is_number = getattr(value, "ndim", None) == 0 or not isinstance(value, Iterable)
    return tuple([operator.index(number) for number in ((value,) if is_number else value)])


def reject_out(name: str, out: object) -> None:
    """Raise if the `out` parameter of a numpy function is used."""
    if out is not None:
        raise NotImplementedError(f"{name}: arrays are immutable, so `out` must be None")
