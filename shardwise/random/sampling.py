"""Argument checks that the functions of `random` share, and `run_sampler`, which runs a sampler as one program."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, cast

import ml_dtypes
import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, requested_dtype
from shardwise.compiler.dtypes import DType, is_float, is_inexact, is_integer
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape

StaticShape = tuple[int, ...]


def run_sampler(
    sampler: Callable[..., Any], key: ArrayLike, *parameters: ArrayLike, out_sharding: OutSharding = None, **static: Any
) -> Any:
    """Return `sampler(key, *parameters, **static)` with sharding `out_sharding`; `key` is a typed key.

    Outside of `jit` the call is one compiled program.
    """
    return _run_sampler(key, *parameters, sampler=sampler, out_sharding=out_sharding, **static)


@compiled_function
def _run_sampler(
    key: ArrayLike, *parameters: ArrayLike, sampler: Callable[..., Any], out_sharding: OutSharding, **static: Any
) -> Any:
    samples = sampler(as_operand(key), *parameters, **static)
    return constrain_sharding(samples, out_sharding)


def float_dtype(name: str, dtype: DTypeLike | None) -> DType:
    """Return a floating-point dtype argument; by default the default float dtype."""
    out_dtype = default_dtype("float*") if dtype is None else requested_dtype(name, dtype)
    if not is_float(out_dtype):
        raise ValueError(f"{name}: dtype must be a floating-point dtype, not {out_dtype}")
    return out_dtype


def inexact_dtype(name: str, dtype: DTypeLike | None) -> DType:
    """Return a floating-point or complex dtype argument; by default the default float dtype."""
    out_dtype = default_dtype("float*") if dtype is None else requested_dtype(name, dtype)
    if not is_inexact(out_dtype):
        raise ValueError(f"{name}: dtype must be a floating-point or complex dtype, not {out_dtype}")
    return out_dtype


def integer_dtype(name: str, dtype: DTypeLike | None) -> DType:
    """Return an integer dtype argument; by default the default integer dtype."""
    out_dtype = default_dtype("int*") if dtype is None else requested_dtype(name, dtype)
    if not is_integer(out_dtype):
        raise ValueError(f"{name}: dtype must be an integer dtype, not {out_dtype}")
    return out_dtype


def canonical_shape(name: str, shape: Shape) -> StaticShape:
    """Return a shape as a tuple of Python integers. An integer is the size of one dim."""
    sequence = (shape,) if isinstance(shape, (int, np.integer)) else cast(Sequence[SupportsIndex], shape)
    try:
        sizes = tuple(map(operator.index, sequence))
    except TypeError:
        raise TypeError(f"{name}: shape must be a tuple of integers, not {shape!r}") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"{name}: sizes must not be negative: shape {sizes}")
    return sizes


def sample_shape(name: str, shape: Shape | None, *parameters: ArrayLike) -> StaticShape:
    """Return the shape of the samples: `shape`, to which parameters must broadcast, or by default their own shape."""
    return broadcast_sample_shape(name, shape, *(type_of(parameter, name).shape for parameter in parameters))


def broadcast_sample_shape(name: str, shape: Shape | None, *shapes: StaticShape) -> StaticShape:
    """Return the shape of the samples for parameters of these shapes."""
    if shape is None:
        return broadcast_shapes(name, *shapes) if shapes else ()
    sizes = canonical_shape(name, shape)
    if shapes and broadcast_shapes(name, sizes, *shapes) != sizes:
        raise ValueError(
            f"{name}: parameters of shapes {' and '.join(map(str, shapes))} do not broadcast to shape {sizes}"
        )
    return sizes


def broadcast_parameter(x: Array, shape: StaticShape, dtype: DType) -> Any:
    """Convert a parameter of a distribution to the dtype of the samples, and broadcast it to their shape."""
    return broadcast_to_shape(astype_weak(x, dtype, False), shape)


def check_parameter_shape(name: str, parameter: str, x: ArrayLike, shape: StaticShape) -> None:
    """Raise if a parameter of a distribution does not broadcast to the shape of the samples."""
    own_shape = type_of(x, name).shape
    try:
        fits = broadcast_shapes(name, own_shape, shape) == shape
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"{name}: {parameter} of shape {own_shape} does not broadcast to the shape {shape}")


def check_no_narrowing(name: str, dtype: DType, *parameters: ArrayLike) -> None:
    """Raise if a conversion to the dtype of the samples would lose precision or the imaginary part of a parameter."""
    for parameter in parameters:
        type = type_of(parameter, name)
        if (
            not type.weak
            and is_inexact(type.dtype)
            and np.promote_types(_numpy_dtype(type.dtype), _numpy_dtype(dtype)) != (_numpy_dtype(dtype))
        ):
            raise TypeError(
                f"{name}: a parameter of type {type} cannot be converted to the dtype of the samples, {dtype}, without "
                "loss; convert it with astype, or pass another dtype"
            )


def _numpy_dtype(dtype: DType) -> DType:
    """Return a dtype that `np.promote_types` knows: float16 for all floats below 32 bits."""
    return np.dtype(np.float16) if is_float(dtype) and dtype.itemsize < np.dtype(np.float32).itemsize else dtype


def finfo(dtype: DType) -> Any:
    """Return the machine limits of a floating-point dtype."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def check_one_of(name: str, argument: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {argument} must be one of {', '.join(map(repr, choices))}, not {value!r}")
