"""XLA's failures for want of memory, as errors that say whose they are, and how much it would take."""

from typing import Any

from shardwise._jaxlib import RuntimeFailure
from shardwise.errors import OutOfMemoryError
from shardwise.runtime.memory_stats import MemoryStats

_EXHAUSTED = "RESOURCE_EXHAUSTED"


def check_memory(error: RuntimeFailure, what: str, executable: Any = None) -> None:
    """Where a failure is of memory, raise one that says that `what` ran out, and how much its `executable` needs."""
    if _EXHAUSTED not in str(error):
        return
    needs = "" if executable is None else _needs(executable)
    raise OutOfMemoryError(
        f"{what} ran out of memory.{needs}\n  XLA says: {str(error).removeprefix(_EXHAUSTED).lstrip(': ')}\n"
        "  Shard its arrays over more devices, donate arguments that are not used again, or wrap parts in `checkpoint`."
    ) from error


def _needs(executable: Any) -> str:
    try:
        found = MemoryStats.of(executable)
    except RuntimeFailure:  # some platforms keep no account
        return ""
    parts = {
        "arguments": found.argument_size_in_bytes - found.alias_size_in_bytes,
        "results": found.output_size_in_bytes,
        "what lies between": found.temp_size_in_bytes,
        "code": found.generated_code_size_in_bytes,
    }
    each = ", ".join(f"{size(count)} for {name}" for name, count in parts.items() if count > 0)
    return f" Each device needs {size(found.peak_memory_in_bytes)}: {each}."


def size(count: int) -> str:
    """A number of bytes as people read it: `3.2 GiB`."""
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
