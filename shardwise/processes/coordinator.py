"""Coordinator: the server of the control channel, which every process of a program connects to first.

It accepts each process id once, compares versions and flags, and waits until all processes are present. Then it starts
XLA's coordination service and sends its port to the members, so that XLA connects only compatible processes. Afterwards
it keeps running: it detects at once when a process dies, notifies the others, and determines which process failed when
a member waits too long. `shardwise launch` hosts it. Without the launcher, process 0 starts it as a child process
(`coordinator_process.py`), so that the other processes survive the death of process 0.
"""

import errno
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from ipaddress import ip_address
from typing import Any, Literal, final

from shardwise.base._jaxlib import RuntimeFailure, cluster_service
from shardwise.base.config import config
from shardwise.processes.comparison import LaunchComparison
from shardwise.processes.connections import Connection, Connections
from shardwise.processes.protocol import (
    PROTOCOL_VERSION,
    Answer,
    Arrival,
    CallbacksEnded,
    Comparison,
    Confirm,
    Failed,
    Failure,
    Goodbye,
    Hello,
    Leave,
    Message,
    Progress,
    ProtocolError,
    Refused,
    Request,
    Suspicion,
    Welcome,
    join_address,
    resolve,
    split_ranks,
    tokens_match,
)
from shardwise.processes.stragglers import Pace, Straggler, StragglerSearch

HEARTBEAT_INTERVAL = 1.0  # seconds between two messages of a member
ANSWER_TIME = 1.0  # seconds for a member to send its stack, and for the death of a process to be detected
_END_TIME = 5.0  # seconds for the last messages to be sent after the last member has left
# The most sets of processes per member, and the most characters of their names: bounds on memory.
_MOST_SETS, _MOST_SET_CHARACTERS = 1 << 10, 1 << 22
_MOST_INQUIRIES = 16  # the most concurrent inquiries of one member
_MOST_POINTS = 64  # the most points at which one member may arrive

_log = logging.getLogger("shardwise")


@final
@dataclass(frozen=True)
class Event:
    """An event of a member: it joined, all are present (`ready`, rank -1), it failed, or it left.

    `step` is the last step that the member reported. `text` is the reason of a failure; `detail` is a traceback or
    stack.
    """

    kind: Literal["joined", "ready", "failed", "left", "refused"]
    rank: int
    step: int | None = None
    text: str = ""
    detail: str = ""


@final
class _Connection(Connection):
    """One TCP connection; it belongs to a member once its `Hello` is accepted."""

    def __init__(self, connection: socket.socket, peer: str):
        super().__init__(connection, peer)
        self.hello: Hello | None = None
        self.arrivals: dict[str, int] = {}  # point → number of arrivals
        self.leaving = False
        self.inquiries = 0  # inquiries without a verdict
        self.step: int | None = None
        self.launches: dict[str, list[int]] = {}
        self._sets: set[str] = set()

    @property
    def rank(self) -> int:
        return self.hello.rank if self.hello else -1

    def progress(self, processes: str) -> tuple[int, int]:
        """Return the numbers of launches and comparisons on a set of processes."""
        count, _, comparisons = self.launches.get(processes, (0, 0, 0))
        return count, comparisons

    def check_set(self, processes: str, num_processes: int) -> None:
        """Check a set of processes in a message of the member.

        Raises:
            ProtocolError: if the member is not in it, if its processes do not exist, or if there are too many sets.
        """
        if processes in self._sets:
            return
        ranks = split_ranks(processes)
        if self.rank not in ranks or ranks[-1] >= num_processes:
            raise ProtocolError(f"process {self.rank} of {num_processes} is not in the set of processes {processes!r}")
        if len(self._sets) == _MOST_SETS or sum(map(len, self._sets)) + len(processes) > _MOST_SET_CHARACTERS:
            raise ProtocolError(f"process {self.rank} uses more than {len(self._sets)} sets of processes")
        self._sets.add(processes)

    def note_arrival(self, arrival: Arrival) -> None:
        """Record that the member has arrived at a point.

        Raises:
            ProtocolError: if there are too many points.
        """
        if len(self.arrivals) == _MOST_POINTS and arrival.point not in self.arrivals:
            raise ProtocolError(f"process {self.rank} names more than {_MOST_POINTS} points of its program")
        self.arrivals[arrival.point] = arrival.number

    def describe(self) -> str:
        assert self.hello is not None
        return f"pid {self.hello.pid} on {self.hello.host}"


