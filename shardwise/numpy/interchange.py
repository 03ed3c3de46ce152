"""The array API standard: what the namespace can do, and arrays of other libraries."""

from typing import Any, final

import numpy as np

from shardwise.api import interchange
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.numpy.dtypes import isdtype
from shardwise.runtime.client import devices

_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array that shares the memory of another library's (numpy's, PyTorch's) by DLPack.

    Memory that XLA cannot use is copied. What the other library writes to shared memory later shows in the array:
    `copy=True` gives the array memory of its own. `device` is where it is moved then.

    >>> jnp.from_dlpack(np.array([1, 2], np.int32))
    Array([1, 2], dtype=int32)
    """
    return interchange.from_dlpack("from_dlpack", x, device, copy)


@final
class NamespaceInfo:
    """What this namespace can do, as the array API standard asks."""

    def capabilities(self) -> dict[str, Any]:
        """What the standard leaves open: inside a compiled function, shapes do not depend on values."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 64}

    def default_device(self) -> None:
        """None: where arrays are made depends on what they meet."""
        return

    def devices(self) -> list[Any]:
        """Where arrays can be; None for anywhere."""
        return [None, *devices()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes of Python numbers."""
        integer = default_dtype("int*")
        return {
            "real floating": default_dtype("float*"),
            "complex floating": default_dtype("complex*"),
            "integral": integer,
            "indexing": integer,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """The dtypes of the standard that arrays can have now, of one kind or several."""
        known = {name: np.dtype(name) for name in _DTYPES if canonical_dtype(name) == np.dtype(name)}
        return known if kind is None else {name: dtype for name, dtype in known.items() if isdtype(dtype, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """What this namespace can do, as the array API standard asks.

    >>> jnp.__array_namespace_info__().default_dtypes()["integral"]
    dtype('int32')
    """
    return NamespaceInfo()
