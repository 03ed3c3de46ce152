"""Launcher: runs a program in several processes, again after failures, and reports the first failure first."""

import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO, final

from shardwise.launch.attempt import Attempt, LaunchFailure
from shardwise.launch.options import LaunchOptions
from shardwise.launch.workers import Exit


@final
class Launcher:
    """Runs a program in several processes.

    Args:
        options: the options.
        stdout: the target of the processes' standard output.
        stderr: the target of the processes' standard error and of reports.
    """

    def __init__(self, options: LaunchOptions, stdout: TextIO | None = None, stderr: TextIO | None = None):
        self._options = options
        self._stdout, self._stderr = stdout or sys.stdout, stderr or sys.stderr
        self._signals: list[signal.Signals] = []

    def run(self) -> int:
        """Run the program, and again after failures. Return the exit code.

        Raises:
            OSError: if the coordinator cannot listen on its address, the command cannot be executed, or the output is
                closed.
            ValueError: if the coordinator's host cannot be resolved.
        """
        log_folder = self._options.log_folder or Path(tempfile.mkdtemp(prefix="shardwise-launch-"))
        code = 1
        try:
            with _signal_handlers(self._signals.append):
                code = self._run_attempts(log_folder)
        finally:
            if self._options.log_folder is None and (code == 0 or not any(log_folder.iterdir())):
                shutil.rmtree(log_folder, ignore_errors=True)
        return code

    def _run_attempts(self, log_folder: Path) -> int:
        restarts = self._options.max_restarts
        for restart in range(restarts + 1):
            attempt = Attempt(self._options, restart, log_folder, self._signals, self._stdout, self._stderr)
            code = attempt.run()
            if attempt.failure is not None:
                self._report_failure(attempt.failure, attempt.exits)
            elif code:
                self._report(f"stopped by {self._signals[0].name}")
            if code:
                self._report(f"logs: {log_folder}")
            if attempt.failure is None or self._signals:
                break
            if restart < restarts:
                self._report(f"restart {restart + 1} of {restarts}")
        return code

    def _report_failure(self, failure: LaunchFailure, exits: Sequence[Exit]) -> None:
        self._report(f"process {failure.rank} failed first: {failure.reason}")
        if failure.detail:
            print(failure.detail, file=self._stderr)
        others = sorted((exit for exit in exits if exit.rank != failure.rank), key=lambda exit: exit.rank)
        if others:
            self._report("; ".join(f"process {exit.rank}: {exit.describe()}" for exit in others))

    def _report(self, text: str) -> None:
        print(f"shardwise launch: {text}", file=self._stderr, flush=True)


@contextmanager
def _signal_handlers(handler: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call the handler with SIGINT, SIGTERM and SIGHUP, if this is the main thread; Python allows no others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        handler(signal.Signals(number))

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


def python_command(script: str, arguments: Sequence[str], *, is_module: bool, as_jax: bool) -> list[str]:
    """Return the command line that runs a script or module with this Python.

    Args:
        script: the script, or the module.
        arguments: its arguments.
        is_module: whether it is a module.
        as_jax: whether `import jax` is Shardwise there.
    """
    runner = ["-m", "shardwise", "run"] if as_jax else []
    return [sys.executable, *runner, *(["-m"] if is_module else []), script, *arguments]
