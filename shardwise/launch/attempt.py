"""Attempt: one start of all processes of a program, until all of them have ended."""

import operator
import os
import re
import secrets
import threading
import time
from typing import final

from shardwise.errors import PeerFailure
from shardwise.launch.launch_attempt import AttemptSettings, LaunchAttempt, LaunchFailure
from shardwise.launch.output import last_traceback
from shardwise.launch.process_variables import process_variables
from shardwise.launch.stop import AFTER_FAILURE, FAILURE_TIME, Stop
from shardwise.launch.workers import Exit
from shardwise.processes import environment
from shardwise.processes.coordinator import Coordinator, Event, listen
from shardwise.processes.protocol import Failure, split_address

STOPPED_TIMEOUT = 300.0  # seconds for which a process may be stopped while others run, before the grace period
POLL_INTERVAL = 0.05  # seconds between two polls of the processes
# The number of lines of standard error in a report without a traceback.
SHOWN_LINES = 15

# The reason of a process that ends with an uncaught `PeerFailure`. It may be the only process that detected the other's
# failure: the coordinator sees the other alive if it sleeps in Python or skips a save.
_PEER_FAILURE = re.compile(
    rf"it raised {PeerFailure.__module__}\.PeerFailure: process (\d+) failed(?: after step (\d+))?: ([^\n]*)"
)


@final
class Attempt(LaunchAttempt):
    """One start of all processes, which all end after the first failure."""

    def __init__(self, settings: AttemptSettings):
        super().__init__(settings, settings.options.nodes * settings.options.processes)
        self._joined: set[int] = set()
        self._lost_since: float | None = None  # the time since which only lost processes run
        self._first_signal: float | None = None  # seconds from the start until the launcher stopped the processes
        self._coordinator: Coordinator | None = None  # of launcher 0

    def _start(self) -> None:
        if self._options.node_rank == 0:
            self._coordinator = self._start_coordinator()
        variables = self._variables()
        for rank in self._options.ranks:
            own = {**variables, **self._rank_variables(rank)}
            self._workers.start(rank, self._options.command, own, self._restart)

    def _stop_servers(self) -> None:
        if self._coordinator is not None:
            # In a thread, because XLA's service waits for members that were killed.
            stop = threading.Thread(target=self._coordinator.stop, name="shardwise coordinator stop", daemon=True)
            stop.start()

    def _start_coordinator(self) -> Coordinator:
        options = self._options
        host, port = split_address(options.coordinator, "--coordinator") if options.coordinator else ("127.0.0.1", 0)

        def note(event: Event) -> None:
            if event.kind == "joined":
                self._joined.add(event.rank)

        # Launchers on several nodes share a token only if the user sets it.
        token = os.environ.get(environment.TOKEN) or ("" if options.nodes > 1 else secrets.token_hex(16))
        coordinator = Coordinator(
            options.nodes * options.processes,
            listener=listen(host, port, is_option=True),
            token=token,
            initialization_timeout=options.initialization_timeout,
            on_event=note,
        )
        coordinator.start()
        return coordinator

    def _variables(self) -> dict[str, str]:
        options, coordinator = self._options, self._coordinator
        variables = {
            **process_variables(options, self._restart, self._log_folder),
            environment.ADDRESS: options.coordinator if coordinator is None else coordinator.address,
            environment.NUM_PROCESSES: str(options.nodes * options.processes),
        }
        if coordinator is not None:
            variables[environment.TOKEN] = coordinator.token
        return variables

    def _rank_variables(self, rank: int) -> dict[str, str]:
        device_ids = self._options.device_ids(rank - self._options.ranks.start)
        return {environment.PROCESS_ID: str(rank), environment.LOCAL_DEVICE_IDS: device_ids}

    def _wait(self) -> int:
        """Wait until all processes end; stop them after a failure or a signal. Return the exit code."""
        workers = self._workers
        while workers.running:
            self._output.copy(POLL_INTERVAL)
            workers.check_guardian()
            workers.poll()
            if self._stop is None and self._has_failed():
                self._stop = Stop(AFTER_FAILURE)
            if self._stop is not None and not self._handled and self.failure is None:
                self.failure = self._first_failure()
            self._handle_signals()
            if self._stop is not None:
                self._stop.send_due(workers)
                if self._stop.sent and self._first_signal is None:
                    self._first_signal = time.monotonic() - workers.start_time
        workers.kill_descendants()  # they may hold the pipes open
        self._output.close()  # reads the rest of standard error, for the report
        if not self._handled and self.failure is None and self._has_failed():
            self.failure = self._first_failure()
        if self.failure is not None:
            return self.failure.code
        return 128 + self._signals[0] if self._handled and any(exit.code for exit in workers.exits) else 0

    def _has_failed(self) -> bool:
        return self._failed_exit() is not None or self._only_lost_processes_run() or bool(self._stopped_too_long())

    def _stopped_too_long(self) -> list[int]:
        """Return the ranks of processes that were stopped for longer than the timeout and the grace period.

        Processes that wait for them in a collective detect it at the timeout and have more information, but they may
        wait where no timeout applies. If all processes are stopped, the job is suspended.
        """
        stopped = self._workers.stopped
        if len(stopped) == len(self._workers.running):
            return []
        limit = (self._options.timeout or STOPPED_TIMEOUT) + self._options.grace_period
        return [rank for rank, seconds in stopped.items() if seconds > limit]

    def _only_lost_processes_run(self) -> bool:
        """Return whether all running processes have been lost or stopped for the grace period.

        The others have ended without an error, as when a process is stopped after its last step. The coordinator does
        not report a process that is stopped after it has left.
        """
        lost = set() if self._coordinator is None else self._coordinator.failures.keys()
        running = set(self._workers.running)
        if not running or not self._workers.exits or not lost | set(self._workers.stopped) >= running:
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = time.monotonic()
        return self._lost_since is not None and time.monotonic() - self._lost_since > self._options.grace_period

    def _failed_exit(self) -> Exit | None:
        """Return the first process that ended with an error or too early, or None."""
        failed = next((exit for exit in self.exits if exit.code), None)
        return failed or next((exit for exit in self.exits if self._is_premature(exit)), None)

    def _is_premature(self, exit: Exit) -> bool:
        """Return whether a process ended with exit code 0 although others have been waiting for it for some time."""
        coordinator = self._coordinator
        if coordinator is None or not self._workers.running:
            return False
        was_lost = exit.rank in coordinator.failures
        never_joined = exit.rank not in self._joined and bool(self._joined) and not coordinator.is_ready
        age = time.monotonic() - self._workers.start_time - exit.seconds
        return (was_lost or never_joined) and age > FAILURE_TIME

    def _first_failure(self) -> LaunchFailure | None:
        """Return the first failure; None if its process still runs and has not received a signal.

        Processes need not end in the order of their failures: a process may end later than the processes that detected
        its failure. The coordinator records the order.
        """
        first = next(iter(self._coordinator.failures.values()), None) if self._coordinator is not None else None
        first = None if first is None else _cause(first)
        if first is None:
            exit = self._failed_exit()
            if exit is None and (stopped := self._workers.stopped):
                rank, seconds = max(stopped.items(), key=operator.itemgetter(1))
                others = ", and all others have ended" if len(stopped) == len(self._workers.running) else ""
                reason = f"a signal such as SIGSTOP stopped it {seconds:.0f} s ago{others}"
                return LaunchFailure(rank, reason, "", 1)
            return None if exit is None else describe_failure(exit, None, self._output.error_lines(exit.rank))
        exit = next((exit for exit in self.exits if exit.rank == first.rank), None)
        if exit is not None and (self._first_signal is None or exit.seconds < self._first_signal):
            return describe_failure(exit, first, self._output.error_lines(exit.rank))
        if self._first_signal is None and first.rank in self._workers.running:
            return None
        return LaunchFailure(first.rank, f"{first.reason}{_after(first.step)}", first.detail, 1)


