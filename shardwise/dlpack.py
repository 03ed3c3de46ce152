"""Exchange of arrays with other libraries by DLPack, without copies."""

import numpy as np

from shardwise.api import interchange
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import SMALL_INTEGERS, is_float, short_name
from shardwise.typing import DTypeLike, Placement


def from_dlpack(external_array: object, device: Placement = None, copy: bool | None = None) -> Array:
    """Create an array that shares the buffer of another library's array, such as numpy's or PyTorch's.

    Later writes of the other library to a shared buffer are visible in the array.

    Args:
        external_array: an array with the methods `__dlpack__` and `__dlpack_device__`.
        device: the device or sharding to place the result on. By default, the device of the buffer.
        copy: True always copies; False never does; None copies only if XLA cannot use the buffer.

    Returns:
        The array.

    Raises:
        TypeError: if `external_array` does not support DLPack, or `device` is not a device or sharding.
        BufferError: if the buffer is on a device that this process does not have, or it cannot be shared and `copy` is
            False.

    Example:
        >>> jax.dlpack.from_dlpack(np.array([1, 2], np.int32))
        Array([1, 2], dtype=int32)
    """
    return interchange.from_dlpack("from_dlpack", external_array, device, copy)


def is_supported_dtype(dtype: DTypeLike) -> bool:
    """Return whether arrays of a dtype can be exchanged by DLPack.

    Args:
        dtype: a dtype, its name, or a scalar type.

    Returns:
        False for integers of fewer than 8 bits and floats of 8 bits or fewer, else True.

    Raises:
        TypeError: if `dtype` is unknown.

    Example:
        >>> jax.dlpack.is_supported_dtype(jnp.int4)
        False
    """
    numpy_dtype = np.dtype(dtype)
    is_small_float = is_float(numpy_dtype) and numpy_dtype.itemsize <= 1
    return short_name(numpy_dtype) not in SMALL_INTEGERS and not is_small_float


publish(__name__)
