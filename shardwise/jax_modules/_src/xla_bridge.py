"""jax._src.xla_bridge: the platforms, and the functions with which PJRT plugins register them."""

from shardwise.base.missing_names import report_missing
from shardwise.extend.backend import backends, get_backend, register_backend_factory, register_plugin
from shardwise.runtime.client import clients

__all__ = ["_backends", "backends", "get_backend", "register_backend_factory", "register_plugin"]  # PJRT plugins

_backends = clients.by_platform  # Chex asks whether the CPU is in use, before it sets the number of virtual devices

report_missing(__name__, __all__)
