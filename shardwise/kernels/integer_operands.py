"""Integer operands of kernels, which read int32."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import astype_weak, type_of
from shardwise.compiler.dtypes import is_integer

_INT32 = np.iinfo(np.int32)


def check_integers(x: Any, function: str, parameter: str) -> None:
    """Raise TypeError if an argument of a function does not hold integers."""
    type = type_of(x, function)
    if not is_integer(type.dtype):
        raise TypeError(f"{function}: {parameter} must be integers, not {type}")


def as_int32(x: Array) -> Array:
    """Return integers as int32. Integers out of its range are clamped to it, and do not wrap around."""
    limits = jnp.iinfo(x.type.dtype)
    lowest, highest = (int(limit) for limit in (limits.min, limits.max))
    if lowest < _INT32.min or highest > _INT32.max:
        x = jnp.clip(x, max(lowest, _INT32.min), _INT32.max)
    return astype_weak(x, np.int32, False)
