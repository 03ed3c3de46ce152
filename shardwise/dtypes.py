"""Functions of dtypes in `jax.dtypes`, in addition to those of `shardwise.numpy`."""

import ml_dtypes
import numpy as np

from shardwise.api.transformations.float0 import float0
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DType, extended, prng_key
from shardwise.errors import TypePromotionError
from shardwise.numpy.dtypes import finfo, iinfo, issubdtype, result_type
from shardwise.typing import ArrayLike, DTypeLike

bfloat16 = ml_dtypes.bfloat16

_PYTHON_TYPES = {np.bool_: bool, np.integer: int, np.floating: float, np.complexfloating: complex}

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


def canonicalize_dtype(dtype: DTypeLike, allow_extended_dtype: bool = False) -> DType:
    """Return the dtype that arrays of a requested dtype have: 64-bit dtypes become 32-bit unless `enable_x64` is set.

    Args:
        dtype: a dtype, its name, or a Python or numpy scalar type.
        allow_extended_dtype: ignored. Extended dtypes, such as those of PRNG keys, are always accepted.

    Returns:
        The canonical dtype.

    Raises:
        TypeError: if `dtype` is unknown.

    Example:
        >>> jax.dtypes.canonicalize_dtype(float)
        dtype('float32')
    """
    return canonical_dtype(dtype)


def scalar_type_of(x: ArrayLike) -> type:
    """Return the Python type of the elements of an array or a scalar.

    Args:
        x: an array or a scalar.

    Returns:
        `bool`, `int`, `float` or `complex`.

    Raises:
        TypeError: if `x` is not an array or a scalar, or holds PRNG keys.

    Example:
        >>> jax.dtypes.scalar_type_of(jnp.int8(3))
        <class 'int'>
    """
    dtype = type_of(x, "scalar_type_of").dtype
    for category, python_type in _PYTHON_TYPES.items():
        if issubdtype(dtype, category):
            return python_type
    raise TypeError(f"scalar_type_of: the elements of {type_of(x)} are not numbers")


def itemsize_bits(dtype: DTypeLike) -> int:
    """Return the number of bits of an element, which is less than 8 for the narrowest dtypes.

    Args:
        dtype: a dtype, its name, or a scalar type.

    Returns:
        The number of bits.

    Raises:
        TypeError: if `dtype` is unknown.

    Example:
        >>> jax.dtypes.itemsize_bits(jnp.int4)
        4
    """
    if issubdtype(dtype, np.bool_):
        return 8
    if issubdtype(dtype, np.complexfloating):
        return 8 * int(np.dtype(dtype).itemsize)
    return int((iinfo if issubdtype(dtype, np.integer) else finfo)(dtype).bits)


set_public_names(__name__, __all__)
