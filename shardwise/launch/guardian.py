"""Guardian: a process that kills the launcher's processes when the launcher is gone, also after SIGKILL.

The launcher starts it as a script, without this package, and holds the other end of its standard input. A line
`+PID` adds the process group of a new process, and `-PID` removes one that has ended. The end of the input is the end
of the launcher: the guardian kills all remaining groups.

Compared with PR_SET_PDEATHSIG, it needs no code between fork and exec, which is not safe in a launcher with threads;
it also ends the children of a process, and works on every POSIX system. Compared with a thread in each process, it
works when a process is stopped or holds Python's global lock, and the script runs unchanged.
"""

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Read the launcher's messages until it ends, and kill the process groups that remain."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
