"""Processes that the launcher starts, each in its own process group."""

import errno
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from shardwise.launch import guardian
from shardwise.launch.output import Output

MAX_GUARDIANS = 10  # the most guardians to start in succession, if they are killed
# The advice if the system refuses to start a process, by errno.
LIMITS = {
    errno.EMFILE: ". Raise the limit of open files (`ulimit -n`), or start fewer processes",
    errno.EAGAIN: ". Raise the limit of processes (`ulimit -u`), or start fewer",
    errno.ENOMEM: ". Start fewer processes, or end other programs",
}


@final
@dataclass(frozen=True)
class Exit:
    """The end of a process. A negative `code` is the signal that killed it."""

    rank: int
    pid: int
    code: int
    seconds: float
    by_launcher: bool = False  # whether the launcher killed it
    lost_node: int | None = None  # the node of which nothing is known any more, and the process with it

    def describe(self) -> str:
        """Describe the exit."""
        if self.lost_node is not None:
            return f"lost with node {self.lost_node}"
        if self.code >= 0:
            return f"exit code {self.code}"
        name = signal.Signals(-self.code).name if -self.code in signal.valid_signals() else f"signal {-self.code}"
        if self.code != -signal.SIGKILL:
            return f"killed by {name}"
        cause = "by the launcher" if self.by_launcher else "perhaps since the machine ran out of memory"
        return f"killed by {name}, {cause}"


@final
class Workers:
    """The processes of one start of a program.

    Args:
        output: copies the output of the processes.
    """

    def __init__(self, output: Output):
        self._output = output
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped: dict[int, float] = {}  # rank → the time of the poll that first found it stopped
        self._killed: set[int] = set()  # ranks
        self._job = secrets.token_hex(16)
        self.start_time = time.monotonic()
        self._guardian = self._start_guardian()
        self._guardians = 1
        self.exits: list[Exit] = []

    @property
    def running(self) -> list[int]:
        """The ranks of the processes that run."""
        return list(self._running)

    @property
    def stopped(self) -> dict[int, float]:
        """The seconds for which each process has been stopped, such as by SIGSTOP, by rank, as of the last `poll`."""
        now = time.monotonic()
        return {rank: now - since for rank, since in self._stopped.items()}

    def start(self, rank: int, command: Sequence[str], variables: Mapping[str, str], restart: int) -> None:
        """Start a process.

        Raises:
            OSError: if the command cannot be executed, or a limit of the system is reached.
        """
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**variables, guardian.JOB_ID: ",".join(filter(None, (variables.get(guardian.JOB_ID), self._job)))},
                start_new_session=True,  # so that Ctrl-C reaches only the launcher, which then stops all
            )
        except OSError as error:
            fix = LIMITS.get(error.errno or 0, "")
            raise OSError(error.errno, f"process {rank} cannot be started: {error.strerror}{fix}") from error
        self._tell_guardian("+", process.pid)
        self._running[rank] = process
        assert process.stdout is not None and process.stderr is not None
        self._output.add(rank, restart, process.stdout, process.stderr)

    def poll(self) -> list[Exit]:
        """Return the processes that have ended since the last call, and kill the children that they left behind.

        Nothing else waits for the processes. Their states are queried once, because `waitid` for a stop alone would
        raise an error for a process that has ended.
        """
        exits = []
        for rank, process in list(self._running.items()):
            # The process stays a zombie until its group is killed, so that the group id is not reused.
            state = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            if state is not None and state.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED):
                self._stopped.setdefault(rank, time.monotonic())
                continue
            self._stopped.pop(rank, None)
            if state is None:
                continue
            _kill_group(process.pid, signal.SIGKILL)
            self._tell_guardian("-", process.pid)
            del self._running[rank]
            seconds = time.monotonic() - self.start_time
            exits.append(Exit(rank, process.pid, process.wait(), seconds, rank in self._killed))
        self.exits += exits
        return exits

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all running processes; SIGKILL to their entire groups."""
        for rank, process in self._running.items():
            if number == signal.SIGKILL:
                self._killed.add(rank)
                _kill_group(process.pid, number)
            else:
                os.kill(process.pid, number)  # `send_signal` would reap a process that has just ended

    def kill(self, rank: int) -> None:
        """Kill the group of a process, if it runs."""
        if rank in self._running:
            self._killed.add(rank)
            _kill_group(self._running[rank].pid, signal.SIGKILL)

    def kill_descendants(self) -> None:
        """Kill descendants of this job's processes that have left their process groups."""
        guardian.kill_job(self._job)

    def check_guardian(self) -> None:
        """Restart the guardian if it has ended, because processes could otherwise outlive the launcher.

        Raises:
            ChildProcessError: if it has ended too often.
        """
        if self._guardian.poll() is None:
            return
        if self._guardians == MAX_GUARDIANS:
            raise ChildProcessError(errno.ECHILD, f"the guardian of the launcher ended {MAX_GUARDIANS} times")
        self._close_guardian()
        self._guardian = self._start_guardian()
        self._guardians += 1
        for process in self._running.values():
            self._tell_guardian("+", process.pid)

    def _start_guardian(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, self._job],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def close(self) -> None:
        """Kill all processes that still run, and wait until they end."""
        self.signal(signal.SIGKILL)
        while self._running:
            self.poll()
            time.sleep(0.01)
        self.kill_descendants()
        self._close_guardian()

    def _close_guardian(self) -> None:
        assert self._guardian.stdin is not None
        with suppress(BrokenPipeError):
            self._guardian.stdin.close()
        self._guardian.wait()

    def _tell_guardian(self, change: str, pid: int) -> None:
        assert self._guardian.stdin is not None
        with suppress(BrokenPipeError):
            self._guardian.stdin.write(f"{change}{pid}\n")
            self._guardian.stdin.flush()


def _kill_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
