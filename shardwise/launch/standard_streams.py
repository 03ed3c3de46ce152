"""Standard streams of a command: handle closed streams, and streams without a reader."""

import os
import sys


def open_standard_streams() -> None:
    """Open closed standard streams as /dev/null.

    Python represents them as None, and the next file or socket would get their descriptors and the logs of C++ code.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def discard_output() -> None:
    """Redirect standard output to /dev/null, because Python flushes it at exit, which would raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
