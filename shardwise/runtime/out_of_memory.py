"""check_memory: turn XLA's out-of-memory failures into errors that say what needs how much memory."""

from typing import Any

from shardwise._jaxlib import RuntimeFailure
from shardwise.errors import OutOfMemoryError
from shardwise.runtime.memory_stats import MemoryStats

_EXHAUSTED = "RESOURCE_EXHAUSTED"


def check_memory(error: RuntimeFailure, what: str, executable: Any = None) -> None:
    """Raise OutOfMemoryError if `error` is an out-of-memory failure; otherwise return.

    Args:
        error: the failure.
        what: the program or the compilation that failed, for the message.
        executable: the compiled program, if any, whose memory statistics the message shows.
    """
    if _EXHAUSTED not in str(error):
        return
    needs = "" if executable is None else _needs(executable)
    raise OutOfMemoryError(
        f"{what} ran out of memory.{needs}\n  XLA says: {str(error).removeprefix(_EXHAUSTED).lstrip(': ')}\n"
        "  Shard its arrays over more devices, donate arguments that are not used again, or use `checkpoint`."
    ) from error


def _needs(executable: Any) -> str:
    """Return the memory that each device needs, as a sentence."""
    try:
        stats = MemoryStats.of(executable)
    except RuntimeFailure:  # some platforms have no statistics
        return ""
    parts = {
        "arguments": stats.argument_size_in_bytes - stats.alias_size_in_bytes,
        "results": stats.output_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    each = ", ".join(f"{size(count)} for {name}" for name, count in parts.items() if count > 0)
    return f" Each device needs {size(stats.peak_memory_in_bytes)}: {each}."


def size(count: int) -> str:
    """Format a number of bytes, such as `3.2 GiB`."""
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
