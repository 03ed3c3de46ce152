"""Group: the processes that save and restore one checkpoint together."""

import json
from typing import Any, final

from shardwise.errors import CheckpointError
from shardwise.runtime.client import process_count, process_index
from shardwise.runtime.cluster import cluster


@final
class Group:
    """All processes of the program. Every process makes the same calls, in the same order.

    Args:
        name: what the group does, the same in all processes: it is part of the keys under which messages are exchanged.
        timeout: how many seconds to wait for the others.
    """

    def __init__(self, name: str, timeout: float):
        self.count, self.index = process_count(), process_index()
        self._name = name
        self._timeout = timeout
        self._number = 0

    def exchange(self, message: Any) -> list[Any]:
        """Return the messages of all processes, by process. A message is JSON.

        Raises:
            CheckpointError: if a process does not answer in time.
        """
        if self.count == 1:
            return [message]
        self._number += 1
        prefix = f"checkpoint/{self._name}/{self._number}"
        cluster.store.key_value_set(f"{prefix}/{self.index}", json.dumps(message))
        messages = []
        for process in range(self.count):
            try:
                text = cluster.store.blocking_key_value_get(f"{prefix}/{process}", int(1000 * self._timeout))
            except Exception as error:
                raise CheckpointError(
                    f"{self._name}: process {process} did not answer within {self._timeout:g} s: {error}"
                ) from error
            messages.append(json.loads(text))
        return messages

    def agree(self, error: Exception | None) -> None:
        """Raise an error in every process if one of them failed: its own there, a CheckpointError in the others."""
        messages = self.exchange(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        failed = [(process, message) for process, message in enumerate(messages) if message is not None]
        if failed:
            process, message = failed[0]
            raise CheckpointError(f"{self._name}: process {process} failed: {message}")
