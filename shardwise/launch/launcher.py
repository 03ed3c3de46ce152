"""Launcher: starts the processes of a program, hosts their coordinator, and stops all of them when one fails."""

import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TextIO, final

from shardwise.launch.output import Output, last_traceback
from shardwise.launch.workers import Exit, Workers
from shardwise.processes import environment
from shardwise.processes.coordinator import Coordinator, Event
from shardwise.processes.protocol import split_address

INITIALIZATION_TIMEOUT = 300.0  # seconds until all processes must have called `distributed.initialize`
POLL_INTERVAL = 0.05  # seconds between two looks at the processes
# Seconds that the other processes have after a failure, to report it themselves; and for a process that ends early
# with exit code 0, in which the others may end too.
FAILURE_TIME = 1.0
# After a failure and after Ctrl-C: the signals, each with the seconds after which it is sent.
AFTER_FAILURE = ((FAILURE_TIME, signal.SIGTERM), (FAILURE_TIME + 2.0, signal.SIGKILL))
AFTER_INTERRUPT = ((0.0, signal.SIGINT), (2.0, signal.SIGTERM), (3.0, signal.SIGKILL))
# The lines of standard error that a report shows where there is no traceback.
SHOWN_LINES = 15

# Variables of an outer launcher or user, which the processes must not see beside the launcher's own.
_OUTER_VARIABLES = tuple(
    name.replace("SHARDWISE_", prefix, 1)
    for name in (environment.ADDRESS, environment.BIND_ADDRESS, environment.NUM_PROCESSES, environment.PROCESS_ID)
    for prefix in ("SHARDWISE_", "JAX_")
)
RESTART_COUNT = "SHARDWISE_RESTART_COUNT"


@final
@dataclass(frozen=True)
class LaunchOptions:
    """The options of a launch.

    Attributes:
        command: the command line of each process.
        processes: the number of processes that this launcher starts.
        devices_per_process: the number of virtual CPU devices or GPUs of each process, or None for the defaults.
        nodes: the number of launchers, each of which starts `processes` processes.
        node_rank: the number of this launcher, from 0. Launcher 0 hosts the coordinator.
        coordinator: the `host:port` of the coordinator, or "" for a free port of the loopback address.
        max_restarts: how often all processes are started again after a failure.
        log_folder: the folder of the log files, or None for a temporary one that is kept after a failure.
        timeout: the seconds until all processes must have called `distributed.initialize`, and those that a process
            waits for others in a collective; None for the defaults.
        grace_period: the seconds that the processes have to end after SIGTERM.
    """

    command: Sequence[str]
    processes: int
    devices_per_process: int | None = None
    nodes: int = 1
    node_rank: int = 0
    coordinator: str = ""
    max_restarts: int = 0
    log_folder: Path | None = None
    timeout: float | None = None
    grace_period: float = 30.0

    def __post_init__(self) -> None:
        if self.processes < 1 or self.nodes < 1:
            raise ValueError("the numbers of processes and nodes must be at least 1")
        if self.devices_per_process is not None and self.devices_per_process < 1:
            raise ValueError(f"--devices-per-process must be at least 1, not {self.devices_per_process}")
        if not 0 <= self.node_rank < self.nodes:
            raise ValueError(
                f"--node-rank must be from 0 to {self.nodes - 1} (--nodes {self.nodes}), not {self.node_rank}"
            )
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"--timeout must be more than 0 seconds, not {self.timeout}")
        if self.coordinator:
            split_address(self.coordinator, "--coordinator")
        if self.nodes > 1 and not self.coordinator:
            raise ValueError("--nodes needs --coordinator host:port: an address of node 0 that all nodes can reach")
        if self.nodes > 1 and self.max_restarts:
            raise ValueError("--max-restarts needs one node: on several nodes, let the scheduler start the job again")

    @property
    def ranks(self) -> range:
        """The process ids of the processes that this launcher starts."""
        return range(self.node_rank * self.processes, (self.node_rank + 1) * self.processes)


@final
@dataclass(frozen=True)
class LaunchFailure:
    """The first failure of a launch: the process, the reason and the traceback or last lines of its standard error."""

    rank: int
    reason: str
    detail: str
    code: int