@final
@dataclass(frozen=True)
class _Question:
    """A question to a member. `then` receives the answer, or "" at the deadline."""

    rank: int
    deadline: float
    then: Callable[[str], None]


def listen(host: str, port: int, *, is_option: bool = False) -> socket.socket:
    """Return a socket that listens on an address, for a coordinator. With port 0, the system chooses a port.

    Args:
        host: the host.
        port: the port.
        is_option: whether errors name the option `--coordinator` of the launcher, instead of `coordinator_address`.

    Raises:
        ValueError: if the host cannot be resolved.
        OSError: if the port is in use, or the host is not an address of this machine; the message has a remedy.
    """
    argument, bind_remedy = "coordinator_address", "pass coordinator_bind_address"
    if is_option:
        argument, bind_remedy = "--coordinator", "--coordinator must be an address of node 0, and the same on all nodes"
    family, kind, number, _, address = resolve(host, port, argument)[0]
    listener = socket.socket(family, kind, number)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        remedies = {
            errno.EADDRINUSE: f". Another program or coordinator uses port {port}: choose another one",
            errno.EADDRNOTAVAIL: f". It is not an address of this machine: {bind_remedy}",
        }
        text = f"the coordinator cannot listen on {join_address(host, port)}: {error.strerror}"
        raise OSError(error.errno, text + remedies.get(error.errno or 0, "")) from None
    if not ip_address(address[0].partition("%")[0]).is_loopback:
        _warn_of_other_machines(address[0])
    return listener


@cache  # a launcher starts a coordinator for each generation
def _warn_of_other_machines(host: str) -> None:
    _log.warning(
        "The coordinator listens on %s, which other machines can reach. XLA's coordination service has no "
        "authentication: use a network that only this cluster can reach.",
        host,
    )


