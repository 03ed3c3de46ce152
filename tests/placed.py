"""Which part of an array each device has, whichever library made it."""

from typing import Any


def lies(array: Any) -> dict[int, tuple[tuple[int, int], ...]]:
    """By the numbers of devices: where the part begins and ends along each dim."""
    parts = array.sharding.devices_indices_map(array.shape)
    return {
        device.id: tuple(part.indices(size)[:2] for part, size in zip(index, array.shape, strict=True))
        for device, index in parts.items()
    }
