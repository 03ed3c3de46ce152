"""check_memory: turn XLA's out-of-memory failures into errors with the memory that a program or an array needs."""

from collections.abc import Callable

from shardwise.base._jaxlib import Executable, RuntimeFailure
from shardwise.errors import OutOfMemoryError, PeerFailure
from shardwise.runtime.memory_stats import known_memory_stats

_EXHAUSTED = "RESOURCE_EXHAUSTED"


def check_memory(error: RuntimeFailure, what: str, needs: Callable[[], str] = str) -> None:
    """Raise OutOfMemoryError if `error` is an out-of-memory failure; otherwise return.

    Args:
        error: the failure.
        what: the program or the compilation that failed, for the message.
        needs: returns a sentence with the memory that each device needs; "" if it is unknown.
    """
    if _EXHAUSTED not in str(error) or isinstance(error, PeerFailure):  # a PeerFailure may quote another's error
        return
    raise OutOfMemoryError(
        f"{' '.join(filter(None, (f'{what} ran out of memory.', needs())))}\n"
        f"  XLA says: {str(error).removeprefix(_EXHAUSTED).lstrip(': ')}\n"
        "  Shard its arrays over more devices, donate arguments that are not used again, or use `checkpoint`."
    ) from error


def program_needs(executable: Executable) -> str:
    """Return a sentence with the memory that each device needs for a compiled program; "" if it is unknown."""
    stats = known_memory_stats(executable)
    if stats is None:
        return ""
    parts = {
        "arguments": stats.argument_size_in_bytes - stats.alias_size_in_bytes,
        "results": stats.output_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    each = ", ".join(f"{size(count)} for {name}" for name, count in parts.items() if count > 0)
    return f"Each device needs {size(stats.peak_memory_in_bytes)}: {each}."


def array_needs(shard_bytes: int, devices: int) -> str:
    """Return a sentence with the memory that each device needs for an array with shards of this size."""
    which = f"Each of its {devices} devices" if devices > 1 else "Its device"
    return f"{which} needs {size(shard_bytes)} for this array alone."


def size(count: int) -> str:
    """Format a number of bytes, such as `3.2 GiB`."""
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
