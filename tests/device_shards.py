"""The bounds of each device's shard of an array, for arrays of any library with JAX's shardings."""

from typing import Any


def shard_bounds(array: Any) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return, for each device id, where its shard starts and stops along every dim."""
    indices = array.sharding.devices_indices_map(array.shape)
    return {
        device.id: tuple(part.indices(size)[:2] for part, size in zip(index, array.shape, strict=True))
        for device, index in indices.items()
    }
