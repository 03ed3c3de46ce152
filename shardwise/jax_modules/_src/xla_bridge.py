"""jax._src.xla_bridge: the platforms in use, and the function with which PJRT plugins register their libraries."""

from shardwise.base.missing_names import report_missing
from shardwise.extend.backend import register_plugin
from shardwise.runtime.client import clients

__all__ = [
    "_backends",  # Chex asks whether the CPU is in use, before it sets the number of virtual devices
    "register_plugin",  # PJRT plugins
]

_backends = clients.by_platform

report_missing(__name__, __all__)
