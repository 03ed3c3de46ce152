"""The inspection functions of the array API standard, and the import of arrays by DLPack."""

from typing import Any, final

import numpy as np

from shardwise.api import interchange
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype
from shardwise.numpy.array_methods import VERSIONS
from shardwise.numpy.dtypes import isdtype
from shardwise.runtime.client import devices
from shardwise.typing import ArrayLike, Placement

__array_api_version__ = VERSIONS[-1]

_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)


def from_dlpack(x: ArrayLike, /, *, device: Placement = None, copy: bool | None = None) -> Array:
    """Import an array of another library, such as numpy or PyTorch, by DLPack.

    The result shares the memory of `x` where XLA can use it: later writes to `x` change the result. Pass `copy=True` to
    avoid this.

    Args:
        x: an object with the methods `__dlpack__` and `__dlpack_device__`.
        device: the device or sharding to move the array to. None keeps it on the device of `x`.
        copy: True always copies, False never does, None copies only if the memory cannot be shared.

    Returns:
        The array.

    Raises:
        TypeError: if `x` does not support DLPack.
        BufferError: if this process does not have the device of `x`, or if `copy` is False and the memory cannot be
            shared.

    Example:
        >>> jnp.from_dlpack(np.array([1, 2], np.int32))
        Array([1, 2], dtype=int32)
    """
    return interchange.from_dlpack("from_dlpack", x, device, copy)


@final
class NamespaceInfo:
    """The inspection API of the array API standard."""

    def capabilities(self) -> dict[str, Any]:
        """Return which optional features are supported. Data-dependent shapes are not: `jit` cannot compile them."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 64}

    def default_device(self) -> None:
        """Return None: there is no fixed default, as the device of a new array depends on its operands."""
        return

    def devices(self) -> list[Any]:
        """Return the devices that arrays can be created on; None stands for an uncommitted array."""
        return [None, *devices()]

    def default_dtypes(self, *, device: Placement = None) -> dict[str, Any]:
        """Return the default dtype of each group of dtypes, which Python scalars convert to."""
        integer = default_dtype("int*")
        return {
            "real floating": default_dtype("float*"),
            "complex floating": default_dtype("complex*"),
            "integral": integer,
            "indexing": integer,
        }

    def dtypes(self, *, device: Placement = None, kind: Any = None) -> dict[str, Any]:
        """Return the dtypes of the standard that are enabled (64-bit ones need x64), optionally of some kinds only."""
        enabled = {name: np.dtype(name) for name in _DTYPES if canonical_dtype(name) == np.dtype(name)}
        return enabled if kind is None else {name: dtype for name, dtype in enabled.items() if isdtype(dtype, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """Return the inspection API of the array API standard.

    Returns:
        An object whose methods list the supported devices, dtypes and optional features.

    Example:
        >>> jnp.__array_namespace_info__().default_dtypes()["integral"]
        dtype('int32')
    """
    return NamespaceInfo()
