"""ProcessSet: the processes of a program that spans several, and the checks of its launches.

All processes of a set must launch the same programs in the same order. Otherwise XLA computes wrong values, deadlocks
or aborts. Before its first run, a program is compared between all processes; a program with callbacks is compared
before every run. Other launches only update a rolling hash, so that they need no round trip. The hash is compared every
`REPORT_INTERVAL` launches, before the host reads a value, and when the process leaves. A process that waits for a lost
or stuck process raises `PeerFailure`.
"""

import hashlib
import threading
import time
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, final
from weakref import ref

import numpy as np

from shardwise.base._jaxlib import Buffers, RuntimeFailure, Token
from shardwise.base.call_site import format_line, user_frame
from shardwise.base.config import config
from shardwise.compiler.lower.hlo import without_locations
from shardwise.errors import PeerFailure, ProgramMismatch
from shardwise.processes.comparison import VALUE
from shardwise.processes.member import Member
from shardwise.processes.protocol import Comparison

REPORT_INTERVAL = 64  # launches
_REPORTED = 4 * REPORT_INTERVAL  # the last launches to send to the coordinator, to find the first difference
# The number of remembered launches, of 8 bytes each. A process that reads a value can be compared with processes that
# are at most this many launches ahead or behind.
_HISTORY = 1 << 20
_MULTIPLIER = 0x9E3779B97F4A7C15  # of the rolling hash; odd, so that every launch keeps its effect modulo 2**64
_MASK = (1 << 64) - 1
_DRAIN_TIME = 10.0  # the most seconds for XLA to end a run after the timeout
_GRACE = 0.1  # seconds after a failure in which a value may still become ready
# The sleep between two polls of a value, in seconds: 1/32 of the time since the wait began, within these bounds. This
# thread polls, because a wait in C++ could not be interrupted. Waking it from a second thread that waits in C++ takes
# longer than polling, because XLA's threads keep all cores busy.
_SHORTEST_SLEEP, _LONGEST_SLEEP, _SLEEP_PART = 5e-5, 2e-3, 1 / 32
# Phrases of XLA's errors when a collective fails: for a lost connection, and for a timeout.
_LOST = (
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "Connection refused",
    "Socket closed",
    "unhandled system error",
)
_TIMED_OUT = ("timed out", "Timed out", "timeout", "DEADLINE_EXCEEDED", "Termination")


@final
class _Program:
    """A program that runs on a process set, or a value that it uses, with its name and contents for errors.

    `content` is everything that must be equal in all processes; by default, `text`.
    """

    def __init__(self, name: str, text: str, content: bytes | None = None):
        self.name = name
        self.compressed = zlib.compress(text.encode(), 1)
        self.fingerprint = int.from_bytes(hashlib.sha256(content or text.encode()).digest()[:8], "big")

    @property
    def label(self) -> str:
        """The name and a prefix of the fingerprint, because programs with one name may differ in their shapes."""
        return f"`{self.name}` ({self.fingerprint:016x}"[:-8] + ")"

    @property
    def text(self) -> str:
        return zlib.decompress(self.compressed).decode()


