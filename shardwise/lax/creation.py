"""Arrays of one value, and counted ones: close to the ops of `compiler/ops/shape.py`."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.api.placement import created
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import is_inexact, is_integer
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full as full_op
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.lax.shape import constrain_sharding, sizes_of
from shardwise.runtime.array import Array


def full(shape: Sequence[int], fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
    """An array of one value, a scalar. Without a `dtype` it has that of the value.

    >>> lax.full((2, 2), 7)
    Array([[7, 7],
           [7, 7]], dtype=int32)
    """
    kind = type_of(fill_value, "full")
    if kind.shape:
        raise TypeError(f"full: fill_value must be a scalar, not {kind}")
    wanted, weak = (kind.dtype, kind.weak) if dtype is None else (canonical_dtype(dtype), False)
    return _filled("full", sizes_of("full", shape), fill_value, wanted, weak, sharding)


def full_like(
    x: Any, fill_value: Any, dtype: Any = None, shape: Sequence[int] | None = None, sharding: Any = None
) -> Any:
    """An array of one value with the shape and dtype of `x`, beside it where it is committed, unless told otherwise.

    >>> lax.full_like(jnp.zeros(3), 2)
    Array([2., 2., 2.], dtype=float32)
    """
    kind = type_of(x, "full_like")
    if type_of(fill_value, "full_like").shape:
        raise TypeError(f"full_like: fill_value must be a scalar, not {type_of(fill_value)}")
    wanted, weak = (kind.dtype, kind.weak) if dtype is None else (canonical_dtype(dtype), False)
    sizes = kind.shape if shape is None else sizes_of("full_like", shape)
    if sharding is None and isinstance(x, Array) and x.committed and sizes == kind.shape:
        sharding = x.sharding
    return _filled("full_like", sizes, fill_value, wanted, weak, sharding)


def _filled(name: str, shape: tuple[int, ...], value: Any, dtype: Any, weak: bool, sharding: Any) -> Any:
    if isinstance(value, (*PYTHON_SCALARS, np.generic)):
        return created(full_op, (shape, value, dtype, weak), sharding, name)
    return constrain_sharding(_spread(value, shape=shape, dtype=dtype, weak=weak), sharding)


@compiled_function
def _spread(value: Any, *, shape: tuple[int, ...], dtype: Any, weak: bool) -> Any:
    return Broadcast(shape, ())(astype_weak(as_operand(value), dtype, weak))


def empty(shape: Any, dtype: Any, *, out_sharding: Any = None) -> Any:
    """An array whose elements nobody has asked for: here they are zeros.

    >>> lax.empty((2,), jnp.int32).shape
    (2,)
    """
    sizes = sizes_of("empty", shape if isinstance(shape, Sequence) else (shape,))
    return created(full_op, (sizes, 0, canonical_dtype(dtype)), out_sharding, "empty")


def iota(dtype: Any, size: int) -> Any:
    """The numbers 0, 1, 2 and so on, `size` of them.

    >>> lax.iota(jnp.int32, 4)
    Array([0, 1, 2, 3], dtype=int32)
    """
    return broadcasted_iota(dtype, (size,), 0)


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int, *, out_sharding: Any = None) -> Any:
    """An array whose elements are their own index along `dimension`.

    >>> lax.broadcasted_iota(jnp.int32, (2, 3), 0)
    Array([[0, 0, 0],
           [1, 1, 1]], dtype=int32)
    """
    sizes, dim, wanted = sizes_of("iota", shape), operator.index(dimension), canonical_dtype(dtype)
    if not (is_integer(wanted) or is_inexact(wanted)):
        raise TypeError(f"iota: counts in integers, floats or complex numbers, not in {wanted}")
    if not 0 <= dim < len(sizes):
        raise ValueError(f"iota: dimension {dim} does not exist in shape {sizes}")
    return created(_counted, (sizes, dim, wanted), out_sharding, "iota")


def _counted(shape: tuple[int, ...], dim: int, dtype: Any) -> Any:
    return Iota(shape, dim, dtype)()