@final
@dataclass
class _Stop:
    """Signals that are sent to the processes that still run, each at its time."""

    steps: Sequence[tuple[float, signal.Signals]]
    start: float = field(default_factory=time.monotonic)
    sent: int = 0

    def send_due(self, workers: Workers) -> None:
        while self.sent < len(self.steps) and time.monotonic() - self.start >= self.steps[self.sent][0]:
            workers.signal(self.steps[self.sent][1])
            self.sent += 1


@final
class Launcher:
    """Starts the processes and waits for their end.

    Args:
        options: the options.
        stdout: the target of the processes' standard output.
        stderr: the target of the processes' standard error and of reports.
    """

    def __init__(self, options: LaunchOptions, stdout: TextIO | None = None, stderr: TextIO | None = None):
        self.options = options
        self.failure: LaunchFailure | None = None
        self._stdout, self._stderr = stdout or sys.stdout, stderr or sys.stderr
        self._log_folder = options.log_folder or Path(tempfile.mkdtemp(prefix="shardwise-launch-"))
        self._signals: list[signal.Signals] = []

    def run(self) -> int:
        """Run the program, and again after failures. Return the exit code.

        Raises:
            OSError: if the coordinator cannot listen on its address, or the command cannot be executed.
        """
        code = 1
        with _signal_handlers(self._signals.append):
            for restart in range(self.options.max_restarts + 1):
                code = self._run_once(restart)
                if self.failure is None or self._signals or restart == self.options.max_restarts:
                    break
                self._report(f"restart {restart + 1} of {self.options.max_restarts}")
        if self.failure is None and self.options.log_folder is None:
            shutil.rmtree(self._log_folder, ignore_errors=True)
        return code

    def _run_once(self, restart: int) -> int:
        self.failure = None
        output = Output(self._log_folder, self.options.nodes * self.options.processes, self._stdout, self._stderr)
        joined: set[int] = set()
        coordinator = self._start_coordinator(joined) if self.options.node_rank == 0 else None
        workers = Workers(output)
        try:
            variables = self._variables(coordinator, restart)
            for rank in self.options.ranks:
                workers.start(rank, self.options.command, {**variables, **self._rank_variables(rank)}, restart)
            code = self._wait(workers, output, coordinator, joined)
        finally:
            workers.close()
            output.close()
            if coordinator is not None:
                _stop_in_background(coordinator)
        if self.failure is not None:
            self._report_failure(self.failure, workers)
        elif code:
            self._report(f"stopped by {self._signals[0].name}")
        return code

    def _start_coordinator(self, joined: set[int]) -> Coordinator:
        options = self.options
        host, port = split_address(options.coordinator, "--coordinator") if options.coordinator else ("127.0.0.1", 0)

        def note(event: Event) -> None:
            if event.kind == "joined":
                joined.add(event.rank)

        # Launchers on several nodes have a common token only if the user sets it.
        token = os.environ.get(environment.TOKEN) or ("" if options.nodes > 1 else secrets.token_hex(16))
        coordinator = Coordinator(
            options.nodes * options.processes,
            host=host,
            port=port,
            token=token,
            initialization_timeout=options.timeout or INITIALIZATION_TIMEOUT,
            on_event=note,
        )
        coordinator.start()
        return coordinator

    def _variables(self, coordinator: Coordinator | None, restart: int) -> dict[str, str]:
        options = self.options
        variables = {name: value for name, value in os.environ.items() if name not in _OUTER_VARIABLES}
        variables |= {
            environment.LAUNCHER: "1",
            environment.ADDRESS: coordinator.address if coordinator is not None else options.coordinator,
            environment.NUM_PROCESSES: str(options.nodes * options.processes),
            RESTART_COUNT: str(restart),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": variables.get("PYTHONFAULTHANDLER") or "1",
        }
        if coordinator is not None:
            variables[environment.TOKEN] = coordinator.token
        if options.timeout is not None:
            variables[environment.PEER_TIMEOUT] = str(options.timeout)
        if options.devices_per_process is not None:
            variables["SHARDWISE_NUM_CPU_DEVICES"] = str(options.devices_per_process)
        return variables

    def _rank_variables(self, rank: int) -> dict[str, str]:
        local, gpus = rank - self.options.ranks.start, self.options.devices_per_process or 1
        device_ids = ",".join(str(gpu) for gpu in range(local * gpus, (local + 1) * gpus))
        return {environment.PROCESS_ID: str(rank), environment.LOCAL_DEVICE_IDS: device_ids}

    def _wait(self, workers: Workers, output: Output, coordinator: Coordinator | None, joined: set[int]) -> int:
        """Wait for the end of all processes; stop them after a failure or a signal. Return the exit code."""
        stop: _Stop | None = None
        handled = 0
        while workers.running:
            output.copy(POLL_INTERVAL)
            workers.check_guardian()
            workers.poll()
            if self.failure is None and not self._signals:
                self.failure = self._find_failure(workers, output, coordinator, joined)
                if self.failure is not None:
                    stop = _Stop(AFTER_FAILURE)
            if len(self._signals) > handled:
                stop = self._stop_by_signal(self._signals[-1], handled > 0)
                handled = len(self._signals)
            if stop is not None:
                stop.send_due(workers)
        codes = [exit.code for exit in workers.exits]
        if self.failure is None and not self._signals:
            self.failure = self._find_failure(workers, output, coordinator, joined)
        if self.failure is not None:
            output.close()  # standard error up to the end, for the report
            return self.failure.code
        if self._signals and any(codes):
            return 128 + self._signals[0]
        return 0

    def _stop_by_signal(self, number: signal.Signals, again: bool) -> _Stop:
        if again and number == signal.SIGINT:
            return _Stop(((0.0, signal.SIGKILL),))
        if number == signal.SIGINT:
            return _Stop(AFTER_INTERRUPT)
        return _Stop(((0.0, signal.SIGTERM), (self.options.grace_period, signal.SIGKILL)))

    def _find_failure(
        self, workers: Workers, output: Output, coordinator: Coordinator | None, joined: set[int]
    ) -> LaunchFailure | None:
        """Return the first failure if a process has failed, or None."""
        failed = next((exit for exit in workers.exits if exit.code), None)
        if failed is None:
            failed = self._premature_exit(workers, coordinator, joined)
        if failed is None:
            return None
        # A process that failed later may have ended earlier: the coordinator knows the order.
        first = next(iter(coordinator.failures.values()), None) if coordinator is not None else None
        if first is None:
            return _failure_of(failed, None, output)
        exits = {exit.rank: exit for exit in workers.exits}
        if first.rank in exits:
            return _failure_of(exits[first.rank], first.step, output, first.detail)
        return LaunchFailure(first.rank, f"{first.reason}{_at(first.step)}", first.detail, failed.code % 256 or 1)

    def _premature_exit(self, workers: Workers, coordinator: Coordinator | None, joined: set[int]) -> Exit | None:
        """Return a process that ended with exit code 0 although others still wait for it."""
        if coordinator is None or not workers.running or not workers.exits:
            return None
        age = time.monotonic() - workers.start_time
        for exit in workers.exits:
            lost = exit.rank in coordinator.failures
            never_joined = exit.rank not in joined and bool(joined) and not coordinator.is_ready
            if (lost or never_joined) and age - exit.seconds > FAILURE_TIME:
                return exit
        return None

    def _report_failure(self, failure: LaunchFailure, workers: Workers) -> None:
        self._report(f"process {failure.rank} failed first: {failure.reason}")
        if failure.detail:
            print(failure.detail, file=self._stderr)
        others = [exit for exit in workers.exits if exit.rank != failure.rank]
        ends = "; ".join(
            f"process {exit.rank}: {exit.describe()}" for exit in sorted(others, key=lambda exit: exit.rank)
        )
        self._report(f"then {ends}" if ends else "no other process")
        self._report(f"logs: {self._log_folder}")

    def _report(self, text: str) -> None:
        print(f"shardwise launch: {text}", file=self._stderr, flush=True)


def _failure_of(exit: Exit, step: int | None, output: Output, traceback: str = "") -> LaunchFailure:
    lines = output.error_lines(exit.rank)
    detail = traceback or last_traceback(lines) or "\n".join(lines[-SHOWN_LINES:])
    if exit.code == 0:
        reason = "it ended with exit code 0 while others still ran (a premature exit)"
    else:
        reason = exit.describe()
    code = 128 - exit.code if exit.code < 0 else exit.code or 1
    return LaunchFailure(exit.rank, f"{reason}{_at(step)} (pid {exit.pid})", detail.rstrip(), code)


def _at(step: int | None) -> str:
    return "" if step is None else f", after step {step}"


def _stop_in_background(coordinator: Coordinator) -> None:
    """Stop a coordinator without waiting: XLA's service waits for members that were killed."""
    threading.Thread(target=coordinator.stop, name="shardwise coordinator stop", daemon=True).start()


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
