"""Counts of a compiled program: bytes sent, memory and flops. They need no run and have no noise."""

from dataclasses import dataclass
from typing import Any, final

from shardwise.explain.hlo_wire import Wire, wire


@final
@dataclass(frozen=True)
class Counts:
    """The counts of one device.

    `temp_bytes`: memory for temporaries. `flops`: 0 if XLA does not know them, as for library calls.
    """

    wire: Wire
    temp_bytes: int
    argument_bytes: int
    flops: float


def counts(loaded: Any) -> Counts:
    """Return the counts of a loaded executable of jaxlib, compiled by either library."""
    (module,) = loaded.hlo_modules()
    memory = loaded.get_compiled_memory_stats()
    return Counts(
        wire(module.to_string()),
        memory.temp_size_in_bytes,
        memory.argument_size_in_bytes,
        max(0.0, loaded.cost_analysis().get("flops", 0.0)),
    )
