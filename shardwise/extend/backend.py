"""jax.extend.backend: the PJRT clients of this process."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shardwise.base._jaxlib import Client, Device, compile_options
from shardwise.base.caches import clear_all, register
from shardwise.base.lazy import publish
from shardwise.errors import UnsupportedError
from shardwise.execute.request import default_device
from shardwise.runtime.client import clients


class _SupportsCacheClear(Protocol):
    """A cache that can be emptied, such as a function with `functools.lru_cache`."""

    def cache_clear(self) -> None: ...


def backends() -> dict[str, Client]:
    """Return the clients of all platforms that are in use; the default platform is among them.

    Returns:
        jaxlib's clients by the names of their platforms.

    Raises:
        RuntimeError: if the default platform has no usable device.

    Example:
        >>> "cpu" in jax.extend.backend.backends()
        True
    """
    clients.get()
    return dict(clients.by_platform)


def get_backend(platform: str | Client | None = None) -> Client:
    """Return the client of a platform.

    Args:
        platform: the name of the platform, such as "cpu"; by default the one that programs run on. A client is returned
            as it is.

    Returns:
        jaxlib's client.

    Raises:
        RuntimeError: if there is no such platform.

    Example:
        >>> jax.extend.backend.get_backend("cpu").platform
        'cpu'
    """
    return clients.get(platform) if platform is None or isinstance(platform, str) else platform


def get_default_device() -> Device:
    """Return the device for arrays and programs that nothing else places.

    Returns:
        The device of the setting `default_device`; without it, the first device of this process.

    Raises:
        RuntimeError: if the platform has no usable device.

    Example:
        >>> jax.extend.backend.get_default_device() == jax.local_devices()[0]
        True
    """
    return default_device()


def backend_xla_version(platform: str | None = None) -> int | None:
    """Return the version of XLA that a plugin reports.

    Args:
        platform: the name of the platform; by default the one that programs run on.

    Returns:
        The version; None if the platform is no plugin, such as the CPU.

    Raises:
        RuntimeError: if there is no such platform.

    Example:
        >>> jax.extend.backend.backend_xla_version("cpu") is None
        True
    """
    return getattr(get_backend(platform), "xla_version", None)


def clear_backends() -> None:
    """Raise an error: clients live as long as the process. `clear_caches` empties the caches of compiled programs.

    Raises:
        UnsupportedError: always.

    Example:
        >>> jax.extend.backend.clear_backends()
        Traceback (most recent call last):
        shardwise.errors.UnsupportedError: ...
    """
    raise UnsupportedError(
        "clear_backends: a client lives as long as the process, since arrays and meshes refer to its devices. Call "
        "`clear_caches()` to free compiled programs, and start a new process for other devices."
    )


def clear_in_memory_compilation_cache() -> None:
    """Free all compiled programs of this process. Programs in the persistent cache stay.

    Example:
        >>> jax.extend.backend.clear_in_memory_compilation_cache()
    """
    clear_all()


def register_backend_cache(cache: _SupportsCacheClear, for_what: str) -> None:
    """Register a cache that `clear_caches` empties too.

    Args:
        cache: an object with a method `cache_clear`, such as a function with `functools.lru_cache`.
        for_what: what the cache holds; not used.

    Raises:
        AttributeError: if `cache` has no method `cache_clear`.

    Example:
        >>> import functools
        >>> cached = functools.lru_cache(lambda x: x)
        >>> jax.extend.backend.register_backend_cache(cached, "an example")
        >>> _ = cached(1), jax.clear_caches()
        >>> cached.cache_info().currsize
        0
    """
    register(cache.cache_clear)


def register_backend_factory(name: str, factory: object, **options: object) -> None:
    """Raise an error: the platforms are the CPU, and GPUs through jaxlib's CUDA plugin.

    Args:
        name: the name of a platform.
        factory: a function that creates its client.
        **options: JAX's options of the platform.

    Raises:
        UnsupportedError: always.

    Example:
        >>> jax.extend.backend.register_backend_factory("mine", lambda: None)
        Traceback (most recent call last):
        shardwise.errors.UnsupportedError: ...
    """
    raise UnsupportedError(
        f"register_backend_factory: the platform {name!r} cannot be added. Programs run on the CPU, and on GPUs if "
        "jaxlib's CUDA plugin is installed: `pip install 'shardwise[cuda12]'`."
    )


def get_compile_options(
    num_replicas: int,
    num_partitions: int,
    device_assignment: Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.int_]] | None = None,
    env_options_overrides: Mapping[str, str] | None = None,
    fdo_profile: bytes | None = None,
    detailed_logging: bool = True,
    backend: Client | None = None,
) -> Any:
    """Return options with which a client of jaxlib compiles a module.

    Args:
        num_replicas: the number of replicas of the module.
        num_partitions: the number of partitions of each replica.
        device_assignment: the ids of the devices, an array of shape (num_replicas, num_partitions) or (num_replicas,);
            None leaves the choice to XLA.
        env_options_overrides: XLA's compiler options by name.
        fdo_profile: the profile of an earlier run, for GPUs.
        detailed_logging: not used.
        backend: not used.

    Returns:
        jaxlib's `CompileOptions`.

    Raises:
        ValueError: if `device_assignment` does not have this shape.

    Example:
        >>> jax.extend.backend.get_compile_options(num_replicas=1, num_partitions=1).num_replicas
        1
    """
    overrides = tuple((env_options_overrides or {}).items())
    return compile_options(num_replicas, num_partitions, device_assignment, overrides, fdo_profile)


publish(__name__)
