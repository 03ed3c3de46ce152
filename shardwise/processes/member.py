"""Member: the connection of this process to the coordinator.

A thread sends a heartbeat with the progress of this process, receives the failures of others, and answers the
coordinator's questions while the main thread computes or waits. If the connection ends, or the coordinator sends bytes
that are not a message, all waits end with an error.
"""

import logging
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from types import TracebackType
from typing import final

from shardwise.errors import PeerFailure, ProgramMismatch, RendezvousError
from shardwise.processes.coordinator import ANSWER_TIME, HEARTBEAT_INTERVAL
from shardwise.processes.launch_record import LaunchRecord
from shardwise.processes.protocol import (
    LINE_LIMIT,
    PROTOCOL_VERSION,
    TEXT_LIMIT,
    Answer,
    Arrival,
    Awaited,
    CallbackResult,
    CallbacksEnded,
    Comparison,
    Confirm,
    Confirmed,
    Equal,
    Failed,
    Failure,
    Goodbye,
    Hello,
    Leave,
    LineBuffer,
    Message,
    Mismatch,
    Progress,
    ProtocolError,
    Refused,
    Request,
    Suspicion,
    Welcome,
    decode,
    encode,
    join_address,
    resolve,
)
from shardwise.processes.stragglers import PaceMeter

_RETRY_INTERVAL = 0.1  # seconds between two attempts to connect
_VERDICT_TIME = 10 * ANSWER_TIME  # seconds for the coordinator to find the process that failed
_COORDINATOR = -1  # the rank under which the loss of the coordinator is recorded

_log = logging.getLogger("shardwise")
_REFUSALS: dict[str, type[Exception]] = {"ValueError": ValueError, "RendezvousError": RendezvousError}