@final
class Coordinator:
    """The rendezvous server of the processes of one program, in a thread of its host process.

    Use: `start()`, start the processes with `address` and `token`, `wait()` until all have left, `stop()`.

    Args:
        num_processes: the number of processes of the program.
        host: the address to listen on; loopback unless other machines take part.
        port: the port to listen on; with 0, the system chooses a port.
        token: a secret that members must send; "" if there is none.
        initialization_timeout: the seconds from `start` until all processes must be present.
        heartbeat_timeout: the seconds of silence after which a member counts as lost.
        on_event: called in the coordinator's thread with every `Event`; it must return at once.
        listener: a listening socket, instead of `host` and `port`.
        starts_engine: whether to start XLA's coordination service; False for members that do not run programs.
        on_straggler: called in the coordinator's thread with each process that delays the others for the seconds of the
            setting `straggler_seconds`, and again as long as it does; it must return at once. The first time, a
            warning is logged too.
    """

    def __init__(
        self,
        num_processes: int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        initialization_timeout: float = 300,
        heartbeat_timeout: float = 100,
        on_event: Callable[[Event], None] = lambda _: None,
        listener: socket.socket | None = None,
        starts_engine: bool = True,
        on_straggler: Callable[[Straggler], None] = lambda _: None,
    ):
        self.num_processes = num_processes
        self.token = token
        self.heartbeat_timeout = heartbeat_timeout
        self.failures: dict[int, Failure] = {}  # rank → failure, in order of occurrence
        self._host, self._port = host, port
        self._timeout = initialization_timeout
        self._on_event = on_event
        self._listener = listener
        self._starts_engine = starts_engine
        self._finished = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="shardwise coordinator", daemon=True)
        self._connections: Connections[_Connection]
        self._members: dict[int, _Connection] = {}
        self._gone: set[int] = set()  # ranks whose connection is closed, after the rendezvous
        self._ready = False
        self._deadline = self._end = 0.0  # the deadlines of the rendezvous and of the last messages
        self._service: Any = None
        self._questions: dict[int, _Question] = {}
        self._question_number = 0
        self._comparison = LaunchComparison(self._ask, self._send_to)
        self._on_straggler = on_straggler
        self._stragglers = StragglerSearch(config.straggler_seconds) if config.straggler_seconds > 0 else None
        self._next_sample = math.inf  # the time of the next sample of all paces
        self._reported: set[int] = set()  # ranks of stragglers

    @property
    def address(self) -> str:
        """The `host:port` that it listens on, after `start`."""
        assert self._listener is not None
        return join_address(*self._listener.getsockname()[:2])

    @property
    def is_ready(self) -> bool:
        """Whether all processes are present, or have been."""
        return self._ready

    def start(self) -> None:
        """Listen, and serve members in a thread.

        Raises:
            ValueError: if the host cannot be resolved.
            OSError: if the port is in use, if the host is not an address of this machine, or if the limit on open files
                is too low for the members.
        """
        if self._listener is None:
            self._listener = listen(self._host, self._port)
        try:
            self._connections = Connections(
                self._listener, self.num_processes, _Connection, self._receive, self._note_drop, self._note_close
            )
        except OSError:
            self._listener.close()
            raise
        self._deadline = time.monotonic() + self._timeout
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all members have left, or the rendezvous failed. Return False after `timeout` seconds."""
        return self._finished.wait(timeout)

    def stop(self) -> None:
        """Close all connections, and stop XLA's coordination service. Members that still run then abort."""
        self._stopping = True
        if self._thread.ident is not None:
            self._connections.wake()
            self._thread.join()
        if self._service is not None:
            self._service.shutdown()
            self._service = None

    def steps(self) -> dict[int, int | None]:
        """Return the last step that each member reported."""
        return {rank: member.step for rank, member in sorted(self._members.items())}

    def _serve(self) -> None:
        try:
            while not self._stopping and not self._is_finished():
                self._connections.serve_once()
                self._check_deadlines()
        finally:
            self._connections.close_all()
            self._finished.set()

    def _is_finished(self) -> bool:
        everyone_left = self._ready and len(self._gone) == self.num_processes
        if not everyone_left and self._deadline:
            self._end = time.monotonic() + _END_TIME
            return False
        return not self._connections.have_unsent or time.monotonic() > self._end

    def _note_drop(self, connection: _Connection, reason: str) -> None:
        """Record that a connection does not follow the protocol."""
        self._on_event(Event("refused", connection.rank, text=reason))
        if self._ready and self._members.get(connection.rank) is connection:
            self._fail(connection.rank, f"the coordinator dropped its connection: {reason}")

    def _note_close(self, connection: _Connection) -> None:
        """Record the end of a connection. The end of a member's connection is the end of the member."""
        rank = connection.rank
        if self._members.get(rank) is not connection:
            return
        if not self._ready:
            del self._members[rank]  # its process may be restarted
            return
        self._gone.add(rank)
        if connection.leaving or rank in self.failures:
            self._on_event(Event("left", rank, connection.step))
        else:
            reason = "its connection closed: the process was killed, or it exited without distributed.shutdown"
            self._fail(rank, reason)
        self._release_leaving()

    def _receive(self, connection: _Connection, message: Message) -> None:
        if connection.hello is None:
            if not isinstance(message, Hello):
                raise ProtocolError(f"{type(message).__name__} before Hello")
            self._receive_hello(connection, message)
            return
        if not self._ready:
            raise ProtocolError(f"{type(message).__name__} before Welcome")
        for processes in _sets_of(message):
            connection.check_set(processes, self.num_processes)
        match message:
            case Arrival():
                connection.note_arrival(message)
            case Progress():
                connection.step = message.step
                connection.launches.update(message.launches)
                self._comparison.receive_progress(connection.rank, message)
                self._check_early_exits()
            case Comparison():
                self._comparison.receive_comparison(connection.rank, message)
            case Confirm():
                self._comparison.receive_confirm(connection.rank, message)
            case CallbacksEnded():
                self._comparison.receive_callbacks(connection.rank, message)
            case Leave():
                connection.leaving = True
                connection.launches.update(message.launches)
                self._comparison.receive_end(connection.rank, message.launches)
                self._check_early_exits()
                self._release_leaving()
            case Failed():
                self._fail(connection.rank, message.reason, message.traceback)
            case Suspicion():
                self._inquire(connection, message)
            case Answer():
                self._receive_answer(connection, message)
            case _:
                raise ProtocolError(f"{type(message).__name__} from a member")

    def _receive_hello(self, connection: _Connection, hello: Hello) -> None:
        if not tokens_match(hello.token, self.token):
            raise ProtocolError("wrong token")
        refusal = self._refusal(hello)
        if refusal is not None:
            self._on_event(Event("refused", hello.rank, text=refusal.reason))
            self._connections.refuse(connection, refusal)
            return
        connection.hello = hello
        connection.authenticate()
        self._members[hello.rank] = connection
        self._on_event(Event("joined", hello.rank))
        if len(self._members) == self.num_processes:
            self._become_ready()

    def _refusal(self, hello: Hello) -> Refused | None:
        """Return the refusal of a process that may not join, or None."""
        if hello.protocol != PROTOCOL_VERSION:
            versions = f"{hello.protocol} and {PROTOCOL_VERSION}"
            return Refused("RendezvousError", f"the versions of Shardwise differ (control channel {versions})")
        if hello.num_processes != self.num_processes:
            return Refused(
                "ValueError",
                f"num_processes is {hello.num_processes} in process {hello.rank}, and {self.num_processes} in the "
                "coordinator: all processes must pass the same number",
            )
        if not 0 <= hello.rank < self.num_processes:
            return Refused("ValueError", f"process_id must be from 0 to {self.num_processes - 1}, not {hello.rank}")
        other = self._members.get(hello.rank)
        if other is not None:
            return Refused(
                "RendezvousError",
                f"process id {hello.rank} is taken by {other.describe()}: give each process its own process_id",
            )
        for member in self._members.values():
            assert member.hello is not None
            difference = _difference(member.hello, hello)
            if difference:
                return Refused("RendezvousError", difference)
        return None

    def _become_ready(self) -> None:
        """Start XLA's coordination service, and send its port to all members."""
        try:
            port = self._start_engine() if self._starts_engine else 0
        except (OSError, RuntimeFailure) as error:
            self._give_up(f"the coordinator cannot start XLA's coordination service: {error}")
            return
        self._ready = True
        if self._stragglers is not None:
            self._next_sample = time.monotonic() + self._stragglers.interval
        self._on_event(Event("ready", -1))
        for member in self._members.values():
            self._connections.send(member, Welcome(port))

    def _start_engine(self) -> int:
        """Start XLA's coordination service, and return its port."""
        assert self._listener is not None
        host = self._listener.getsockname()[0]
        with socket.socket(self._listener.family) as reservation:
            # XLA's service also binds with SO_REUSEPORT. Until then, this socket keeps other programs from taking the
            # port.
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reservation.bind((host, 0))
            port = reservation.getsockname()[1]
            self._service = cluster_service(join_address(host, port), self.num_processes, int(self.heartbeat_timeout))
        return int(port)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if not self._ready:
            if self._deadline and now > self._deadline:
                missing = [rank for rank in range(self.num_processes) if rank not in self._members]
                self._give_up(
                    f"after {self._timeout:.0f} s, {len(missing)} of {self.num_processes} processes are missing: "
                    f"process ids {', '.join(map(str, missing))}. Look whether they were started and can reach the "
                    "coordinator."
                )
            return
        for rank, member in list(self._members.items()):
            silence = now - member.last_seen
            if rank not in self._gone and silence > self.heartbeat_timeout:
                self._fail(rank, f"no heartbeat for {silence:.0f} s: the process is stopped, or unreachable")
                self._connections.close(member)
        if self._stragglers is not None and now >= self._next_sample:
            self._next_sample = now + self._stragglers.interval
            self._sample_paces(self._stragglers, now)
        for number, question in list(self._questions.items()):
            if now > question.deadline:
                del self._questions[number]
                self._answer(question, "")

    def _sample_paces(self, search: StragglerSearch, now: float) -> None:
        """Ask all members for their paces, and report one that delays the others."""
        ranks = [rank for rank in self._members if rank not in self._gone]
        answers: dict[int, str] = {}

        def collect(rank: int, text: str) -> None:
            answers[rank] = text
            if len(answers) < len(ranks):
                return
            parsed = {each: Pace.parse(answer) for each, answer in answers.items()}
            if (slow := search.add(now, {each: pace for each, pace in parsed.items() if pace is not None})) is not None:
                self._ask(slow[0], "stack", "", partial(self._report_straggler, *slow))

        for rank in ranks:
            self._ask(rank, "pace", "", partial(collect, rank))

    def _report_straggler(self, rank: int, busy: float, others: float, stack: str) -> None:
        member = self._members[rank]
        assert member.hello is not None
        straggler = Straggler(rank, member.hello.host, member.step, busy, others, stack)
        if rank not in self._reported:
            self._reported.add(rank)
            _log.warning("%s", straggler)
        self._on_straggler(straggler)

    def _give_up(self, reason: str) -> None:
        """End the rendezvous."""
        for member in list(self._members.values()):
            self._connections.refuse(member, Refused("RendezvousError", reason))
        self._deadline = 0.0

    def _fail(self, rank: int, reason: str, detail: str = "") -> None:
        """Record that a member failed, and notify all members."""
        if rank in self.failures:
            return
        member = self._members[rank]
        failure = self.failures[rank] = Failure(rank, member.step, reason, detail)
        self._comparison.give_up(rank)
        self._on_event(Event("failed", rank, member.step, reason, detail))
        for other in self._members:
            self._send_to(other, failure)
        self._release_leaving()

    def _release_leaving(self) -> None:
        """Let members disconnect once all others have left, or one has failed."""
        if self._comparison.is_searching:
            return  # waiting members still have to receive the difference between their launches
        if self.failures or all(m.leaving or rank in self._gone for rank, m in self._members.items()):
            for rank, member in self._members.items():
                if member.leaving:
                    self._send_to(rank, Goodbye())

    def _check_early_exits(self) -> None:
        """Find members that reached the end of their program while another launched more on the same processes."""
        for rank, leaver in self._members.items():
            if not leaver.leaving or rank in self.failures:
                continue
            for other, member in self._members.items():
                for processes, (count, *_) in member.launches.items():
                    own = leaver.progress(processes)[0]
                    is_member = str(rank) in processes.split(",")
                    if is_member and count > own and not self._comparison.is_given_up(processes):
                        self._fail(
                            rank,
                            f"it reached the end of its program after {own} launches on the processes {processes}, but "
                            f"process {other} made {count}",
                        )
                        return

    def _send_to(self, rank: int, message: Message) -> None:
        """Send a message to a member that may have disconnected."""
        member = self._members.get(rank)
        if member is not None and member in self._connections:
            self._connections.send(member, message)

    def _ask(self, rank: int, question: str, detail: str, then: Callable[[str], None]) -> None:
        """Ask a member a question. `then` receives the answer, or "" if there is none in time."""
        self._question_number += 1
        self._questions[self._question_number] = _Question(rank, time.monotonic() + ANSWER_TIME, then)
        self._send_to(rank, Request(self._question_number, question, detail))

    def _receive_answer(self, connection: _Connection, answer: Answer) -> None:
        question = self._questions.get(answer.number)
        if question is not None and question.rank == connection.rank:
            del self._questions[answer.number]
            self._answer(question, answer.text)

    def _answer(self, question: _Question, text: str) -> None:
        """Pass an answer on. A malformed answer must not end the member that happened to cause the question."""
        try:
            question.then(text)
        except Exception:
            _log.exception("The coordinator cannot use an answer of process %d", question.rank)
        self._release_leaving()

    def _inquire(self, asker: _Connection, suspicion: Suspicion) -> None:
        """Find the process that a member waits for: one that does not answer, or that has made less progress.

        A member that lost a connection may detect a death before the coordinator does, which therefore waits briefly.
        """
        ranks = split_ranks(suspicion.processes)
        failed = [self.failures[rank] for rank in ranks if rank in self.failures]
        others = [self._members[rank] for rank in ranks if rank in self._members and rank != asker.rank]
        stacks: dict[int, str] = {}

        def collect(rank: int, stack: str) -> None:
            stacks[rank] = stack
            if len(stacks) == len(others):
                asker.inquiries -= 1
                self._conclude(asker, suspicion, others, stacks)

        def inquire_again(_: str) -> None:
            asker.inquiries -= 1
            self._inquire(asker, replace(suspicion, lost=False))

        if failed:
            self._send_to(asker.rank, failed[0])
            return
        if not others:
            self._send_to(asker.rank, Failure(-1, None, f"process {asker.rank} {suspicion.reason}"))
            return
        if asker.inquiries == _MOST_INQUIRIES:
            raise ProtocolError(f"more than {_MOST_INQUIRIES} inquiries at the same time")
        asker.inquiries += 1
        if suspicion.lost:
            self._ask(-1, "", "", inquire_again)
            return
        for member in others:
            self._ask(member.rank, "stack", "", partial(collect, member.rank))

    def _conclude(
        self, asker: _Connection, suspicion: Suspicion, others: list[_Connection], stacks: dict[int, str]
    ) -> None:
        """End an inquiry with a verdict."""
        failed = [self.failures[member.rank] for member in others if member.rank in self.failures]
        if failed:
            self._send_to(asker.rank, failed[0])
            return
        steps = ", ".join(f"process {rank}: {step}" for rank, step in self.steps().items())
        silent = [member for member in others if not stacks[member.rank]]
        suspect: _Connection | None
        if silent:
            suspect = min(silent, key=lambda member: member.last_seen)
            silence = time.monotonic() - suspect.last_seen
            explanation = f"it does not answer, for {silence:.1f} s: the process is stopped, or unreachable"
        else:
            suspect, explanation = _slowest(asker, suspicion, others)
        reason = f"process {asker.rank} {suspicion.reason}; {explanation}. Last steps: {steps}"
        if suspect is None:
            self._send_to(asker.rank, Failure(-1, None, reason))
        else:
            self._fail(suspect.rank, reason, stacks[suspect.rank])


