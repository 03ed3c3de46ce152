"""Transfers: send arrays from the mesh of one rank to the mesh of another."""

from collections.abc import Sequence
from typing import final

from shardwise.compiler.shardings.sharding import Sharding
from shardwise.execute.transfer import transfer
from shardwise.runtime.array import ArrayImpl


@final
class Transfers:
    """Sends lists of arrays, which tags identify. A transfer runs beside the programs of both ranks."""

    def __init__(self) -> None:
        self._arrived: dict[str, list[ArrayImpl]] = {}

    def send(self, tag: str, arrays: Sequence[ArrayImpl], targets: Sequence[Sharding]) -> None:
        """Start to send arrays to other shardings."""
        self._arrived[tag] = [transfer(array, target) for array, target in zip(arrays, targets, strict=True)]

    def receive(self, tag: str) -> list[ArrayImpl]:
        """Return the arrays that were sent with a tag, once."""
        return self._arrived.pop(tag)
