"""Standard streams of a command: those that are closed, and those whose reader has ended."""

import os
import sys


def open_standard_streams() -> None:
    """Open the standard streams that are closed, as /dev/null.

    Python has None for them, and the next file or socket would get their descriptors and what C++ logs.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest descriptor that is free
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def discard_output() -> None:
    """Write standard output to /dev/null from now on: at the end, Python flushes it, which would raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
