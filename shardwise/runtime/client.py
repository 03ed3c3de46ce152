"""Clients: the PJRT clients of this process, one for each platform, created when their devices are first used.

A platform is `cpu`, or has a PJRT plugin, such as `cuda` or `tpu`. Programs run on the first of `config.platforms`. If
that is empty, they run on the platform with the highest priority whose plugin has devices, else on the CPU.

In a process that `shardwise launch` started, the first use of a device joins the other processes, and `cluster.py`
creates the clients.
"""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from shardwise.base._jaxlib import (
    Client,
    Device,
    DeviceTopology,
    RuntimeFailure,
    cpu_client,
    pjrt_platform,
    plugin_topology,
    record_tracebacks,
)
from shardwise.base.config import FIRST_USE, config
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.base.lazy import lazy_module
from shardwise.compiler.shardings.mesh import AbsentDevice, device_grid
from shardwise.errors import DeviceMismatchError, PlatformError
from shardwise.processes.variables import LAUNCHER_PID
from shardwise.runtime.plugins.create_client import create_client, load
from shardwise.runtime.plugins.plugin import Plugin
from shardwise.runtime.plugins.registry import plugins

if TYPE_CHECKING:
    from shardwise.runtime import launched_process
else:
    launched_process = lazy_module("shardwise.runtime.launched_process")  # imports this module, in 110 ms

_GPU_PLATFORMS = ("cuda", "rocm", "oneapi")  # the platforms that "gpu" may mean, in this order, as in JAX


# How to install the plugins of platforms that users ask for.
_INSTALLATION = {
    "gpu": "pip install 'shardwise[cuda12]' installs that of NVIDIA GPUs",
    "cuda": "pip install 'shardwise[cuda12]' installs it",
    "tpu": "pip install libtpu installs it",
}


@final
class DeviceList(list[Any]):
    """A list of devices that can be reshaped into the grid of a mesh."""

    def reshape(self, *shape: int | Sequence[int]) -> np.ndarray[Any, Any]:
        return device_grid(self, *shape)


@final
class _Clients:
    """The clients of this process, by platform."""

    def __init__(self) -> None:
        self.by_platform: dict[str, Any] = {}
        self._default = ""
        self._creation = threading.RLock()  # several threads may race to the first use of a device

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, in which the thread that held it does not exist."""
        self._creation = threading.RLock()

    def get(self, platform: str | None = None) -> Client:
        """Return the client of a platform, or of the default platform."""
        client = self.by_platform.get(self._default if platform is None else platform)
        return self._create(platform) if client is None else client

    def _create(self, platform: str | None) -> Client:
        with self._creation:
            if not self.by_platform and LAUNCHER_PID in os.environ:
                launched_process.join_at_first_use()
            if platform is None:
                if not self._default:
                    self._choose_default()
                return self.by_platform[self._default]
            return self._create_platform(self._resolve(platform))

    def _create_platform(self, name: str) -> Client:
        if name not in self.by_platform:
            self.by_platform[name] = self._new_client(name)
            _on_first_use()
        return self.by_platform[name]

    @staticmethod
    def _new_client(name: str) -> Client:
        if name == "cpu":
            return cpu_client(config.num_cpu_devices)
        plugin = plugins.get(name)
        assert plugin is not None, name
        return create_client(plugin)

    def _resolve(self, platform: str) -> str:
        """Return the platform that a name means. A client's own name, such as "gpu", means the first such client."""
        if platform == "cpu" or platform in self.by_platform:
            return platform
        in_use = [name for name, client in self.by_platform.items() if client.platform == platform]
        names: list[str] = [*in_use, platform, *(_GPU_PLATFORMS if platform == "gpu" else ())]
        for name in names:
            if name in self.by_platform or plugins.get(name) is not None:
                return name
        hint = f"; {_INSTALLATION[platform]}" if platform in _INSTALLATION else ""
        raise PlatformError(
            f"the platform {platform!r} is not supported: no PJRT plugin of this name is installed{hint}. Platforms of "
            f"this machine: {', '.join(['cpu', *plugins.names()])}.",
            platform,
        )

    def plugin_of(self, platform: str) -> Plugin:
        """Return the plugin of a platform, which need not have devices.

        Raises:
            PlatformError: if there is none.
        """
        plugin = plugins.get(self._resolve(platform))
        if plugin is None:
            raise PlatformError(f"the platform {platform!r} has no PJRT plugin, and no topologies", platform)
        return plugin

    def check_unused(self, platform: str) -> None:
        """Raise an error if a platform has a client, which lives as long as the process."""
        if platform in self.by_platform or platform == "cpu":
            raise PlatformError(
                f"the platform {platform!r} is in use already: register it under another name, or before the first use "
                "of a device",
                platform,
            )

    def set(self, platform: str, client: Client) -> None:
        """Use this client for a platform, and make the platform the default."""
        self.by_platform[platform] = client
        self._default = platform
        _on_first_use()

    def forget(self) -> None:
        """Drop all clients, so that others can be created. They end when no array or mesh refers to their devices."""
        self.by_platform.clear()
        self._default = ""

    def check_current(self, client: Client) -> None:
        """Raise an error if a client was dropped by `forget`."""
        if not any(client is each for each in self.by_platform.values()):
            raise DeviceMismatchError(
                "an array or mesh refers to devices that this process has left after a failure: create meshes, arrays "
                "and shardings in the function that `checkpoints.recover` calls"
            )

    def all(self) -> list[Client]:
        """Return the clients that exist."""
        return list(self.by_platform.values())

    @property
    def exist(self) -> bool:
        return bool(self.by_platform)

    def requested(self) -> str:
        """Return the platform that the user has requested as the default; empty if there is none."""
        names = [name.strip() for name in config.platforms.split(",") if name.strip()]
        return self._resolve(names[0]) if names else ""

    def _choose_default(self) -> None:
        name = self.requested()
        if name:
            self._create_platform(name)
            self._default = name
            return
        for plugin in plugins.defaults():
            try:
                self._create_platform(plugin.name)
            except PlatformError as error:
                plugins.report(error)
            else:
                self._default = plugin.name
                return
        self._create_platform("cpu")
        self._default = "cpu"