def describe_failure(exit: Exit, failure: Failure | None, lines: list[str]) -> LaunchFailure:
    """Describe the failure of a process that has ended.

    Args:
        exit: the end of the process.
        failure: the coordinator's description, if it detected the failure.
        lines: the last lines of its standard error.
    """
    detail = failure.detail if failure is not None else ""
    reason = failure.reason if failure is not None and failure.detail else exit.describe()
    if exit.code == 0:
        reason = "it ended with exit code 0 while others still ran (a premature exit)"
    detail = detail or last_traceback(lines) or "\n".join(lines[-SHOWN_LINES:])
    step = "" if failure is None else _after(failure.step)
    code = 128 - exit.code if exit.code < 0 else exit.code or 1
    pid = "" if exit.pid < 0 else f" (pid {exit.pid})"
    return LaunchFailure(exit.rank, f"{reason}{step}{pid}", detail.rstrip(), code)


def _cause(failure: Failure) -> Failure:
    """Return the failure that an uncaught PeerFailure describes: of the process that it names, instead of its own."""
    peer = _PEER_FAILURE.match(failure.reason)
    if peer is None:
        return failure
    step = None if peer[2] is None else int(peer[2])
    return Failure(int(peer[1]), step, f"{peer[3].strip()} (process {failure.rank} waited for it)", failure.detail)


def _after(step: int | None) -> str:
    return "" if step is None else f", after step {step}"
