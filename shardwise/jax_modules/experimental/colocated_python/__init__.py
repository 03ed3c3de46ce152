"""jax.experimental.colocated_python: Python functions on the hosts of devices of Pathways, which are not supported.

Orbax imports it, and uses it on Pathways alone.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from shardwise.jax_modules.experimental.colocated_python import func, serialization
from shardwise.jax_modules.missing import report_missing

__all__ = ["colocated_cpu_devices", "colocated_python", "func", "serialization"]  # Orbax


def colocated_cpu_devices(devices: Any) -> NoReturn:
    """Raise an error: devices of Pathways are not supported."""
    raise NotImplementedError("colocated_python needs Pathways, which Shardwise does not support")


def colocated_python(function: Callable[..., Any]) -> NoReturn:
    """Raise an error: devices of Pathways are not supported."""
    raise NotImplementedError("colocated_python needs Pathways, which Shardwise does not support")


report_missing(__name__, __all__)
