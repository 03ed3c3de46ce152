"""Executable: a compiled program, its placements, and the call."""

from collections.abc import Sequence
from typing import Any, final

from shardwise._jaxlib import launcher, result_handler
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.lower import StableHlo
from shardwise.compiler.partition.local import LocalProgram
from shardwise.runtime.array import Array, signature
from shardwise.runtime.cache import compiled
from shardwise.runtime.callbacks import Callbacks
from shardwise.runtime.sharding import Sharding


@final
class Executable:
    """Runs on buffers that already lie as the program's inputs do."""

    __slots__ = ("_callbacks", "_launch", "_out_signatures", "loaded", "out_shardings")

    def __init__(
        self,
        module: StableHlo,
        local: LocalProgram,
        devices: Sequence[Any],
        out_shardings: Sequence[Sharding],
        committed: bool,
        out_types: Sequence[ArrayType] = (),
    ):
        self._callbacks = Callbacks(module.callbacks, len(devices))
        self.loaded = compiled(module.text, devices, self._callbacks.functions)
        handlers = [
            result_handler(placement.piece_shape(local.mesh), placement.type.dtype, devices)
            for placement in local.outputs
        ]
        here = len(devices) > 1 and devices[0].platform == "cpu"
        meet = "replica_groups" in module.text or "source_target_pairs" in module.text
        self._launch = launcher(self.loaded, handlers, wait=bool(module.callbacks), paced=here and meet)
        self.out_shardings = tuple(out_shardings)
        self._out_signatures = [
            signature(type, sharding, committed)
            for type, sharding in zip(out_types or [p.type for p in local.outputs], out_shardings, strict=True)
        ]

    def texts(self) -> list[str]:
        """XLA's text of each module, optimised."""
        return [module.to_string() for module in self.loaded.hlo_modules()]

    def __call__(self, buffers: list[Any]) -> list[Array]:
        if not self._callbacks.functions:
            return list(map(Array, self._launch(buffers), self._out_signatures))
        with self._callbacks.run():
            results = self._launch(buffers)
        return list(map(Array, results, self._out_signatures))
