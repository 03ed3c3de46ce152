"""Transfers: send arrays from the mesh of one rank to the mesh of another, in this process or between processes."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.execute.point_to_point import receive, send
from shardwise.execute.transfer import transfer
from shardwise.processes.channels import Channels
from shardwise.runtime.array import ArrayImpl


@final
class Transfers:
    """Sends lists of arrays, which tags identify. A transfer runs beside the programs of both ranks.

    Args:
        channels: the connections to other processes; None if all ranks are in this process.
        step: the index of the step, which distinguishes its tags from the tags of other steps.
    """

    def __init__(self, channels: Channels | None, step: int):
        self._channels = channels
        self._step = step
        self._arrays: dict[str, list[Any]] = {}  # on the target, or on the source if other processes take part

    def send(self, tag: str, arrays: Sequence[ArrayImpl], targets: Sequence[Sharding]) -> None:
        """Start to send arrays to other shardings. Each process of the arrays' devices calls this."""
        if self._channels is None or _are_addressable(targets, [array.sharding for array in arrays]):
            self._arrays[tag] = [transfer(array, target) for array, target in zip(arrays, targets, strict=True)]
            return
        for index, (array, target) in enumerate(zip(arrays, targets, strict=True)):
            send(array, target, self._tag(tag, index), self._channels)
        if any(target.has_addressable_devices for target in targets):
            self._arrays[tag] = list(arrays)

    def receive(
        self, tag: str, types: Sequence[ArrayType], sources: Sequence[Sharding], targets: Sequence[Sharding]
    ) -> list[ArrayImpl]:
        """Return the arrays that were sent with a tag, once. Each process of the targets' devices calls this.

        Args:
            tag: the tag.
            types: the types of the arrays.
            sources: the shardings of the arrays where they were sent.
            targets: the shardings to which they were sent.
        """
        if self._channels is None or _are_addressable(targets, sources):
            return self._arrays.pop(tag, [])
        kept = self._arrays.pop(tag, [None] * len(types))
        return [
            receive(type, source, target, self._tag(tag, index), self._channels, array)
            for index, (type, source, target, array) in enumerate(zip(types, sources, targets, kept, strict=True))
        ]

    def _tag(self, tag: str, index: int) -> str:
        return f"{self._step}/{tag}/{index}"


def _are_addressable(targets: Sequence[Sharding], sources: Sequence[Sharding]) -> bool:
    """Return whether all devices belong to this process."""
    return all(sharding.is_fully_addressable for sharding in (*targets, *sources))
