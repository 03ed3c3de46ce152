"""What can be asked of element types, beside what `shardwise.numpy` has."""

from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from shardwise.compiler.ir.types import DType, extended, prng_key
from shardwise.compiler.ops.operands import type_of
from shardwise.compiler.ops.promote import canonical_dtype
from shardwise.errors import TypePromotionError, not_here
from shardwise.numpy.dtypes import finfo, iinfo, issubdtype, result_type

bfloat16 = ml_dtypes.bfloat16
float0: DType = np.dtype([("float0", np.void, 0)])  # of what has no derivative

_PYTHON = {np.bool_: bool, np.integer: int, np.floating: float, np.complexfloating: complex}

__all__ = [
    "TypePromotionError",
    "bfloat16",
    "canonicalize_dtype",
    "extended",
    "finfo",
    "float0",
    "iinfo",
    "issubdtype",
    "itemsize_bits",
    "prng_key",
    "result_type",
    "scalar_type_of",
]


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> DType:
    """`dtype` as arrays hold it: 64-bit types become 32-bit ones unless `enable_x64` is set.

    >>> jax.dtypes.canonicalize_dtype(float)
    dtype('float32')
    """
    return canonical_dtype(dtype)


def scalar_type_of(x: Any) -> type:
    """The Python type of the elements of an array or a number: `bool`, `int`, `float` or `complex`.

    >>> jax.dtypes.scalar_type_of(jnp.int8(3))
    <class 'int'>
    """
    dtype = type_of(x, "scalar_type_of").dtype
    return next(python for kind, python in _PYTHON.items() if issubdtype(dtype, kind))


def itemsize_bits(dtype: Any) -> int:
    """How many bits an element has, of which those of the narrowest types are less than a byte.

    >>> jax.dtypes.itemsize_bits(jnp.int4)
    4
    """
    if issubdtype(dtype, np.bool_):
        return 8
    if issubdtype(dtype, np.complexfloating):
        return 8 * int(np.dtype(dtype).itemsize)
    return int((iinfo if issubdtype(dtype, np.integer) else finfo)(dtype).bits)


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.dtypes", name, __all__)
