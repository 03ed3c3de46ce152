"""Group: processes that exchange messages, such as the processes that save and restore one checkpoint together."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, final

from shardwise.base._jaxlib import RuntimeFailure
from shardwise.errors import CheckpointError, PeerFailure
from shardwise.runtime.client import process_count, process_index
from shardwise.runtime.cluster import cluster

_POLL_MILLISECONDS = 500
_HEARTBEATS = 4  # per timeout of the other processes
_LONGEST_WORK = 3600.0  # seconds without progress after which a working process stops its heartbeats


@final
class Group:
    """Processes of the program that make the same calls, in the same order.

    Args:
        name: the purpose of the group, the same in all processes. Groups with one name are distinguished by their
            order.
        timeout: the seconds to wait for a process that sends no heartbeat of `working`; by default, the peer timeout of
            `distributed.initialize`.
        processes: the ranks of the processes; by default, all.
        advice: what every process must do, for the error about a process that does not answer.

    Attributes:
        name: the purpose of the group.
        processes: the ranks of its processes, in ascending order.
        count: the number of processes in the group.
        index: the position of this process in the group.

    Raises:
        ValueError: if this process is not in the group.
    """

    def __init__(
        self,
        name: str,
        timeout: float | None = None,
        processes: Sequence[int] | None = None,
        advice: str = "Every process must save and restore the same steps, in the same order",
    ):
        self.processes = sorted(processes) if processes is not None else list(range(process_count()))
        if process_index() not in self.processes:
            raise ValueError(f"{name}: this is process {process_index()}, which is not one of {self.processes}")
        self.count, self.index = len(self.processes), self.processes.index(process_index())
        self.name = name
        self._advice = advice
        self._members = ",".join(map(str, self.processes))
        cluster.group_counts[name, self._members] += 1
        self._keys = f"checkpoint/{name}/{self._members}/{cluster.group_counts[name, self._members]}"
        self._member = cluster.member
        self._timeout = cluster.timeouts.peer if timeout is None else timeout
        self._number = 0
        self._last_progress = 0.0

    def exchange(self, message: object) -> list[Any]:
        """Return the messages of all processes of the group, by position in the group. A message is JSON.

        Raises:
            PeerFailure: if a process fails, or does not answer in time.
        """
        if self.count == 1:
            return [message]
        self._number += 1
        prefix = f"{self._keys}/{self._number}"
        self._check_member()
        content = json.dumps(message)
        cluster.store.key_value_set(f"{prefix}/{self.index}", content)
        start = time.monotonic()
        messages = [
            json.loads(content if index == self.index else self._wait_for(f"{prefix}/{index}", process))
            for index, process in enumerate(self.processes)
        ]
        if self._member is not None:
            self._member.pace.add_wait(start)
        return messages

    def _wait_for(self, key: str, process: int) -> str:
        """Return the message of a process, or raise the failure of a process of the group."""
        heartbeat: str | None = None  # it is read when the process has not come at once
        deadline = 0.0
        while True:
            self._check_member()
            if cluster.member is not None and (failure := cluster.member.error(self.name, self.processes)) is not None:
                raise failure
            try:
                return str(cluster.store.blocking_key_value_get(key, _POLL_MILLISECONDS))
            except RuntimeFailure as error:
                if heartbeat is None:
                    heartbeat, deadline = _last_heartbeat(process), time.monotonic() + self._timeout
                if time.monotonic() <= deadline:
                    continue
                if (latest := _last_heartbeat(process)) == heartbeat:
                    raise self._failure(process) from error
                heartbeat, deadline = latest, time.monotonic() + self._timeout

    def _check_member(self) -> None:
        """Raise an error if this process has joined other processes since the group was created."""
        if cluster.member is not self._member:
            raise PeerFailure(-1, None, f"the processes of {self.name} have failed, and this one has left them")

    def _failure(self, process: int) -> PeerFailure:
        """Return the failure because of which this process cannot receive the message of another one."""
        reason = f"waited {self._timeout:g} s for process {process} in {self.name}"
        verdict = None if cluster.member is None else cluster.member.ask_for_failure(self._members, reason)
        if verdict is not None and verdict.rank >= 0:
            return verdict
        explanation = "" if verdict is None else f" ({verdict.reason})"
        return PeerFailure(
            process,
            None,
            f"it did not reach {self.name} within {self._timeout:g} s. {self._advice}{explanation}",
        )

    @contextmanager
    def working(self) -> Iterator[None]:
        """Send heartbeats in a `with` block that accesses files, so that others wait beyond the timeout.

        A stopped process sends none. Nor does a process without progress for an hour, because its storage hangs.
        """
        if self.count == 1:
            yield
            return
        stop = threading.Event()
        self.report_progress()
        thread = threading.Thread(
            target=self._send_heartbeats, args=(stop,), name=f"heartbeat of {self.name}", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def report_progress(self) -> None:
        """Record that the work of this process advances."""
        self._last_progress = time.monotonic()

    def _send_heartbeats(self, stop: threading.Event) -> None:
        with suppress(RuntimeFailure):  # without the store, the processes fail in any case
            while (store := cluster.store) and time.monotonic() - self._last_progress < _LONGEST_WORK:
                store.key_value_set(_heartbeat_key(process_index()), str(time.monotonic_ns()), allow_overwrite=True)
                if stop.wait(self._timeout / _HEARTBEATS):
                    return

    def gather(self, function: Callable[[], Any]) -> list[Any]:
        """Return the results of a function in all processes, by position in the group; JSON.

        Raises:
            Exception: if the function fails in a process: its own error there, a CheckpointError in the others.
        """
        result, error = None, None
        try:
            with self.working():
                result = function()
        except Exception as failure:
            error = failure
        return self._exchange_results(result, error)

    def agree(self, error: Exception | None) -> None:
        """Raise an error in every process if one failed: its own error there, a CheckpointError in the others."""
        self._exchange_results(None, error)

    def _exchange_results(self, result: object, error: Exception | None) -> list[Any]:
        if isinstance(error, PeerFailure):
            raise error  # at once, because the others detect it themselves
        messages = self.exchange([None if error is None else f"{type(error).__name__}: {error}", result])
        if error is not None:
            raise error
        for process, (failure, _) in zip(self.processes, messages, strict=True):
            if failure is not None:
                raise CheckpointError(f"{self.name}: process {process} failed: {failure}")
        return [value for _, value in messages]


def _heartbeat_key(process: int) -> str:
    return f"checkpoint/heartbeat/{process}"


def _last_heartbeat(process: int) -> str:
    """Return the last heartbeat of a process that reads or writes files; "" if it sent none."""
    try:
        return str(cluster.store.key_value_try_get(_heartbeat_key(process)))
    except RuntimeFailure:
        return ""
