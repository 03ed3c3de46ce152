"""Constant arrays and iotas."""

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding
from shardwise.api.meshes.placement import create_on_device
from shardwise.api.transformations.float0 import float0, is_float0, is_float0_dtype
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.dtypes import DType, is_inexact, is_integer
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full as full_op
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.lax.manual_axes import make_varying
from shardwise.lax.shape import sizes_of
from shardwise.runtime.array import ArrayImpl
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Placement

_CREATION = Family(
    {
        "shape": "the shape of the array.",
        "fill_value": "the value of all elements, a scalar.",
        "sharding": Parameter("the sharding of the array.", "ShardingError: if {} does not fit the shape."),
        "out_sharding": Parameter("the sharding of the array.", "ShardingError: if {} does not fit the shape."),
    },
    returns="The array.",
)


@documented(_CREATION)
def full(
    shape: Sequence[int], fill_value: ArrayLike, dtype: DTypeLike | None = None, *, sharding: Placement = None
) -> Array:
    """Create an array filled with a scalar.

    Args:
        dtype: the dtype of the array. None means that of `fill_value`.

    Raises:
        TypeError: if `fill_value` is not a scalar, or `shape` has negative sizes.

    Example:
        >>> lax.full((2, 2), 7)
        Array([[7, 7],
               [7, 7]], dtype=int32, weak_type=True)
    """
    if is_float0_dtype(dtype):
        return cast(Array, np.zeros(sizes_of("full", shape), float0))
    value_type = type_of(fill_value, "full")
    if value_type.shape:
        raise TypeError(f"full: fill_value must be a scalar, not {value_type}")
    out_dtype, weak = (value_type.dtype, value_type.weak) if dtype is None else (requested_dtype("full", dtype), False)
    return _full("full", sizes_of("full", shape), fill_value, out_dtype, weak, sharding)


@documented(_CREATION)
def full_like(
    x: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    sharding: Placement = None,
) -> Array:
    """Create an array filled with a scalar, with the shape and dtype of another array.

    Args:
        x: the array whose shape and dtype are used. If it is committed and the shape is kept, its sharding is used as
            well.
        dtype: the dtype of the result. None means that of `x`.
        shape: the shape of the result. None means that of `x`.
        sharding: the sharding of the result. None means that of a committed `x`.

    Raises:
        TypeError: if `fill_value` is not a scalar, or `shape` has negative sizes.

    Example:
        >>> lax.full_like(jnp.zeros(3), 2)
        Array([2., 2., 2.], dtype=float32)
    """
    if is_float0(x) or is_float0_dtype(dtype):
        return full(np.shape(x) if shape is None else shape, fill_value, float0 if dtype is None else dtype)
    like = type_of(x, "full_like")
    if type_of(fill_value, "full_like").shape:
        raise TypeError(f"full_like: fill_value must be a scalar, not {type_of(fill_value)}")
    out_dtype, weak = (like.dtype, like.weak) if dtype is None else (requested_dtype("full_like", dtype), False)
    sizes = like.shape if shape is None else sizes_of("full_like", shape)
    if sharding is None and isinstance(x, ArrayImpl) and x.committed and sizes == like.shape:
        sharding = x.sharding
    result = make_varying(_full("full_like", sizes, fill_value, out_dtype, weak, sharding), like.varying)
    return reshard_to(result, like.explicit) if sharding is None and sizes == like.shape else result


def _full(name: str, shape: tuple[int, ...], value: ArrayLike, dtype: DType, weak: bool, sharding: Placement) -> Any:
    if isinstance(value, (*PYTHON_SCALARS, np.generic)):
        return create_on_device(full_op, (shape, value, dtype, weak), sharding, name)
    return constrain_sharding(_broadcast_scalar(value, shape=shape, dtype=dtype, weak=weak), sharding)


@compiled_function
def _broadcast_scalar(value: ArrayLike, *, shape: tuple[int, ...], dtype: DType, weak: bool) -> Any:
    return Broadcast(shape, ())(astype_weak(as_operand(value), dtype, weak))


@documented(_CREATION)
def empty(shape: Sequence[SupportsIndex], dtype: DTypeLike, *, out_sharding: OutSharding = None) -> Array:
    """Create an array with arbitrary elements. Here they are zeros.

    Args:
        shape: the shape of the array, or the size of one dim.
        dtype: the dtype of the array.

    Raises:
        TypeError: if `shape` has negative sizes, or `dtype` is not a dtype.

    Example:
        >>> lax.empty((2,), jnp.int32).shape
        (2,)
    """
    sizes = sizes_of("empty", shape if isinstance(shape, Sequence) else (shape,))
    return create_on_device(full_op, (sizes, 0, requested_dtype("empty", dtype)), out_sharding, "empty")


def iota(dtype: DTypeLike, size: int) -> Array:
    """Create the array 0, 1, 2, ... of `size` elements.

    Args:
        dtype: the dtype of the array: integers, floats or complex numbers.
        size: the number of elements.

    Returns:
        An array of rank 1.

    Raises:
        TypeError: if `dtype` is boolean, or `size` is negative.

    Example:
        >>> lax.iota(jnp.int32, 4)
        Array([0, 1, 2, 3], dtype=int32)
    """
    return broadcasted_iota(dtype, (size,), 0)


@documented(_CREATION)
def broadcasted_iota(
    dtype: DTypeLike, shape: Sequence[int], dimension: int, *, out_sharding: OutSharding = None
) -> Array:
    """Create an array whose elements are their index along `dimension`.

    Args:
        dtype: the dtype of the array: integers, floats or complex numbers.
        dimension: the dim along which the elements count up, from 0.

    Raises:
        TypeError: if `dtype` is boolean, or `shape` has negative sizes.
        ValueError: if `dimension` does not exist in `shape`.

    Example:
        >>> lax.broadcasted_iota(jnp.int32, (2, 3), 0)
        Array([[0, 0, 0],
               [1, 1, 1]], dtype=int32)
    """
    sizes, dim, out_dtype = sizes_of("iota", shape), operator.index(dimension), requested_dtype("iota", dtype)
    if not (is_integer(out_dtype) or is_inexact(out_dtype)):
        raise TypeError(f"iota: dtype must be integer, float or complex, not {out_dtype}")
    if not 0 <= dim < len(sizes):
        raise ValueError(f"iota: dimension {dim} does not exist in shape {sizes}")
    return create_on_device(_iota, (sizes, dim, out_dtype), out_sharding, "iota")


def _iota(shape: tuple[int, ...], dim: int, dtype: DType) -> Any:
    return Iota(shape, dim, dtype)()
