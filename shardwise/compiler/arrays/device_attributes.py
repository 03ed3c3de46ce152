"""Attributes of arrays that need their elements or their devices. `runtime.array.ArrayImpl` implements them.

They are declared here so that type checkers, `dir` and `hasattr(Array, ...)` find them on the class `Array`.
"""

from typing import Any, Literal, NoReturn, Self

import numpy as np

from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.types import Typed


class DeviceAttributes(Typed):
    """Attributes that only arrays on devices have. On a tracer they raise an AttributeError with the reason."""

    __slots__ = ()

    def _raise_no_buffers(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a traced {self.type} has no `{name}`: it has a type, but no elements and no devices until the compiled "
            f"function runs. Use `{name}` of an argument or a result outside the function.",
            name=name,
        )

    @property
    def committed(self) -> bool:
        """Whether the user placed this array. Uncommitted arrays may be moved to where a program needs them."""
        self._raise_no_buffers("committed")

    @property
    def device(self) -> Any:
        """The device that holds the array, or its sharding if it is on a mesh."""
        self._raise_no_buffers("device")

    @property
    def is_fully_addressable(self) -> bool:
        """Whether every shard is on a device of this process."""
        self._raise_no_buffers("is_fully_addressable")

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds a full copy of the array."""
        self._raise_no_buffers("is_fully_replicated")

    @property
    def global_shards(self) -> list[Any]:
        """The shards on all devices. Shards of other processes have no data here."""
        self._raise_no_buffers("global_shards")

    @property
    def addressable_shards(self) -> list[Any]:
        """The shards on the devices of this process."""
        self._raise_no_buffers("addressable_shards")

    def addressable_data(self, index: int) -> Self:
        """Return the shard on the `index`-th device of this process, without padding."""
        self._raise_no_buffers("addressable_data")

    def devices(self) -> set[Any]:
        """Return the devices that hold a shard."""
        self._raise_no_buffers("devices")

    def to_device(self, device: Any, *, stream: None = None) -> Self:
        """Return the array on another device or in another sharding."""
        self._raise_no_buffers("to_device")

    def block_until_ready(self) -> Self:
        """Wait until the elements are computed, and return the array."""
        self._raise_no_buffers("block_until_ready")

    def is_ready(self) -> bool:
        """Return whether the elements are computed."""
        self._raise_no_buffers("is_ready")

    def copy_to_host_async(self) -> None:
        """Start to copy the shards of this process to the host, so that a later read waits less."""
        self._raise_no_buffers("copy_to_host_async")

    def delete(self) -> None:
        """Free the memory now."""
        self._raise_no_buffers("delete")

    def is_deleted(self) -> bool:
        """Return whether the memory was freed, by `delete` or by donation to a compiled function."""
        self._raise_no_buffers("is_deleted")

    def on_device_size_in_bytes(self) -> int:
        """Return the memory that the devices of this process use for it, including padding and replicas."""
        self._raise_no_buffers("on_device_size_in_bytes")

    def unsafe_buffer_pointer(self) -> int:
        """Return the memory address of the elements on the only device that holds them."""
        self._raise_no_buffers("unsafe_buffer_pointer")

    def tobytes(self, order: Literal["C", "F", "A", "K"] | None = "C") -> bytes:
        """Return the elements as bytes, as numpy does."""
        self._raise_no_buffers("tobytes")

    # Both subclasses define these. A tracer has a sharding along Explicit axes; its conversions raise an error with
    # the user's line.

    @property
    def sharding(self) -> Any:
        """The sharding: which device holds which shard."""
        raise NotImplementedError

    def tolist(self) -> Any:
        """Return the elements as nested lists."""
        raise NotImplementedError

    def item(self, *args: int) -> Any:
        """Return the only element, or the element at this index, as a Python scalar."""
        raise NotImplementedError

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise NotImplementedError

    def __int__(self) -> int:
        raise NotImplementedError

    def __float__(self) -> float:
        raise NotImplementedError

    def __complex__(self) -> complex:
        raise NotImplementedError

    def __index__(self) -> int:
        raise NotImplementedError
