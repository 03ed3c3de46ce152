"""Launcher: runs a program in several processes, restarts it after failures, and reports the first failure first."""

import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO, final

from shardwise.launch.attempt import POLL_INTERVAL, Attempt
from shardwise.launch.elastic_attempt import ElasticAttempt
from shardwise.launch.launch_attempt import AttemptSettings, LaunchAttempt, LaunchFailure
from shardwise.launch.node_attempt import NodeAttempt
from shardwise.launch.options import LaunchOptions
from shardwise.launch.workers import Exit
from shardwise.launch.writer import Writer

# Seconds for the last output after a signal, if it is not read; and for the output before a report.
OUTPUT_TIME = 1.0


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
        self._stdout, self._stderr = Writer(stdout or sys.stdout), Writer(stderr or sys.stderr)
        self._signals: list[signal.Signals] = []
        self._generations = 0  # of processes, in all attempts

    def run(self) -> int:
        """Run the program, and again after failures. Return the exit code.

        Raises:
            OSError: if the folder of the log files cannot be created, the coordinator cannot listen on its address, or
                the command cannot be executed.
            BrokenPipeError: if the reader of the output has ended.
            ValueError: if the coordinator's host cannot be resolved.
        """
        log_folder = self._create_log_folder()
        code = 1
        try:
            with _signal_handlers(self._signals.append):
                code = self._run_attempts(log_folder)
                if not self._finish_output() and code == 0:
                    code = 128 + self._signals[0]
        finally:
            if log_folder is not None and self._options.log_folder is None:
                if code == 0:
                    shutil.rmtree(log_folder, ignore_errors=True)
                else:
                    with suppress(OSError):  # not empty, or already deleted
                        log_folder.rmdir()
        return code

    def _create_log_folder(self) -> Path | None:
        folder = self._options.log_folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OSError(error.errno, f"--log-dir {folder} cannot be created ({error.strerror})") from None
            return folder
        try:
            return Path(tempfile.mkdtemp(prefix="shardwise-launch-"))
        except OSError as error:
            self._report(f"there are no log files, since no temporary folder can be created ({error.strerror})")
            return None

    def _finish_output(self) -> bool:
        """Wait until all output is written. Return False if it is not read and a signal has ended the launch."""
        deadline: float | None = None
        while not (self._stdout.flush(POLL_INTERVAL) and self._stderr.flush(POLL_INTERVAL)):
            if self._signals and deadline is None:
                deadline = time.monotonic() + OUTPUT_TIME
            if deadline is not None and time.monotonic() > deadline:
                return False
        for writer in (self._stdout, self._stderr):
            if isinstance(writer.error, BrokenPipeError):
                raise writer.error
            writer.close()
        return True

    def _run_attempts(self, log_folder: Path | None) -> int:
        restarts = self._options.max_restarts
        for restart in range(restarts + 1):
            attempt = self._create_attempt(restart, log_folder)
            code = attempt.run()
            if isinstance(attempt, ElasticAttempt):
                self._generations = attempt.next_generation
            if attempt.failure is not None:
                self._report_failure(attempt.failure, attempt.exits)
            elif code:
                self._report(f"stopped by {self._signals[0].name}")
            if code and log_folder is not None:
                self._report(f"logs: {log_folder}")
            if attempt.failure is None or self._signals:
                break
            if restart < restarts:
                self._report(f"restart {restart + 1} of {restarts}")
        return code

    def _create_attempt(self, restart: int, log_folder: Path | None) -> LaunchAttempt:
        settings = AttemptSettings(self._options, restart, log_folder, self._signals, self._stdout, self._stderr)
        if self._options.spares is None:
            return Attempt(settings)
        if self._options.node_rank > 0:
            return NodeAttempt(settings, self._report)
        return ElasticAttempt(settings, self._report, self._generations)

    def _report_failure(self, failure: LaunchFailure, exits: Sequence[Exit]) -> None:
        self._report(failure.describe() if failure.rank >= 0 else f"the job failed: {failure.describe()}")
        if failure.detail:
            self._stderr.write(f"{failure.detail}\n")
        others = sorted((exit for exit in exits if exit.rank != failure.rank), key=lambda exit: exit.rank)
        if others:
            self._report("; ".join(f"process {exit.rank}: {exit.describe()}" for exit in others))

    def _report(self, text: str) -> None:
        self._stdout.flush(OUTPUT_TIME)  # so that a report follows the preceding output for a reader of both streams
        self._stderr.write(f"shardwise launch: {text}\n")


@contextmanager
def _signal_handlers(handler: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call the handler on SIGINT, SIGTERM and SIGHUP, if this is the main thread; Python allows it only there.

    An ignored SIGHUP stays ignored, because `nohup` lets the launcher outlive its terminal. SIGCHLD gets its default
    action: a parent that ignores it passes this on, and the exit codes of children would be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        handler(signal.Signals(number))

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, handle) for number in numbers}
    previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
