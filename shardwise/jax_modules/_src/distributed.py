"""jax._src.distributed: the connection of this process to the others."""

from typing import Any, final

from shardwise.base.missing_names import report_missing
from shardwise.runtime.client import process_index
from shardwise.runtime.cluster import cluster

__all__ = ["global_state"]  # Orbax


@final
class _State:
    """What `jax.distributed.initialize` has connected."""

    @property
    def client(self) -> Any:
        """jaxlib's client of the coordination service; None without `distributed.initialize`."""
        return cluster.store

    @property
    def process_id(self) -> int:
        """The number of this process."""
        return process_index()


global_state = _State()

report_missing(__name__, __all__)