@final
class ProcessSet:
    """The launches of this process on a set of processes that includes it."""

    def __init__(
        self,
        ranks: tuple[int, ...],
        member: Member,
        waiters: "Waiters",
        collective_runs: "CollectiveRuns",
        timeout: float,
    ):
        self.name = ",".join(map(str, ranks))
        self.ranks = frozenset(ranks)
        self.comparisons = 0
        self._launches = LaunchHistory()
        self._confirmed = 0  # the number of launches that are confirmed to equal the other processes' launches
        self._sources: set[ProcessSet] = set()  # sets whose unconfirmed results are operands of launches on this one
        self.programs: dict[int, _Program] = {}  # fingerprint → program that all processes agreed on
        self._candidate: _Program | None = None  # the program that is being compared
        self._member = member
        self._waiters = waiters
        self._collective_runs = collective_runs
        self._timeout = timeout

    def guard(
        self,
        launch: Callable[[list[Any]], Any],
        name: str,
        text: str,
        has_collectives: bool,
        small_result: int | None = None,
        callback_error: Callable[[], BaseException | None] | None = None,
        collectives: Callable[[], Sequence[str]] = tuple,
    ) -> Callable[[list[Any]], Any]:
        """Return a function that checks and counts a launch, and then makes it.

        Args:
            launch: runs the program on buffers.
            name: the name of the program, for errors.
            text: everything that must be equal in all processes: the program, its devices and options. Source locations
                may differ.
            has_collectives: whether the program waits for other processes.
            small_result: the position of a result that needs little memory; None if there is none.
            callback_error: returns the exception of a callback of the run in this process; None without callbacks.
            collectives: returns the collectives of the program, with their source lines.
        """
        program = _Program(name, without_locations(text))
        record_launch = None
        # Without collectives, a program waits for nobody, and may be so short that recording it would be noticed.
        if self._member.record is not None and has_collectives:
            record_launch = self._member.record.launch_recorder(name, self.name, collectives())
        fingerprint, programs, member = program.fingerprint, self.programs, self._member
        launches, recent = self._launches, self._launches.recent

        def run(buffers: list[Any]) -> Any:
            if fingerprint not in programs or callback_error is not None or config.debug_launch_order:
                self._compare(program)
                programs[fingerprint] = program
            elif member.failures or member.mismatches:
                self.check()
            recent.append(fingerprint)
            if record_launch is not None:
                record_launch(launches.folded + len(recent))
            number = launches.count if callback_error is not None else 0
            if len(recent) >= REPORT_INTERVAL:
                launches.fold()
                member.send_progress()
            try:
                results = launch(buffers)
            except RuntimeFailure as error:
                if isinstance(error, (PeerFailure, ProgramMismatch)):
                    raise
                self.explain(error, f"`{name}`")
                raise
            if has_collectives:
                self._collective_runs.add(self.name, results, small_result)
            if callback_error is not None:
                self._check_callbacks(name, number, callback_error())
            return results

        return run

    def _check_callbacks(self, name: str, launch: int, error: BaseException | None) -> None:
        """Wait until the callbacks of a launch have ended in all processes; raise an error if another process's failed.

        A failed callback returns zeros, which all processes receive.
        """
        result = self._member.exchange_callbacks(self.name, launch, error, self.ranks, self._timeout)
        if result is None:
            self.check()
            raise self._find_failure(f"waited {self._timeout:.0f} s for the callbacks of `{name}`")
        # -1 means that none failed. The runtime itself raises an exception of this process's callback (`callbacks.py`).
        if result.rank not in (-1, self._member.rank):
            raise PeerFailure(result.rank, result.step, f"{result.reason}, in `{name}`", result.detail)

    def check(self) -> None:
        """Raise an error if a process of the set failed, or launched a different program."""
        error = self._member.error(self.name, self.ranks)
        if error is not None:
            raise error

    def _compare(self, program: _Program) -> None:
        """Wait until all processes are about to launch this program, or to use this value."""
        self.check()
        if self._member.failures:  # of other sets, whose runs keep the devices busy until XLA's timeout
            self._waiters.drain(self._timeout + _DRAIN_TIME)
        if self._member.is_closed:
            raise RuntimeError(f"`{program.name}` runs on several processes, but distributed.shutdown was called")
        self.comparisons += 1
        self._candidate = program
        launches = self._launches.count_and_hash()
        comparison = Comparison(self.name, self.comparisons, *launches, program.fingerprint, program.name)
        if not self._member.compare(comparison, self.ranks, self._timeout):
            self.check()
            raise self._find_failure(f"waited {self._timeout:.0f} s for the others to launch `{program.name}`")
        self._confirmed = launches[0]

    def compare_value(self, value: np.ndarray[Any, Any], type: str) -> None:
        """Wait until all processes are about to use this value, which each host computed.

        Raises:
            PeerFailure: if a process fails first, or does not arrive within the timeout.
            ProgramMismatch: if the values differ.
        """
        frame = user_frame()
        where = f" at {format_line(frame.f_code.co_filename, frame.f_lineno)}" if frame is not None else ""
        numbers = np.array2string(value.reshape(-1), threshold=1000, max_line_width=100)
        content = f"{type} {value.shape}".encode() + value.tobytes()
        self._compare(_Program(f"{VALUE}{type}{where}", numbers, content))

    def confirm(self) -> None:
        """Wait until this process's launches are confirmed to equal the others' launches, up to the slowest process.

        A value that the host reads next must be ready. Then every process that takes part in its computation has
        launched its program, and no process waits for a slower one. Launches that another process has not made yet are
        compared at a later read.

        Raises:
            PeerFailure: if a process fails first, or does not answer within the timeout.
            ProgramMismatch: if processes launched different programs.
        """
        for each in self._with_sources():
            each._confirm_launches()
        for source in tuple(self._sources):
            if source.is_confirmed:
                self._sources.discard(source)

    def _confirm_launches(self) -> None:
        count, rolling_hash = self._launches.count_and_hash()
        if count <= self._confirmed:
            return
        self.check()  # there is no answer if the coordinator is lost, or after shutdown
        confirmed = self._member.confirm(self.name, count, rolling_hash, self.ranks, self._timeout)
        if confirmed is None:
            self.check()
            raise self._find_failure(f"waited {self._timeout:.0f} s to compare its launches with the others'")
        self._confirmed = max(self._confirmed, confirmed)

    @property
    def is_confirmed(self) -> bool:
        """Whether all launches, and the launches that computed their operands, are confirmed to equal the others'."""
        return all(each._launches.count <= each._confirmed for each in self._with_sources())

    def add_source(self, source: "ProcessSet | None") -> None:
        """Record that results of another set are operands of launches on this one, so that `confirm` confirms both."""
        if source is not None and source is not self and not source.is_confirmed:
            self._sources.add(source)

    def _with_sources(self) -> "list[ProcessSet]":
        """Return this set and all sets that computed operands of its launches."""
        if not self._sources:
            return [self]
        sets = [self]
        for each in sets:  # grows during the loop
            sets += [source for source in tuple(each._sources) if source not in sets]
        return sets

    def explain(self, error: RuntimeFailure, where: str) -> None:
        """Raise the failure of another process that caused an XLA error; otherwise return."""
        text = str(error)
        is_lost = any(words in text for words in _LOST)
        if not is_lost and not any(words in text for words in _TIMED_OUT):
            return
        saw = "lost a connection" if is_lost else f"waited more than {self._timeout:.0f} s"
        raise self._find_failure(f"{saw} in {where}", is_lost) from error

    def _find_failure(self, reason: str, lost: bool = False) -> PeerFailure | ProgramMismatch:
        """Return the reason why this process waits in vain: the first known failure, or the coordinator's verdict."""
        known = self._member.error(self.name, self.ranks)
        if known is not None:
            return known
        verdict = self._member.ask_for_failure(self.name, reason, lost)
        return self._member.error(self.name, self.ranks) or verdict

    def wait(self, awaited: Buffers | Token, describe: Callable[[], str]) -> None:
        """Wait for buffers or a token of a run on this set, unless another process fails first.

        It returns at once if only this process is needed to complete the run.

        Args:
            awaited: the buffers or the token.
            describe: describes the awaited value, for errors.

        Raises:
            PeerFailure: if a process fails before the run ends, or the run takes longer than the timeout.
            ProgramMismatch: if processes launched different programs.
        """
        if self._collective_runs.have_ended():
            return  # no run waits for another process
        start = time.monotonic()
        is_ready = getattr(awaited, "is_ready", None)
        if is_ready is None:  # a token, which cannot be polled
            ended = self._waiters.wait(awaited, self._has_failed, self._timeout)
        else:
            ended = self._poll(is_ready)
            if not ended:  # XLA still runs it, and `drain` must wait for its end
                self._waiters.watch(awaited)
        self._member.pace.add_wait(start)
        if not ended:
            self.check()
            raise self._find_failure(f"waited {self._timeout:.0f} s for {describe()}")

    def _poll(self, is_ready: Callable[[], bool]) -> bool:
        """Wait until a value is ready. Return False if a failure or the timeout comes first."""
        if is_ready():
            return True
        start, limit = time.monotonic(), self._timeout
        elapsed = 0.0
        while elapsed < limit:
            time.sleep(min(max(elapsed * _SLEEP_PART, _SHORTEST_SLEEP), _LONGEST_SLEEP))
            if is_ready():
                return True
            elapsed = time.monotonic() - start
            if limit == self._timeout and self._has_failed():
                limit = elapsed + _GRACE
        return False

    def _has_failed(self) -> bool:
        """Return whether a process of the set has failed, or has launched another program."""
        return self._member.error(self.name, self.ranks) is not None

    def wait_for_token(self, token: Token) -> None:
        """Wait until a run on this set is complete, as `wait` does."""
        self.wait(token, lambda: "an earlier program")

    def program_text(self, fingerprint: int) -> str | None:
        """Return the name and the contents of a program, on separate lines; None if it is unknown."""
        candidate = self._candidate
        is_candidate = candidate is not None and candidate.fingerprint == fingerprint
        program = candidate if is_candidate else self.programs.get(fingerprint)
        return None if program is None else f"{program.name}\n{program.text}"

    def progress(self) -> list[int]:
        """Return the number of launches, their rolling hash, and the number of comparisons."""
        return [*self._launches.count_and_hash(), self.comparisons]

    def launched(self) -> dict[int, int]:
        """Return the fingerprints of the last launches, by launch index from 1."""
        return self._launches.by_number()

    def hash_after(self, count: int) -> tuple[int, int]:
        """Return the rolling hash after `count` launches, or after the most launches before that with a known hash."""
        return self._launches.hash_after(count)


