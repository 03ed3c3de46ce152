"""Fake clients of jaxlib, and plugins that create them."""

from types import SimpleNamespace

from shardwise.runtime.plugins.plugin import Plugin
from shardwise.runtime.plugins.registry import _Plugins


def fake_client(platform, devices=2):
    """A client as jaxlib has it: GPUs of all vendors have the platform "gpu"."""
    name = "gpu" if platform in ("cuda", "rocm") else platform
    client = SimpleNamespace(platform=name, _raw_platform=platform)
    client.list = [SimpleNamespace(platform=name, id=index, client=client) for index in range(devices)]
    client.devices = lambda: client.list
    return client


def fake_plugin(name, priority, platform=None, broken=False):
    def create():
        if broken:
            raise OSError("no driver")
        return fake_client(platform or name)

    return Plugin(name, "a test", priority=priority, factory=create)


def registry_of(*plugins):
    """Return a registry of these plugins, as if they were installed."""
    registry = _Plugins()
    registry._is_discovered = True
    for plugin in plugins:
        registry.register(plugin)
    return registry
