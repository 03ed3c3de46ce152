"""create_client: one route from any plugin to a PJRT client."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shardwise.base._jaxlib import Client, Store, load_plugin, load_plugin_api, plugin_client
from shardwise.errors import PlatformError
from shardwise.runtime.plugins.gpu_vendor import register_kernels, vendor_of
from shardwise.runtime.plugins.plugin import Plugin

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_apis: dict[str, Any] = {}  # the `PJRT_Api` of each loaded plugin


def is_loaded(name: str) -> bool:
    """Return whether the library of a plugin of this name is loaded, which cannot be undone."""
    return name in _apis


def load(plugin: Plugin) -> Any:
    """Load the library of a plugin, unless it is loaded, and return its `PJRT_Api`.

    Raises:
        PlatformError: if the file is missing, or is not the library of a PJRT plugin.
    """
    if plugin.name not in _apis:
        try:
            if plugin.api is None:
                _apis[plugin.name] = load_plugin(plugin.name, plugin.library)
            else:
                load_plugin_api(plugin.name, plugin.api)
                _apis[plugin.name] = plugin.api
        except Exception as error:  # of jaxlib, or of the plugin
            raise plugin.error(error) from error
    return _apis[plugin.name]


def create_client(plugin: Plugin, options: Mapping[str, Any] = _NO_OPTIONS, store: Store | None = None) -> Client:
    """Create a client with the devices of a plugin.

    Args:
        plugin: the plugin.
        options: options of the client that take precedence over the plugin's, such as `node_id` in a cluster.
        store: the connection to the coordination service of a cluster, through which NCCL's processes meet.

    Raises:
        PlatformError: if the plugin cannot be loaded, or has no usable device.
    """
    try:
        client = plugin.factory() if plugin.factory else _client_of_library(plugin, options, store)
    except PlatformError:
        raise
    except Exception as error:  # of jaxlib, of the plugin, or of Python code that came with it
        raise plugin.error(error) from error
    if client is None or not client.devices():
        raise plugin.error("it has no devices")
    return client


def node_options(plugin: Plugin, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that describe a process of a cluster to a plugin.

    TPUs know their topology, and get none. `visible_devices` is an option of GPU plugins only.
    """
    if plugin.name == "tpu":
        return _NO_OPTIONS
    if vendor_of(plugin) is not None:
        return options
    return {name: value for name, value in options.items() if name != "visible_devices"}


def _client_of_library(plugin: Plugin, options: Mapping[str, Any], store: Store | None) -> Client:
    api = load(plugin)
    vendor = vendor_of(plugin)
    defaults = {} if vendor is None else vendor.default_options()
    if vendor is not None:
        register_kernels(vendor, plugin.library, api)
    return plugin_client(plugin.name, {**defaults, **plugin.resolved_options(), **options}, store)