def _slowest(asker: _Connection, suspicion: Suspicion, others: list[_Connection]) -> tuple[_Connection | None, str]:
    """Return the process that has made less progress than the waiting one, or None, and an explanation."""
    match suspicion.awaited:
        case "message":
            return others[0], "it is alive, but has not sent its part"
        case "end":
            running = [member for member in others if not member.leaving]
            if running:
                return running[0], "it is alive, but has not reached the end of its program, or distributed.shutdown"
            return None, "all processes are alive, and have reached the end of their programs"
        case "arrival":
            point = suspicion.point
            slowest = min(others, key=lambda member: member.arrivals.get(point, 0))
            if slowest.arrivals.get(point, 0) < asker.arrivals.get(point, 0):
                return slowest, f"it is alive, but has not come so far in {point}"
            return None, f"all processes are alive, and have come equally far in {point}"
        case "launch":
            processes, own = suspicion.processes, asker.progress(suspicion.processes)
            slowest = min(others, key=lambda member: member.progress(processes))
            count = slowest.progress(processes)[0]
            if slowest.progress(processes) < own:
                return slowest, f"it is alive, but has made {count} launches on the processes {processes}, not {own[0]}"
            return None, "all processes are alive, and have made the same launches"


def _sets_of(message: Message) -> Iterable[str]:
    """Return the sets of processes in a message of a member."""
    match message:
        case Progress() | Leave():
            return message.launches
        case Comparison() | CallbacksEnded() | Confirm():
            return (message.processes,)
    return ()


def _difference(one: Hello, other: Hello) -> str:
    """Describe the difference between the requirements of two processes, or return ""."""
    for name in sorted({*one.requirements, *other.requirements}):
        values = one.requirements.get(name), other.requirements.get(name)
        if values[0] != values[1]:
            return (
                f"{name} differs: {values[0]!r} in process {one.rank}, {values[1]!r} in process {other.rank}. All "
                "processes must have the same."
            )
    return ""
