"""Counts: what can be read off a compiled program without running it, and so without noise."""

from dataclasses import dataclass
from typing import Any, final

from benchmarks.wire import Wire, wire


@final
@dataclass(frozen=True)
class Counts:
    """Of one device: what it sends, the memory that it needs besides arguments and results, and its arithmetic (0 where
    XLA does not know it: of what it calls a library for)."""

    wire: Wire
    temp_bytes: int
    argument_bytes: int
    flops: float


def counts(loaded: Any) -> Counts:
    """The counts of jaxlib's loaded executable, whichever library had it compiled."""
    (module,) = loaded.hlo_modules()
    memory = loaded.get_compiled_memory_stats()
    return Counts(
        wire(module.to_string()),
        memory.temp_size_in_bytes,
        memory.argument_size_in_bytes,
        max(0.0, loaded.cost_analysis().get("flops", 0.0)),
    )
