"""Functions of dtypes in `jax.dtypes`, in addition to those of `shardwise.numpy`."""

from typing import Literal, overload

import ml_dtypes
import numpy as np

from shardwise.api.transformations.float0 import float0
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DType, extended, prng_key
from shardwise.errors import TypePromotionError
from shardwise.numpy.dtypes import finfo, iinfo, promoted_type
from shardwise.numpy.dtypes import issubdtype as numpy_issubdtype
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


def issubdtype(a: DTypeLike, b: DTypeLike) -> bool:
    """Return whether a dtype equals another one or is a subtype of an abstract type, as `numpy.issubdtype` does.

    Args:
        a: a dtype or an abstract type.
        b: a dtype or an abstract type, such as `jnp.floating` or `dtypes.prng_key`.

    Returns:
        True if `a` is `b` or below it in the type hierarchy.

    Raises:
        TypeError: if an argument is not a dtype.

    Example:
        >>> jax.dtypes.issubdtype(jax.random.key(0).dtype, jax.dtypes.prng_key)
        True
    """
    return numpy_issubdtype(a, b)


@overload
def result_type(*args: ArrayLike | DTypeLike, return_weak_type_flag: Literal[False] = ...) -> DType: ...


@overload
def result_type(*args: ArrayLike | DTypeLike, return_weak_type_flag: bool) -> DType | tuple[DType, bool]: ...


def result_type(*args: ArrayLike | DTypeLike, return_weak_type_flag: bool = False) -> DType | tuple[DType, bool]:
    """Return the dtype to which arrays, numbers and dtypes are promoted, as `numpy.result_type` does.

    Args:
        *args: arrays, Python or numpy scalars, and dtypes.
        return_weak_type_flag: whether to return whether the promoted type is weak as well.

    Returns:
        The promoted dtype; with `return_weak_type_flag`, a pair of it and a bool.

    Raises:
        ValueError: if there are no arguments, or if arrays of a dtype are not supported.
        TypePromotionError: if the dtypes have no common one.

    Example:
        >>> jax.dtypes.result_type(1, 2.5, return_weak_type_flag=True)
        (dtype('float32'), True)
    """
    type = promoted_type(args)
    return (type.dtype, type.weak) if return_weak_type_flag else type.dtype


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
