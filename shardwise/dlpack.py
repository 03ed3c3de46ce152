"""Arrays whose memory is shared with other libraries."""

from typing import Any, NoReturn

import numpy as np

from shardwise.api import interchange
from shardwise.compiler.ir.types import SMALL_INTEGERS, is_float, short_name
from shardwise.errors import not_here

__all__ = ["from_dlpack", "is_supported_dtype"]


def from_dlpack(external_array: Any, device: Any = None, copy: bool | None = None) -> Any:
    """An array that shares the memory of another library's (numpy's, PyTorch's) by DLPack.

    Memory that XLA cannot use is copied. What the other library writes to shared memory later shows in the array:
    `copy=True` gives the array memory of its own. `device` is where it is moved then.

    >>> jax.dlpack.from_dlpack(np.array([1, 2], np.int32))
    Array([1, 2], dtype=int32)
    """
    return interchange.from_dlpack("from_dlpack", external_array, device, copy)


def is_supported_dtype(dtype: Any) -> bool:
    """Whether arrays of this dtype can be shared.

    >>> jax.dlpack.is_supported_dtype(jnp.int4)
    False
    """
    found = np.dtype(dtype)
    return short_name(found) not in SMALL_INTEGERS and (found.itemsize > 1 or not is_float(found))


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.dlpack", name, __all__)
