"""The shards of an array: their bounds, for any library with JAX's shardings, and the elements in jaxlib's buffers."""

from typing import Any

from shardwise.base import _jaxlib


def shard_bounds(array: Any) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return, for each device id, where its shard starts and stops along every dim."""
    indices = array.sharding.devices_indices_map(array.shape)
    return {
        device.id: tuple(part.indices(size)[:2] for part, size in zip(index, array.shape, strict=True))
        for device, index in indices.items()
    }


def shards_to_numpy(buffers: Any) -> list[Any]:
    """Read the shards of jaxlib's buffers on the devices of this process, in device order."""
    return [_jaxlib.to_numpy(shard) for shard in _jaxlib.split(buffers)]
