"""jax.experimental.colocated_python.serialization: the devices of a function that runs on their hosts."""

from collections.abc import Sequence
from typing import Any

from shardwise.base.missing_names import report_missing

__all__ = ["DeviceList"]  # Orbax, in annotations

DeviceList = Sequence[Any]

report_missing(__name__, __all__)
