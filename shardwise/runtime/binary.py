"""Binary: an executable of XLA, and the bytes that it was loaded from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.base._jaxlib import CompilerOptions, Executable, deserialize_executable, serialize_executable


@final
@dataclass(frozen=True, slots=True)
class Binary:
    """An executable of XLA.

    Attributes:
        executable: the executable, which is loaded on its devices, or was compiled for a topology.
        blob: the bytes that it was loaded from; None if it was compiled here.
    """

    executable: Executable
    blob: bytes | None = None

    @classmethod
    def load(cls, blob: bytes, text: str, devices: Sequence[Any], options: CompilerOptions) -> "Binary":
        """Load a serialized executable of the module `text`, for the same devices and options."""
        return cls(deserialize_executable(blob, text, devices, options), blob)

    def serialize(self) -> bytes:
        """Return the executable as bytes, or raise RuntimeFailure if the platform cannot serialize it."""
        # If XLA serializes a CPU executable that it has loaded, the bytes lack the functions of its fusions.
        return serialize_executable(self.executable) if self.blob is None else self.blob
