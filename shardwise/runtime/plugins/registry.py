"""Registry of the plugins of this process: those that are installed, and those that a program registers."""

import os
import threading
from collections.abc import Iterator
from typing import Any, final

from shardwise.base.call_site import warn_user
from shardwise.base.lazy import lazy_module
from shardwise.errors import PlatformError
from shardwise.runtime.plugins.create_client import is_loaded, load
from shardwise.runtime.plugins.discovery import (
    VARIABLE,
    gpu_plugin,
    plugin_modules,
    plugins_of_variable,
    tpu_plugin,
)
from shardwise.runtime.plugins.plugin import Plugin

# Modules of plugins import jax, and find the modules that stand for it, which are above this layer.
_install = lazy_module("shardwise.jax_modules.install")


@final
class _Plugins:
    """The plugins, by the names of their platforms.

    Installed plugins are discovered when a platform other than the CPU is first needed. A plugin that a program
    registers replaces an installed one of the same name. Of two installed ones, the first counts: those of the
    environment variable, then modules in alphabetical order, then TPUs.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Plugin] = {}
        self._lock = threading.RLock()  # a module registers its plugin while plugins are discovered
        self._is_discovered = False
        self._module_origin = ""  # of the module that is being initialized
        self._registered: set[str] = set()  # the names of the plugins that the program has registered
        self._reported: set[str] = set()  # the names of the plugins whose failure was a warning already

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, in which the thread that held it does not exist."""
        self._lock = threading.RLock()

    def get(self, name: str) -> Plugin | None:
        """Return the plugin of a platform; None if there is none."""
        self._discover()
        return self._by_name.get(name)

    def all(self) -> list[Plugin]:
        """Return all plugins, the highest priority first."""
        self._discover()
        return sorted(self._by_name.values(), key=lambda plugin: -plugin.priority)

    def names(self) -> list[str]:
        """Return the names of all platforms with plugins, the highest priority first."""
        return [plugin.name for plugin in self.all()]

    def defaults(self) -> Iterator[Plugin]:
        """Yield the plugins that programs prefer to the CPU, the highest priority first."""
        for plugin in self.all():
            if plugin.priority > 0 and plugin.name not in self._reported:
                yield plugin

    def register(self, plugin: Plugin) -> Any:
        """Add a plugin, load its library, and return its `PJRT_Api`.

        The result is None if the plugin has no library, or if it is installed and another one of its name is used.

        Raises:
            PlatformError: if the library cannot be loaded, or if another one of the same name is loaded already.
        """
        with self._lock:
            if self._module_origin:
                used = self._add(plugin)
                return (
                    load(used) if plugin.has_library and (used is plugin or _have_same_library(used, plugin)) else None
                )
            if is_loaded(plugin.name):
                raise PlatformError(
                    f"{plugin} cannot be registered: {self._by_name[plugin.name]} is loaded already. Register it under "
                    "another name, or before the first use of a device.",
                    plugin.name,
                )
            api = load(plugin) if plugin.has_library else None
            self._by_name[plugin.name] = plugin
            self._registered.add(plugin.name)
            return api

    @property
    def origin(self) -> str:
        """The origin of plugins that are registered now, for messages."""
        return self._module_origin or "register_plugin"

    def report(self, error: PlatformError) -> None:
        """Warn that a plugin cannot be used, once. Programs run on other platforms."""
        if error.platform not in self._reported:
            self._reported.add(error.platform)
            warn_user(f"{error} Until then, programs run on other platforms.")

    def _discover(self) -> None:
        with self._lock:
            if self._is_discovered:
                return
            self._is_discovered = True  # first: a module that is initialized here may ask for plugins
            for plugin in plugins_of_variable():
                self._add(plugin)
            for module, origin in plugin_modules().items():
                if (found := gpu_plugin(module, f"{module}, {origin}")) is not None:
                    self._add(found)
                else:
                    self._initialize(module, f"{module}, {origin}")
            if (tpu := tpu_plugin()) is not None:
                self._add(tpu)

    def _add(self, plugin: Plugin) -> Plugin:
        """Add an installed plugin, unless there is one of the same name; return the one that is used."""
        first = self._by_name.setdefault(plugin.name, plugin)
        is_expected = first is plugin or _have_same_library(first, plugin) or plugin.name in self._registered
        if not is_expected:
            warn_user(
                f"two PJRT plugins have the name {plugin.name!r}: {first} is used, and {plugin} is not. Uninstall "
                "one of them, or load its library under another name: "
                f"{VARIABLE}=other{os.pathsep}{plugin.library or 'path'}"
            )
        return first

    def _initialize(self, module: str, origin: str) -> None:
        """Run the function `initialize` of a plugin's module, which registers the plugin here."""
        self._module_origin = origin
        try:
            _install.initialize_plugin(module)
        except PlatformError as error:
            self.report(error)
        except Exception as error:  # of the module's code
            warn_user(
                f"the module of a PJRT plugin ({origin}) failed to initialize: {type(error).__name__}: {error}. Its "
                f"platform may be missing. Name its library instead: {VARIABLE}=name{os.pathsep}path, or uninstall it."
            )
        finally:
            self._module_origin = ""


def _have_same_library(first: Plugin, second: Plugin) -> bool:
    return bool(first.library) and os.path.realpath(first.library) == os.path.realpath(second.library)


plugins = _Plugins()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=plugins.renew_lock)
