"""Arrays of other libraries, whose memory is shared: DLPack."""

from typing import Any

import numpy as np

from shardwise._jaxlib import RuntimeFailure
from shardwise._jaxlib import from_dlpack as shared
from shardwise.api.placement import device_put
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.runtime.array import DLPACK_DEVICES, Array, single_device_array
from shardwise.runtime.client import local_devices
from shardwise.runtime.dlpack import type_in


def from_dlpack(name: str, x: Any, device: Any, copy: bool | None) -> Array:
    """`x` as an array; `name` is the function that was called, for errors."""
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise TypeError(f"{name}: {type(x).__name__} has no `__dlpack__` and `__dlpack_device__`: it cannot be shared")
    kind, number = (int(part) for part in x.__dlpack_device__())
    here = [device for device in local_devices() if DLPACK_DEVICES.get(device.platform) == kind]
    # Virtual CPU devices share one memory, which DLPack calls number 0.
    found = here[0] if here and kind == DLPACK_DEVICES["cpu"] else next((d for d in here if d.id == number), None)
    if found is None:
        raise BufferError(
            f"{name}: this process has no device of kind {kind} with number {number} to share memory with"
        )
    if isinstance(x, Array):
        found = x.sharding.devices[0]
    if not _lies_row_by_row(x):
        if copy is False:
            raise BufferError(f"{name}: the memory cannot be shared: its elements do not lie row by row")
        x = np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()
    capsule = x.__dlpack__()
    try:
        held = type_in(capsule)
        made = shared(capsule, found, may_copy=copy is not False)
    except (RuntimeFailure, BufferError) as error:
        raise BufferError(f"{name}: the memory cannot be shared: {error}") from None
    array = single_device_array(made, held, found)
    if canonical_dtype(held.dtype) != held.dtype:
        array = array.astype(held.dtype)
    elif copy:
        array = array.copy()
    return array if device is None else device_put(array, device)


def _lies_row_by_row(x: Any) -> bool:
    """Whether memory is laid out as ours is: numpy's arrays and PyTorch's tensors say so, each in its way."""
    if isinstance(x, np.ndarray):
        return bool(x.flags.c_contiguous)
    says = getattr(x, "is_contiguous", None)
    return True if says is None else bool(says())
