"""LaunchAttempt: the base class of one start of all processes of a program, until they have ended."""

import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import final

from shardwise.launch.options import LaunchOptions
from shardwise.launch.output import Output
from shardwise.launch.process_variables import process_variables, roster_variables
from shardwise.launch.stop import Stop, stop_by_signal
from shardwise.launch.workers import Exit, Workers
from shardwise.launch.writer import Writer

PATIENCE = 5.0  # seconds after which a launcher reports that it waits for another one


@final
@dataclass(frozen=True)
class LaunchFailure:
    """The failure that ends an attempt: its process, the reason, and the traceback or last lines of standard error.

    The rank is -1 if no process has failed.
    """

    rank: int
    reason: str
    detail: str
    code: int

    def describe(self) -> str:
        """Describe the failure in one line."""
        return f"process {self.rank} failed first: {self.reason}" if self.rank >= 0 else self.reason


@final
@dataclass(frozen=True)
class AttemptSettings:
    """What an attempt gets from the launcher.

    Attributes:
        options: the options of the launch.
        restart: the number of previous attempts.
        log_folder: the folder of the log files, or None for none.
        signals: the signals that the launcher has received; the launcher appends to the list.
        stdout: the target of the processes' standard output.
        stderr: the target of the processes' standard error.
    """

    options: LaunchOptions
    restart: int
    log_folder: Path | None
    signals: list[signal.Signals]
    stdout: Writer
    stderr: Writer


class LaunchAttempt(ABC):
    """One start of all processes.

    Args:
        settings: what the attempt gets from the launcher.
        processes: the number of processes that run at the same time, on all nodes.

    Attributes:
        failure: the first failure, or why the program could not continue; None if it ended, or by a signal.
    """

    def __init__(self, settings: AttemptSettings, processes: int):
        self.failure: LaunchFailure | None = None
        self._options = settings.options
        self._restart = settings.restart
        self._log_folder = settings.log_folder
        self._signals = settings.signals
        self._output = Output(settings.log_folder, processes, settings.stdout, settings.stderr)
        self._workers = Workers(self._output)
        self._stop: Stop | None = None  # the signals that end the processes, after a failure or a signal
        self._handled = 0  # signals to the launcher

    @property
    def exits(self) -> list[Exit]:
        """The processes that have ended, in order of their ends."""
        return self._workers.exits

    def run(self) -> int:
        """Start the processes and wait until they end. Return the exit code of the launcher.

        Raises:
            OSError: if the coordinator cannot listen on its address, or the command cannot be executed.
            BrokenPipeError: if the reader of the launcher's output has ended.
            ValueError: if the coordinator's host cannot be resolved.
        """
        try:
            self._start()
            return self._wait()
        finally:
            self._workers.close()
            self._stop_servers()
            self._output.close()

    def _handle_signals(self) -> None:
        """End the processes if the launcher has received another signal."""
        if len(self._signals) == self._handled:
            return
        number = self._signals[-1]
        if number == signal.SIGINT:
            self._output.mute_errors()  # otherwise every process would print the traceback of its interrupt
        self._stop = stop_by_signal(number, self._handled > 0, self._options.grace_period)
        self._handled = len(self._signals)

    def _start_worker(self, number: int, roster: str, token: str) -> None:
        """Start a process of this node that waits for its place at a roster.

        Args:
            number: the number of the process.
            roster: the address of the roster.
            token: the secret that the roster expects.

        Raises:
            OSError: if the command cannot be executed.
        """
        variables = {
            **process_variables(self._options, self._restart, self._log_folder),
            **roster_variables(roster, token, number),
        }
        self._workers.start(number, self._options.command, variables, self._restart)

    @abstractmethod
    def _start(self) -> None:
        """Start the servers of the attempt, and its processes."""

    @abstractmethod
    def _wait(self) -> int:
        """Wait until all processes have ended. Return the exit code of the launcher."""

    @abstractmethod
    def _stop_servers(self) -> None:
        """Stop the servers that `_start` has started, when no process runs any more."""