@final
class LaunchHistory:
    """The fingerprints of the launched programs, in order.

    A launch only appends to `recent`, to take little time. `fold` adds these launches to the rolling hash.
    """

    def __init__(self) -> None:
        self.recent: list[int] = []
        self.folded = 0  # the number of launches before `recent`
        self._hash = 0
        self._history = array("Q")  # the last launches before `recent`, at least `_HISTORY`
        self._marks: deque[tuple[int, int]] = deque(maxlen=2 * _HISTORY // REPORT_INTERVAL)  # at each `fold`
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """The number of launches."""
        with self._lock:
            return self.folded + len(self.recent)

    def count_and_hash(self) -> tuple[int, int]:
        """Return the number of launches and their rolling hash."""
        with self._lock:
            return self._folded(list(self.recent))

    def fold(self) -> None:
        """Add the launches of `recent` to the hash and to the history."""
        with self._lock:
            # Exactly this many, although other threads may have launched more, so that the marks reach as far back as
            # the history, and the hash after any number of launches in it can be computed from the mark before.
            first = self.recent[:REPORT_INTERVAL]
            self.folded, self._hash = self._folded(first)
            self._history.extend(first)
            if len(self._history) >= 2 * _HISTORY:  # so rarely that its cost per launch is negligible
                del self._history[:-_HISTORY]
            self._marks.append((self.folded, self._hash))
            del self.recent[: len(first)]

    def by_number(self) -> dict[int, int]:
        """Return the last fingerprints, by launch index from 1."""
        with self._lock:
            last = self._history[-_REPORTED:]
            return dict(enumerate([*last, *self.recent], self.folded - len(last) + 1))

    def hash_after(self, count: int) -> tuple[int, int]:
        """Return the rolling hash after `count` launches, or after the most launches before that with a known hash."""
        with self._lock:
            position = bisect_right(self._marks, count, key=lambda mark: mark[0])
            marked, rolling = self._marks[position - 1] if position else (0, 0)
            if marked >= self.folded:
                return _roll(marked, rolling, self.recent[: count - marked])
            first = self.folded - len(self._history)  # the number of launches before the history
            if marked < first:
                return marked, rolling
            return _roll(marked, rolling, self._history[marked - first : count - first])

    def _folded(self, fingerprints: list[int]) -> tuple[int, int]:
        """Return the number and the hash of all launches up to these fingerprints, inclusive."""
        return _roll(self.folded, self._hash, fingerprints)


def _roll(count: int, rolling: int, fingerprints: Sequence[int]) -> tuple[int, int]:
    """Return the number and the hash of launches after these fingerprints are added."""
    for fingerprint in fingerprints:
        rolling = (rolling * _MULTIPLIER + fingerprint) & _MASK
    return count + len(fingerprints), rolling


@final
class CollectiveRuns:
    """The last run with collectives on each process set.

    The processes of a set launch the same programs in the same order. So when this run has ended, all of them have
    launched the earlier programs, and no run on this set waits for a launch.
    """

    def __init__(self) -> None:
        self._last: dict[str, Callable[[], Any] | None] = {}  # returns a result; None if the run has none
        self._ended: dict[str, Callable[[], Any]] = {}  # the last runs that are known to have ended

    def add(self, processes: str, results: Sequence[Any], small: int | None = None) -> None:
        """Record a run on a set of processes, and its results.

        The buffers of a small result are kept, because completion cannot be observed once all results are dropped.
        """
        if small is not None:
            buffers = results[small].buffers
            self._last[processes] = lambda: buffers
        else:
            # A weak reference, so that a large result does not stay in memory for this.
            self._last[processes] = ref(results[0]) if results else None

    def have_ended(self) -> bool:
        """Return whether the runs are known to have ended on all sets."""
        return all(self._has_ended(*each) for each in tuple(self._last.items()))

    def _has_ended(self, processes: str, last: Callable[[], Any] | None) -> bool:
        if last is None:
            return False
        if self._ended.get(processes) is last:
            return True
        result = last()
        if result is None or result.is_deleted() or not result.is_ready():
            return False
        self._ended[processes] = last
        return True


@final
class _Wait:
    """One wait for XLA: the awaited object, whether it is ready, and a lock that is released then."""

    __slots__ = ("awaited", "is_over", "wakeup")

    def __init__(self, awaited: Buffers | Token):
        self.awaited = awaited
        self.is_over = False
        self.wakeup = threading.Lock()
        self.wakeup.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it has been woken already
            self.wakeup.release()


@final
class Waiters:
    """Threads that wait for XLA, so that the thread that needs the result can be interrupted or woken by a failure."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Wait] = SimpleQueue()
        self._waits: set[_Wait] = set()
        self._lock = threading.Lock()
        self._idle = 0  # threads without work
        self._busy = 0  # threads that wait for XLA

    def wait(self, awaited: Buffers | Token, has_failed: Callable[[], bool], timeout: float) -> bool:
        """Wait until `awaited.block_until_ready()` returns or raises. Return False if a failure or timeout comes first.

        After a failure, ready values can still be read, so there is a short grace period.
        """
        wait = self.watch(awaited)
        with self._lock:
            self._waits.add(wait)
        end = time.monotonic() + (_GRACE if has_failed() else timeout)
        try:
            while not wait.is_over and wait.wakeup.acquire(timeout=max(0.0, end - time.monotonic())):
                if has_failed():
                    end = min(end, time.monotonic() + _GRACE)
            return wait.is_over
        finally:
            with self._lock:
                self._waits.discard(wait)

    def watch(self, awaited: Buffers | Token) -> "_Wait":
        """Let a thread wait until `awaited.block_until_ready()` returns or raises; `drain` waits for that thread."""
        wait = _Wait(awaited)
        with self._lock:
            self._busy += 1
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._serve, name="shardwise wait", daemon=True).start()
        self._queue.put(wait)
        return wait

    def drain(self, timeout: float) -> bool:
        """Wait until no thread waits for XLA. Return False after `timeout` seconds.

        Python ends a thread that returns from C++ while the interpreter shuts down, which aborts the process.
        """
        end = time.monotonic() + timeout
        while self._busy and time.monotonic() < end:
            time.sleep(0.01)
        return not self._busy

    def wake_all(self) -> None:
        """Let all waits check whether a process failed."""
        with self._lock:
            waits = list(self._waits)
        for wait in waits:
            wait.wake()

    def _serve(self) -> None:
        while True:
            wait = self._queue.get()
            with suppress(RuntimeFailure, ValueError):  # the thread that needs the result gets the error
                wait.awaited.block_until_ready()
            wait.is_over = True
            with self._lock:
                self._idle += 1
                self._busy -= 1
            wait.wake()
            del wait
