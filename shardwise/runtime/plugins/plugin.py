"""Plugin: a PJRT plugin, the shared library through which XLA uses the devices of one platform."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from shardwise.base._jaxlib import Client, PluginOptions
from shardwise.errors import PlatformError

PLUGIN_PRIORITY = 400  # JAX's priority of plugins that do not choose one; the CPU has 0


@final
@dataclass(frozen=True, eq=False)
class Plugin:
    """A plugin that is installed or was registered. Its library may not be loaded yet.

    Attributes:
        name: the name of its platform, such as "cuda".
        origin: the place where it was found, for messages.
        library: the path of its shared library; empty if it has a `factory` or an `api` instead.
        options: the options of its client, or a function that returns them when the client is created.
        priority: programs run on the platform with the highest priority. The CPU has priority 0.
        factory: creates the client, in place of the library.
        api: the `PJRT_Api` of a library that was loaded elsewhere.
    """

    name: str
    origin: str
    library: str = ""
    options: PluginOptions | Callable[[], PluginOptions] = field(default_factory=dict)
    priority: int = PLUGIN_PRIORITY
    factory: Callable[[], Client | None] | None = None
    api: Any = None

    def __str__(self) -> str:
        library = f"{self.library}, " if self.library else ""
        return f"the PJRT plugin {self.name!r} ({library}from {self.origin})"

    @property
    def has_library(self) -> bool:
        """Whether a library is loaded before its client is created."""
        return bool(self.library) or self.api is not None

    def resolved_options(self) -> Mapping[str, Any]:
        """Return the options of its client."""
        return self.options() if callable(self.options) else self.options

    def error(self, cause: object) -> PlatformError:
        """Return the error for a plugin that cannot be used."""
        return PlatformError(
            f"{self} cannot be used: {str(cause).rstrip('. ')}. Repair it or uninstall it; `shardwise doctor` checks "
            "the versions of plugins, and SHARDWISE_PLATFORMS=cpu leaves all plugins out.",
            self.name,
        )