def create_topology(platform: str, name: str, options: Mapping[str, Any]) -> DeviceTopology:
    """Return a topology of a platform. No client is created: its devices need not be present.

    Raises:
        PlatformError: if the platform has no plugin, if it cannot be loaded, or if it does not know the topology.
    """
    plugin = clients.plugin_of(platform)
    try:
        return plugin_topology(load(plugin), name, options)
    except RuntimeFailure as error:
        given = ", ".join(f"{key}={str(value)[:40]!r}" for key, value in options.items())
        raise PlatformError(
            f"the plugin of {platform!r} has no topology {name!r} with these options ({given}): {error}", platform
        ) from error


def _on_first_use() -> None:
    # The setting is jaxlib's, for the whole process: JAX needs tracebacks for the lines of its equations.
    record_tracebacks(config.memory_profile_lines or "jax._src.core" in sys.modules)
    config.freeze(FIRST_USE)


clients = _Clients()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=clients.renew_lock)


_BACKEND = Family(
    {
        "backend": Parameter(
            'the platform, such as "cpu" or "gpu"; by default the one that programs run on.',
            "RuntimeError: if there is no such platform, or if it has no usable device.",
        )
    }
)


@documented(_BACKEND, returns="The devices, in order of their ids.")
def devices(backend: str | None = None) -> DeviceList:
    """Return all devices of a platform, including those of other processes.

    Example:
        >>> [device.id for device in jax.devices()[:3]]
        [0, 1, 2]
    """
    return DeviceList(clients.get(backend).devices())


@documented(_BACKEND, returns="The devices, in order of their ids.")
def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> DeviceList:
    """Return the devices of one process.

    Args:
        process_index: the process; by default, this process.
        host_id: another name for `process_index`.

    Raises:
        ValueError: if there is no such process.

    Example:
        >>> jax.local_devices() == jax.devices()  # if there is a single process
        True
    """
    number = process_index if process_index is not None else host_id
    if number is None:
        return DeviceList(clients.get(backend).local_devices())
    if not 0 <= number < process_count(backend):
        raise ValueError(f"local_devices: process_index must be from 0 to {process_count(backend) - 1}, not {number}")
    return DeviceList(device for device in devices(backend) if device.process_index == number)


@documented(_BACKEND, returns="The number of devices.")
def device_count(backend: str | None = None) -> int:
    """Return the number of devices of a platform, including those of other processes.

    Example:
        >>> jax.device_count() == len(jax.devices())
        True
    """
    return len(clients.get(backend).devices())


@documented(_BACKEND, returns="The number of devices.")
def local_device_count(backend: str | None = None) -> int:
    """Return the number of devices of this process.

    Example:
        >>> jax.local_device_count() * jax.process_count() == jax.device_count()
        True
    """
    return len(clients.get(backend).local_devices())


@documented(_BACKEND, returns="An integer from 0 to `process_count() - 1`.")
def process_index(backend: str | None = None) -> int:
    """Return the index of this process.

    Example:
        >>> jax.process_index()
        0
    """
    return int(clients.get(backend).process_index())


@documented(_BACKEND, returns="The number of processes, 1 without `distributed.initialize`.")
def process_count(backend: str | None = None) -> int:
    """Return the number of processes.

    Example:
        >>> jax.process_count()
        1
    """
    return int(max(device.process_index for device in devices(backend))) + 1


def default_backend() -> str:
    """Return the platform that programs run on.

    While `simulate` or `explain` traces a function for other hardware, it is the platform of that hardware.

    Returns:
        "cpu", "gpu", "tpu", or the name of another platform.

    Example:
        >>> jax.default_backend()
        'cpu'
    """
    return config.target_platform or platform_of(clients.get().devices()[0])


def platform_of(device: Device) -> str:
    """Return the platform of a device as JAX calls it: "cpu", "gpu" for GPUs of all vendors, "tpu" or another name."""
    return str(device.platform)


def lowering_platform(device: Device) -> str:
    """Return the platform that programs for a device are lowered for: "cpu", "cuda", "rocm", "tpu" or another name."""
    return "cpu" if isinstance(device, AbsentDevice) else pjrt_platform(device.client).lower()


def default_lowering_platform() -> str:
    """Return the platform that functions are lowered for by default; under `target_platform`, that platform."""
    target = config.target_platform
    return canonical_lowering_platform(target) if target else lowering_platform(clients.get().devices()[0])


def canonical_lowering_platform(name: str) -> str:
    """Return the platform for lowering that a user names: "cuda" for "gpu"; other names are unchanged."""
    return "cuda" if name == "gpu" else name