@final
class Member:
    """The connection of this process to the coordinator, after the rendezvous.

    Args:
        host: the coordinator's host.
        port: the coordinator's port.
        rank: the index of this process.
        num_processes: the number of processes.
        token: the secret that the coordinator expects.
        requirements: versions, flags and settings that must be equal in all processes.
        timeout: the seconds to wait for the coordinator and the other processes.
        connection_timeout: the seconds to wait for a coordinator that does not listen; by default, `timeout`.

    Raises:
        ValueError: if the host cannot be resolved, or the numbers of processes differ.
        RendezvousError: if the coordinator cannot be reached or refuses this process, or another process is missing.
    """

    def __init__(
        self,
        host: str,
        port: int,
        rank: int,
        num_processes: int,
        token: str,
        requirements: dict[str, str],
        timeout: float,
        connection_timeout: float | None = None,
    ):
        self.rank = rank
        self.num_processes = num_processes
        self.address = join_address(host, port)
        self.step: int | None = None
        self.has_uncaught_exception = False  # it ends this process
        # Rank → failure, in order of arrival. Rank -1 is the coordinator: without it, no process of a set can continue.
        self.failures: dict[int, Failure] = {}
        self.mismatches: dict[str, str] = {}  # why the launches on a set of processes differ
        self.launches: Callable[[], dict[str, list[int]]] = dict  # returns the launches for `Progress`
        self.pace = PaceMeter()
        # Question of the coordinator → answer.
        self.answers: dict[str, Callable[[str], str]] = {"stack": main_stack, "pace": lambda _: str(self.pace.pace)}
        self.on_failure: Callable[[], None] = lambda: None  # called when a failure or a mismatch arrives
        self.record: LaunchRecord | None = None
        self._changed = threading.Condition()
        self._verdict: Failure | None = None
        self._equal: dict[str, int] = {}  # set of processes → index of its last comparison
        self._confirm_number = 0
        # Index of a `Confirm` message that a thread waits for → the number of confirmed launches, None before.
        self._confirms: dict[int, int | None] = {}
        self._callbacks: dict[str, CallbackResult] = {}  # set of processes → its last launch with callbacks
        self._may_leave = False
        self._closed = False
        self._send_lock = threading.Lock()
        self._ask_lock = threading.Lock()
        self._arrivals: Counter[str] = Counter()
        hello = Hello(
            token, PROTOCOL_VERSION, rank, num_processes, socket.gethostname(), os.getpid(), dict(requirements)
        )
        start = time.monotonic()
        deadline = start + timeout
        connection_timeout = timeout if connection_timeout is None else connection_timeout
        engine_port = None
        while engine_port is None:
            self._lines = LineBuffer(LINE_LIMIT)
            self._socket = _connect(host, port, start + connection_timeout, connection_timeout)
            try:
                self._send(hello)
                engine_port = self._wait_for_welcome(deadline, timeout)
            except BaseException:
                self._socket.close()
                raise
        self.engine_port = engine_port
        self._thread = threading.Thread(target=self._serve, name="shardwise member", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether the connection to the coordinator has ended."""
        return self._closed

    @property
    def local_host(self) -> str:
        """The address of this process on the network by which it reaches the coordinator."""
        return str(self._socket.getsockname()[0])

    def _wait_for_welcome(self, deadline: float, timeout: float) -> int | None:
        """Wait until all processes are present.

        Returns:
            The port of XLA's coordination service; None if the coordinator is busy and must be asked again.
        """
        lines: list[bytes] = []
        try:
            while not lines:
                # The coordinator has the same deadline, and its error lists the missing processes.
                self._socket.settimeout(max(0.1, deadline + 2 * HEARTBEAT_INTERVAL - time.monotonic()))
                data = self._socket.recv(1 << 16)
                if not data:
                    raise ConnectionError
                lines = self._lines.add(data)
            messages = [decode(line) for line in lines]
        except TimeoutError:
            raise RendezvousError(
                f"process {self.rank} reached the coordinator at {self.address}, but not all {self.num_processes} "
                f"processes came within {timeout:.0f} s"
            ) from None
        except OSError:
            raise RendezvousError(
                f"the coordinator at {self.address} closed the connection: it has another token, process 0 ended, or "
                "another program listens on this port"
            ) from None
        except ProtocolError:
            raise RendezvousError(f"another program than a coordinator listens on {self.address}") from None
        message, *later = messages
        if isinstance(message, Refused):
            if message.error == "busy" and time.monotonic() < deadline:
                self._socket.close()
                time.sleep(_RETRY_INTERVAL)
                return None
            raise _REFUSALS.get(message.error, RendezvousError)(message.reason)
        if not isinstance(message, Welcome) or not 0 <= message.engine_port < 1 << 16:
            raise RendezvousError(f"the coordinator at {self.address} sent {message}, not Welcome")
        self._socket.settimeout(None)
        for each in later:
            self._receive(each)
        return message.engine_port

    def _send(self, message: Message) -> None:
        """Send a message. The receiving thread detects the loss of the coordinator."""
        with self._send_lock, suppress(OSError):
            self._socket.sendall(encode(message))

    def _serve(self) -> None:
        """Receive messages, and send heartbeats."""
        next_heartbeat = 0.0
        while not self._closed:
            now = time.monotonic()
            if now >= next_heartbeat:
                self.send_progress()
                if self.record is not None:
                    self.record.renew_status()
                next_heartbeat = now + HEARTBEAT_INTERVAL
            try:
                readable, _, _ = select.select([self._socket], [], [], max(0.0, next_heartbeat - now))
                data = self._socket.recv(1 << 16) if readable else None
            except (OSError, ValueError):
                data = b""
            if data is None:
                continue
            if not data:
                self.lose_coordinator("the connection to the coordinator closed: its process ended, or is unreachable")
                return
            try:
                for line in self._lines.add(data):
                    self._receive(decode(line))
            except ProtocolError as error:
                self.lose_coordinator(f"the coordinator at {self.address} does not follow the protocol: {error}")
                return

    def lose_coordinator(self, reason: str) -> None:
        """Record that the coordinator is lost, so that failures can no longer be attributed. Later calls do nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = self._may_leave = True
            lost = Failure(_COORDINATOR, None, reason)
            self.failures[_COORDINATOR] = lost
            self._verdict = self._verdict or lost
            self._changed.notify_all()
        self.on_failure()

    def _receive(self, message: Message) -> None:
        match message:
            case Failure():
                with self._changed:
                    self._verdict = message
                    if message.rank >= 0:
                        self.failures.setdefault(message.rank, message)
                    self._changed.notify_all()
                self.on_failure()
            case Mismatch():
                with self._changed:
                    self.mismatches.setdefault(message.processes, message.reason)
                    self._changed.notify_all()
                self.on_failure()
            case Equal():
                with self._changed:
                    self._equal[message.processes] = message.number
                    self._changed.notify_all()
            case Confirmed():
                with self._changed:
                    if message.number in self._confirms:
                        self._confirms[message.number] = message.launch
                    self._changed.notify_all()
            case CallbackResult():
                with self._changed:
                    self._callbacks[message.processes] = message
                    self._changed.notify_all()
            case Request():
                self._send(Answer(message.number, self._answer(message)))
            case Goodbye():
                with self._changed:
                    self._may_leave = True
                    self._changed.notify_all()

    def _answer(self, request: Request) -> str:
        """Return the answer to a question of the coordinator, or "" if there is none."""
        try:
            answer = self.answers.get(request.question)
            return answer(request.detail) if answer is not None else ""
        except Exception:  # this thread must not end, because it sends the heartbeats
            _log.exception("The question %r of the coordinator has no answer", request.question)
            return ""

    def report_arrival(self, point: str) -> None:
        """Tell the coordinator that this process waits for others at a point of the program, such as a function."""
        self._arrivals[point] += 1
        self._send(Arrival(point, self._arrivals[point]))

    def send_progress(self, at_step: bool = False) -> None:
        """Send the last step and the launches."""
        self._send(Progress(self.step, self.launches(), at_step))

    def report_step(self, step: int) -> None:
        """Record that this process has reached a step, and report it to the coordinator."""
        self.note_step(step)
        self.send_progress(at_step=True)

    def note_step(self, step: int) -> None:
        """Record that this process has reached a step. The next heartbeat reports it."""
        if step != self.step:
            self.pace.end_step()
        self.step = step

    def compare(self, comparison: Comparison, ranks: Collection[int], timeout: float) -> bool:
        """Wait until all processes of a set are about to launch the same program.

        Returns:
            True if they are; False if the programs differ, if one of them failed, or after `timeout` seconds.
        """

        def is_equal() -> bool:
            return self._equal.get(comparison.processes, 0) >= comparison.number

        self._send(comparison)
        self._wait_for_set(comparison.processes, ranks, is_equal, timeout)
        return is_equal()

    def confirm(
        self, processes: str, launch: int, rolling_hash: int, ranks: Collection[int], timeout: float
    ) -> int | None:
        """Wait until the launches of this process are confirmed to equal the launches of the other processes of a set.

        Args:
            processes: the set.
            launch: the number of launches on it.
            rolling_hash: their hash.
            ranks: the processes of the set.
            timeout: the longest time to wait, in seconds.

        Returns:
            The number of launches that all of them have made, at most `launch`; None if the launches differ, if a
            process failed, or after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while (rest := end - time.monotonic()) > 0:
            with self._changed:  # several threads may read
                self._confirm_number += 1
                number = self._confirm_number
                self._confirms[number] = None

            def is_confirmed(number: int = number) -> bool:
                return self._confirms[number] is not None

            self._send(Confirm(processes, number, launch, rolling_hash))
            # A process that is stopped briefly does not answer, so ask again.
            is_over = self._wait_for_set(processes, ranks, is_confirmed, min(rest, 2 * ANSWER_TIME))
            with self._changed:
                confirmed = self._confirms.pop(number)
            if is_over:
                return confirmed
        return None

    def exchange_callbacks(
        self, processes: str, launch: int, error: BaseException | None, ranks: Collection[int], timeout: float
    ) -> CallbackResult | None:
        """Report to the other processes of a set whether a callback failed here, and wait for their reports.

        Returns:
            The result of all processes; None if one of them failed otherwise, or after `timeout` seconds.
        """
        reason = "" if error is None else f"a callback raised {_last_line(error)}"
        text = "" if error is None else "".join(traceback.format_exception(error))
        self._send(CallbacksEnded(processes, launch, self.step, reason, text[-TEXT_LIMIT:]))

        def has_ended() -> bool:
            result = self._callbacks.get(processes)
            return result is not None and result.launch >= launch

        self._wait_for_set(processes, ranks, has_ended, timeout)
        return self._callbacks[processes] if has_ended() else None

    def _wait_for_set(
        self, processes: str, ranks: Collection[int], is_complete: Callable[[], bool], timeout: float
    ) -> bool:
        """Wait until a message satisfies the condition, a process of the set fails, or launches differ.

        Return False after `timeout` seconds.
        """

        def is_over() -> bool:
            is_broken = self._closed or processes in self.mismatches
            return is_complete() or is_broken or not self.failures.keys().isdisjoint(ranks)

        start = time.monotonic()
        with self._changed:
            has_ended = self._changed.wait_for(is_over, timeout)
        self.pace.add_wait(start)
        return has_ended

    def wait_for(self, is_complete: Callable[[], bool], ranks: Collection[int], timeout: float) -> bool:
        """Wait for an event that `notify` announces. Return False if a process fails, or at the timeout."""

        def is_over() -> bool:
            return is_complete() or not self.failures.keys().isdisjoint({*ranks, _COORDINATOR})

        start = time.monotonic()
        with self._changed:
            self._changed.wait_for(is_over, timeout)
        self.pace.add_wait(start)
        return is_complete()

    def notify(self) -> None:
        """Let `wait_for` check its condition again."""
        with self._changed:
            self._changed.notify_all()

    def error(self, processes: str, ranks: Collection[int]) -> PeerFailure | ProgramMismatch | None:
        """Return the error that launches on a set of processes must raise, or None."""
        if processes in self.mismatches:
            return ProgramMismatch(self.mismatches[processes])
        failures = self.failures.items()
        failure = next((failure for rank, failure in failures if rank in ranks or rank == _COORDINATOR), None)
        return None if failure is None else _as_error(failure)

    def report_exception(self, error: BaseException) -> None:
        """Report to the coordinator that this process ends with an exception."""
        self.has_uncaught_exception = True
        text = "".join(traceback.format_exception(error))
        reason = f"it raised {_last_line(error)}"
        if self.record is not None:
            self.record.end(reason.removeprefix("it "))
        self._send(Failed(reason, text[-TEXT_LIMIT:]))

    def ask_for_failure(
        self, processes: str, reason: str, lost: bool = False, awaited: Awaited = "launch", point: str = ""
    ) -> PeerFailure:
        """Ask the coordinator which process of a set failed. Wait briefly for its verdict.

        Args:
            processes: the ranks of the processes, separated by commas.
            reason: the observation of this process, for the others: "waited 60 s in `f`".
            lost: whether a connection to another process broke, so that the process has probably died.
            awaited: the progress of the others that this process waits for.
            point: the point of the program at which they are expected.
        """
        with self._ask_lock:  # one verdict at a time
            with self._changed:
                self._verdict = self.failures.get(_COORDINATOR)
            self.send_progress()
            self._send(Suspicion(processes, reason, lost, awaited, point))
            with self._changed:
                self._changed.wait_for(lambda: self._verdict is not None or self._closed, _VERDICT_TIME)
                unknown = Failure(-1, None, f"this process {reason}, and the coordinator does not answer")
                return _as_error(self._verdict or unknown)

    def leave(self, timeout: float) -> bool:
        """Wait until all processes are about to leave, or one has failed. Return False after `timeout` seconds.

        Raises:
            ProgramMismatch: if this process has not made all launches of the others.
        """
        self._send(Leave(self.launches()))
        with self._changed:
            is_over = self._changed.wait_for(
                lambda: self._may_leave or bool(self.failures) or bool(self.mismatches), timeout
            )
        if self.mismatches:
            raise ProgramMismatch(next(iter(self.mismatches.values())))
        if self.rank in self.failures:
            raise ProgramMismatch(f"process {self.rank} failed: {self.failures[self.rank].reason}")
        return is_over

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._socket.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked child. The connection remains the parent's."""
        # Other threads of the parent may have held the locks during the fork.
        self._send_lock, self._ask_lock, self._changed = threading.Lock(), threading.Lock(), threading.Condition()
        self._closed = True
        self._socket.close()


def _connect(host: str, port: int, deadline: float, timeout: float) -> socket.socket:
    """Connect to the coordinator, which may not listen yet."""
    addresses = resolve(host, port)
    while True:
        for family, kind, number, _, address in addresses:
            connection = socket.socket(family, kind, number)
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                connection.connect(address)
            except OSError as failure:
                error = failure
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        if time.monotonic() + _RETRY_INTERVAL > deadline:
            raise RendezvousError(
                f"the coordinator at {join_address(host, port)} cannot be reached within {timeout:.0f} s "
                f"({error.strerror or error}). Process 0 or the launcher hosts it: look whether that runs, whether "
                "the address is right, and whether a firewall blocks the port."
            )
        time.sleep(_RETRY_INTERVAL)


def _last_line(error: BaseException) -> str:
    """Return type and message of an exception, as at the end of a traceback."""
    return "".join(traceback.format_exception_only(error)).strip()


def _as_error(failure: Failure) -> PeerFailure:
    return PeerFailure(failure.rank, failure.step, failure.reason, failure.detail)


def main_stack(_: str = "") -> str:
    """Return the Python stack of the main thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else ""


def report_uncaught_exceptions(current: Callable[[], Member | None]) -> None:
    """Report exceptions that end this process, before they are printed, to the coordinator of the current member."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (member := current()) is not None:
            member.report_exception(error)
        previous(kind, error, trace)

    sys.excepthook = report
