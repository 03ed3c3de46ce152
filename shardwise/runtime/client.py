"""The client: the devices of this process, or of a cluster of processes. Made at the first use of a device."""

from typing import Any, final

import numpy as np

from shardwise._jaxlib import cpu_client
from shardwise.config import config


@final
class DeviceList(list[Any]):
    """A list of devices that can be reshaped into the grid of a mesh."""

    def reshape(self, *shape: Any) -> np.ndarray[Any, Any]:
        grid = np.empty(len(self), object)
        grid[:] = self
        return grid.reshape(*shape)


class _Client:
    """The one client of this process."""

    def __init__(self) -> None:
        self._client: Any = None

    def get(self) -> Any:
        if self._client is None:
            self.set(cpu_client(config.num_cpu_devices))
        return self._client

    def set(self, client: Any) -> None:
        self._client = client
        config.freeze("the first use of a device")

    @property
    def exists(self) -> bool:
        return self._client is not None


client = _Client()


def devices() -> DeviceList:
    """All devices, those of other processes too."""
    return DeviceList(client.get().devices())


def local_devices() -> DeviceList:
    """The devices of this process."""
    return DeviceList(client.get().local_devices())


def device_count() -> int:
    return len(client.get().devices())


def local_device_count() -> int:
    return len(client.get().local_devices())


def process_index() -> int:
    """Which of the processes this is, from 0."""
    return int(client.get().process_index())


def process_count() -> int:
    return int(max(device.process_index for device in devices())) + 1


def default_backend() -> str:
    """The platform that programs run on: `cpu`, `gpu`, …"""
    return str(client.get().platform)
