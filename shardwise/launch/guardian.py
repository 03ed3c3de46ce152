"""Guardian: a process that kills the launcher's processes when the launcher has ended, even by SIGKILL.

The launcher starts it as a script, without this package, and holds the other end of its standard input. A line `+PID`
adds the process group of a new process, and `-PID` removes a group that has ended. EOF means that the launcher has
ended: the guardian kills all remaining groups, and all processes of the job, whose id is its argument.

Unlike PR_SET_PDEATHSIG, it needs no code between fork and exec, which is not safe in a launcher with threads; it also
ends the children of a process, and works on every POSIX system. Unlike a thread in each process, it works when a
process is stopped or holds the GIL, and the script runs unchanged.

A process that leaves its group, as daemons do with `setsid`, is found by its environment: every descendant inherits the
variable `JOB_ID`, unless it is started with an empty environment. On Linux, /proc has the variables of a process.
"""

import os
import signal
import sys
import time
from contextlib import suppress

JOB_ID = "SHARDWISE_JOB_ID"  # the id of the job, after the ids of the jobs that it is nested in
KILL_TIME = 5.0  # seconds for killed processes to end, and for processes that they started meanwhile
POLL_INTERVAL = 0.01  # seconds


def main() -> None:
    """Read the launcher's messages until it ends, and kill the processes that remain."""
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
    kill_job(sys.argv[1])


def kill_job(job: str) -> None:
    """Kill all processes with the id of a job in their environment, and wait until they end.

    Args:
        job: the id.
    """
    deadline = time.monotonic() + KILL_TIME
    while _kill_processes(job.encode()) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)


def _kill_processes(job: bytes) -> bool:
    """Kill the processes of a job that currently run. Return whether there were any."""
    has_killed = False
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    for name in filter(str.isdecimal, names):
        with suppress(OSError):  # the process has ended, or is another user's
            with open(f"/proc/{name}/environ", "rb") as file:
                is_of_job = job in file.read()
            if is_of_job:
                os.kill(int(name), signal.SIGKILL)
                has_killed = True
    return has_killed


if __name__ == "__main__":
    main()
