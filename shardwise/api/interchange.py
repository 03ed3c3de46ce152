"""from_dlpack: import arrays of other libraries, such as PyTorch tensors, without a copy."""

from typing import Any

import numpy as np

from shardwise.api.meshes.placement import device_put
from shardwise.base._jaxlib import RuntimeFailure
from shardwise.base._jaxlib import from_dlpack as buffer_from_dlpack
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.runtime.array import DLPACK_DEVICES, ArrayImpl, single_device_array
from shardwise.runtime.client import local_devices, lowering_platform
from shardwise.runtime.dlpack import type_in
from shardwise.typing import Placement


def from_dlpack(name: str, x: Any, device: Placement, copy: bool | None) -> Array:
    """Import `x` through DLPack; `name` is the public function that was called, for messages."""
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise TypeError(
            f"{name}: {type(x).__name__} does not support DLPack: it has no `__dlpack__` and `__dlpack_device__`"
        )
    device_type, device_id = (int(part) for part in x.__dlpack_device__())
    candidates = [device for device in local_devices() if DLPACK_DEVICES.get(lowering_platform(device)) == device_type]
    if candidates and device_type == DLPACK_DEVICES["cpu"]:
        source = candidates[0]  # virtual CPU devices share one memory, which DLPack calls device 0
    else:
        source = next((device for device in candidates if device.id == device_id), None)
    if source is None:
        raise BufferError(
            f"{name}: the array is on DLPack device {device_id} of type {device_type}, which is no device of this "
            "process"
        )
    if isinstance(x, ArrayImpl):
        source = x.sharding.devices[0]
    if not _is_row_major(x):
        if copy is False:
            raise BufferError(
                f"{name}: the memory cannot be shared, because the array is not contiguous in row-major order: make a "
                "contiguous copy first, or do not pass copy=False"
            )
        x = np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()
    capsule = x.__dlpack__()
    try:
        type_of_capsule = type_in(capsule)
        buffer = buffer_from_dlpack(capsule, source, may_copy=copy is not False)
    except (RuntimeFailure, BufferError) as error:
        raise BufferError(f"{name}: the memory cannot be shared: {error}") from None
    array: Array = single_device_array(buffer, type_of_capsule, source)
    if canonical_dtype(type_of_capsule.dtype) != type_of_capsule.dtype:
        array = array.astype(type_of_capsule.dtype)
    elif copy:
        array = array.copy()
    return array if device is None else device_put(array, device)


def _is_row_major(x: Any) -> bool:
    """Return whether an array is contiguous in row-major order; numpy and PyTorch have different methods for it."""
    if isinstance(x, np.ndarray):
        return bool(x.flags.c_contiguous)
    is_contiguous = getattr(x, "is_contiguous", None)
    return True if is_contiguous is None else bool(is_contiguous())
