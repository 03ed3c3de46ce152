"""jax.extend.backend: the PJRT clients of this process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shardwise.base._jaxlib import Client, Device, PluginOptions, compile_options
from shardwise.base.caches import clear_all, register
from shardwise.base.lazy import publish
from shardwise.errors import UnsupportedError
from shardwise.execute.request import default_device
from shardwise.runtime.client import clients
from shardwise.runtime.plugins.plugin import PLUGIN_PRIORITY, Plugin
from shardwise.runtime.plugins.registry import plugins


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


def register_backend_factory(
    name: str,
    factory: Callable[[], Client | None],
    *,
    priority: int = 0,
    fail_quietly: bool = True,
    experimental: bool = False,
    make_topology: object = None,
    c_api: object = None,
) -> None:
    """Register a platform whose client a function creates, when a device of the platform is first used.

    Args:
        name: the name of the platform.
        factory: a function that returns the client; None if the platform is not available.
        priority: programs run on the platform with the highest priority; the CPU has priority 0.
        fail_quietly: not used: if the platform fails and was not asked for, there is a warning.
        experimental: not used.
        make_topology: not used.
        c_api: not used.

    Raises:
        RuntimeError: if the platform is in use already.

    Example:
        >>> jax.extend.backend.register_backend_factory("mine", lambda: None)
        >>> jax.devices("mine")
        Traceback (most recent call last):
        shardwise.errors.PlatformError: ...
    """
    clients.check_unused(name)
    plugins.register(Plugin(name, "register_backend_factory", priority=priority, factory=factory))


def register_plugin(
    plugin_name: str,
    *,
    priority: int = PLUGIN_PRIORITY,
    library_path: str | None = None,
    options: PluginOptions | Callable[[], PluginOptions] | None = None,
    c_api: Any | None = None,
    factory: Callable[[], Client | None] | None = None,
    make_topology: object = None,
) -> Any:
    """Register a PJRT plugin and load its library. Its client is created when a device of it is first used.

    Under `as_jax()`, this is `jax._src.xla_bridge.register_plugin`, which the modules of plugins call.

    Args:
        plugin_name: the name of the platform.
        priority: programs run on the platform with the highest priority; the CPU has priority 0.
        library_path: the path of the plugin's shared library.
        options: the options of the client, or a function that returns them.
        c_api: the `PJRT_Api` of a library that is loaded already, in place of `library_path`.
        factory: a function that creates the client, in place of `options`.
        make_topology: not used.

    Returns:
        The `PJRT_Api` of the library; None if another plugin of this name has precedence.

    Raises:
        ValueError: unless exactly one of `library_path` and `c_api` is passed, or if both `options` and `factory` are.
        RuntimeError: if the library cannot be loaded, or if a platform of this name is in use already.

    Example:
        >>> jax.extend.backend.register_plugin("mine", library_path="/nowhere/mine.so")
        Traceback (most recent call last):
        shardwise.errors.PlatformError: ...
    """
    if (library_path is None) == (c_api is None):
        raise ValueError(f"register_plugin: {plugin_name!r} needs either library_path or c_api")
    if factory is not None and options is not None:
        raise ValueError(f"register_plugin: {plugin_name!r} has a factory, to which options are not passed")
    clients.check_unused(plugin_name)
    plugin = Plugin(plugin_name, plugins.origin, library_path or "", options or {}, priority, factory, c_api)
    return plugins.register(plugin)


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
