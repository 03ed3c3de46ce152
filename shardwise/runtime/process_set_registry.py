"""Process sets: the sets of processes on which this process runs programs. A single-process program has none.

The checks of launches are in `process_set.py`, which `distributed.initialize` imports, so that single-process programs
do not pay for them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from shardwise.base._jaxlib import RuntimeFailure
from shardwise.base.lazy import lazy_module
from shardwise.errors import PeerFailure, ProgramMismatch

if TYPE_CHECKING:
    import json

    from shardwise.processes.member import Member
    from shardwise.runtime import process_set
    from shardwise.runtime.gloo_connections import GlooConnections
    from shardwise.runtime.retained_executables import RetainedExecutables
    from shardwise.runtime.shared_executables import SharedExecutables
else:  # their imports take 2.5 ms and 66 ms, and only multi-process programs need them
    json = lazy_module("json")
    process_set = lazy_module("shardwise.runtime.process_set")


@final
class _ProcessSets:
    """The process sets on which this process has launched programs; none without `distributed.initialize`."""

    def __init__(self) -> None:
        self.member: Member | None = None
        self.executables: SharedExecutables | None = None
        self.gloo: GlooConnections | None = None
        self.retained: RetainedExecutables | None = None  # in programs that recover from failures
        self._sets: dict[tuple[int, ...], process_set.ProcessSet] = {}
        self._timeout = 0.0
        self._waiters: process_set.Waiters | None = None
        self._collective_runs: process_set.CollectiveRuns | None = None

    def connect(self, member: "Member", timeout: float) -> None:
        """Check launches on several processes from now on. `timeout` is the time to wait for a process, in seconds."""
        self.member, self._timeout, self._sets = member, timeout, {}
        self._waiters = process_set.Waiters()
        self._collective_runs = process_set.CollectiveRuns()
        member.launches = self._progress
        member.on_failure = self._note_failure
        member.answers.update(program=self._program, launch=self._launch, history=self._history, hash=self._hash)

    def _note_failure(self) -> None:
        """Wake the threads that wait for XLA, and end the runs that wait for a failed process."""
        waiters, gloo = self._waiters, self.gloo
        if waiters is not None:
            waiters.wake_all()
        if gloo is not None:
            gloo.abort_after_failure()

    def disconnect(self) -> None:
        """Discard all sets, as in a forked child, which lacks the threads that wait for XLA."""
        self.member, self._sets, self._waiters, self._collective_runs = None, {}, None, None
        self.executables = self.gloo = None

    def may_wait(self) -> bool:
        """Return whether a run of this process may wait for another process."""
        return self._collective_runs is not None and not self._collective_runs.have_ended()

    def drain(self, timeout: float) -> bool:
        """Wait until XLA's runs that other processes do not complete have ended. Return False at the timeout."""
        return self._waiters is None or self._waiters.drain(timeout)

    def get(self, ranks: tuple[int, ...]) -> "process_set.ProcessSet | None":
        """Return the set of these processes; None if it is a single process, or does not contain this process."""
        if self.member is None or len(ranks) < 2 or self.member.rank not in ranks:
            return None
        if ranks not in self._sets:
            assert self._waiters is not None and self._collective_runs is not None
            self._sets[ranks] = process_set.ProcessSet(
                ranks, self.member, self._waiters, self._collective_runs, self._timeout
            )
        return self._sets[ranks]

    def explain(self, error: RuntimeFailure, where: str, sets: "Sequence[process_set.ProcessSet]" = ()) -> None:
        """Raise `PeerFailure` if an error comes from the failure of another process; otherwise return.

        Args:
            error: the error of XLA.
            where: the operation that failed, for errors.
            sets: the sets on which the failed program may have run; by default, all. The failures of other sets cannot
                be the cause, because programs continue without a failed process.
        """
        if self.member is not None and self._sets and not isinstance(error, (PeerFailure, ProgramMismatch)):
            candidates = sets or self._sets.values()
            max(candidates, key=lambda processes: len(processes.ranks)).explain(error, where)

    def _progress(self) -> dict[str, list[int]]:
        sets = list(self._sets.values())
        return {processes.name: processes.progress() for processes in sets}

    def _program(self, fingerprint: str) -> str:
        texts = (processes.program_text(int(fingerprint)) for processes in list(self._sets.values()))
        return next((text for text in texts if text is not None), "")

    def _launch(self, detail: str) -> str:
        """Return the program of a launch: "0,1 12" is the launch after 12 launches on the processes 0 and 1."""
        name, _, number = detail.partition(" ")
        processes = self._sets.get(tuple(map(int, name.split(","))))
        fingerprint = processes.launched().get(int(number) + 1) if processes is not None else None
        return self._program(str(fingerprint)) if fingerprint is not None else ""

    def _hash(self, detail: str) -> str:
        """Return the number and the hash of launches: "0,1 12" are the first 12 or fewer on the processes 0 and 1."""
        name, _, count = detail.partition(" ")
        processes = self._sets.get(tuple(map(int, name.split(","))))
        return "0 0" if processes is None else " ".join(map(str, processes.hash_after(int(count))))

    def _history(self, name: str) -> str:
        """Return the names of the last launches on a set of processes, as JSON."""
        processes = self._sets.get(tuple(map(int, name.split(","))))
        if processes is None:
            return ""
        programs = processes.programs
        return json.dumps({number: programs[each].label for number, each in processes.launched().items()})


process_sets = _ProcessSets()
