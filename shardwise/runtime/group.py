"""Group: processes that exchange messages, such as those that save and restore one checkpoint together."""

import json
import time
from collections.abc import Sequence
from typing import Any, final

from shardwise._jaxlib import RuntimeFailure
from shardwise.errors import CheckpointError, PeerFailure
from shardwise.runtime.client import process_count, process_index
from shardwise.runtime.cluster import cluster

_POLL_MILLISECONDS = 500


@final
class Group:
    """Processes of the program that make the same calls, in the same order.

    Args:
        name: what the group does, the same in all processes: it is part of the keys under which messages are exchanged.
        timeout: how many seconds to wait for the others.
        processes: the numbers of the processes; by default, all.

    Attributes:
        name: what the group does.
        processes: the numbers of its processes, in ascending order.
        count: the number of processes in the group.
        index: the position of this process in the group.

    Raises:
        ValueError: if this process is not in the group.
    """

    def __init__(self, name: str, timeout: float, processes: Sequence[int] | None = None):
        self.processes = sorted(processes) if processes is not None else list(range(process_count()))
        if process_index() not in self.processes:
            raise ValueError(f"{name}: this is process {process_index()}, which is not one of {self.processes}")
        self.count, self.index = len(self.processes), self.processes.index(process_index())
        self.name = name
        self._timeout = timeout
        self._number = 0

    def exchange(self, message: Any) -> list[Any]:
        """Return the messages of all processes of the group, in their order. A message is JSON.

        Raises:
            CheckpointError: if a process does not answer in time.
            PeerFailure: if a process fails.
        """
        if self.count == 1:
            return [message]
        self._number += 1
        members = ",".join(map(str, self.processes))
        prefix = f"checkpoint/{self.name}/{members}/{self._number}"
        cluster.store.key_value_set(f"{prefix}/{self.index}", json.dumps(message))
        return [json.loads(self._wait_for(f"{prefix}/{index}", self.processes[index])) for index in range(self.count)]

    def _wait_for(self, key: str, process: int) -> str:
        """Return the message of a process, or raise the failure of one of the group."""
        deadline = time.monotonic() + self._timeout
        while True:
            if cluster.member is not None and (failure := cluster.member.error(self.name, self.processes)) is not None:
                raise failure
            try:
                return str(cluster.store.blocking_key_value_get(key, _POLL_MILLISECONDS))
            except RuntimeFailure as error:
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"{self.name}: process {process} did not answer within {self._timeout:g} s"
                    ) from error

    def agree(self, error: Exception | None) -> None:
        """Raise an error in every process if one of them failed: its own there, a CheckpointError in the others.

        The failure of a process is raised at once: the others find it themselves.
        """
        if isinstance(error, PeerFailure):
            raise error
        messages = self.exchange(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        failed = [(index, message) for index, message in enumerate(messages) if message is not None]
        if failed:
            index, message = failed[0]
            raise CheckpointError(f"{self.name}: process {self.processes[index]} failed: {message}")
