"""Executable: a compiled program, its placements, and the call."""

from collections.abc import Sequence
from typing import Any, final

from shardwise._jaxlib import compile_text, launcher, result_handler
from shardwise.compiler.lower.lower import StableHlo
from shardwise.compiler.partition.local import LocalProgram
from shardwise.runtime.array import Array, signature
from shardwise.runtime.client import client
from shardwise.runtime.sharding import Sharding


@final
class Executable:
    """Runs on buffers that already lie as the program's inputs do."""

    __slots__ = ("_launch", "_out_signatures", "loaded", "out_shardings")

    def __init__(
        self,
        module: StableHlo,
        local: LocalProgram,
        devices: Sequence[Any],
        out_shardings: Sequence[Sharding],
        committed: bool,
    ):
        self.loaded = compile_text(client.get(), module.text, devices)
        handlers = [
            result_handler(placement.piece_shape(local.mesh), placement.type.dtype, devices)
            for placement in local.outputs
        ]
        self._launch = launcher(self.loaded, handlers)
        self.out_shardings = tuple(out_shardings)
        self._out_signatures = [
            signature(placement.type, sharding, committed)
            for placement, sharding in zip(local.outputs, out_shardings, strict=True)
        ]

    def __call__(self, buffers: list[Any]) -> list[Array]:
        return list(map(Array, self._launch(buffers), self._out_signatures))
