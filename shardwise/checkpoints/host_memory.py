"""Host memory for arrays whose sizes come from a file that may have been forged."""

import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import CheckpointError

_MEMORY = Path("/proc/meminfo")


def memory_capacity() -> int:
    """Return the bytes of memory and swap of this machine; unbounded if they are unknown."""
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return _physical_memory()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("MemTotal:", "SwapTotal:")))


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return sys.maxsize


def check_fits_memory(nbytes: int, what: str) -> None:
    """Raise CheckpointError if this machine has fewer bytes of memory. `what` begins the message."""
    if nbytes > (capacity := memory_capacity()):
        raise CheckpointError(
            f"{what} needs {nbytes:,} bytes of memory, and this machine has {capacity:,}: its size was forged, or it "
            "must be read on a larger machine"
        )


def empty_host_array(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> np.ndarray[Any, Any]:
    """Return an uninitialized array.

    Raises:
        CheckpointError: if there is not enough memory. `what` begins the message.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    check_fits_memory(nbytes, what)
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise CheckpointError(f"{what} needs {nbytes:,} bytes of memory: {error}") from None
