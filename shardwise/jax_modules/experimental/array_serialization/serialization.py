"""jax.experimental.array_serialization.serialization: the interface of checkpoint managers."""

from abc import ABC, abstractmethod
from typing import Any

from shardwise.jax_modules.missing import report_missing

__all__ = ["GlobalAsyncCheckpointManagerBase"]  # Orbax derives its manager from it


class GlobalAsyncCheckpointManagerBase(ABC):
    """Saves and restores arrays while the program continues."""

    @abstractmethod
    def check_for_errors(self) -> None:
        """Raise the error of a save that failed in the background."""

    @abstractmethod
    def wait_until_finished(self) -> None:
        """Wait until all saves are finished."""

    @abstractmethod
    def serialize(self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Any) -> Any:
        """Save arrays."""

    @abstractmethod
    def deserialize(self, shardings: Any, tensorstore_specs: Any, global_shapes: Any, dtypes: Any) -> Any:
        """Restore arrays."""


report_missing(__name__, __all__)
