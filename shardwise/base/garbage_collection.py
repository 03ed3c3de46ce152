"""Pause the garbage collector in code that allocates much and has few reference cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector in a block, or in a function that this decorates.

    A full collection visits every object of the process. While a program is planned, most new objects stay, so
    collections take time and free nothing. If several threads plan, the first one to end resumes the collector.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
