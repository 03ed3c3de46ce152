"""Executable: a compiled program, its placements, and the call."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from shardwise._jaxlib import CompilerOptions, compile_text, launcher, result_handler
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.lower import StableHlo
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.config import config
from shardwise.lazy import lazy_module
from shardwise.runtime.array import Array, ResultTemplate, array_signature
from shardwise.runtime.callbacks import Callbacks
from shardwise.runtime.sharding import Sharding

if TYPE_CHECKING:
    from shardwise.runtime import compilation_cache
else:  # its imports take a fiftieth of the time to import the package, and few programs use it
    compilation_cache = lazy_module("shardwise.runtime.compilation_cache")


@final
class Executable:
    """`run` takes buffers that already lie as the program's inputs do."""

    __slots__ = ("loaded", "out_shardings", "run")

    def __init__(
        self,
        module: StableHlo,
        local: LocalProgram,
        devices: Sequence[Any],
        out_shardings: Sequence[Sharding],
        committed: bool,
        out_types: Sequence[ArrayType] = (),
        asked: CompilerOptions = (),
    ):
        callbacks = Callbacks(module.callbacks, len(devices))
        self.loaded = _compiled(module.text, devices, callbacks.functions, asked)
        handlers = [
            result_handler(placement.shard_shape(local.mesh), placement.type.dtype, devices)
            for placement in local.outputs
        ]
        here = len(devices) > 1 and devices[0].platform == "cpu"
        meet = "replica_groups" in module.text or "source_target_pairs" in module.text
        self.out_shardings = tuple(out_shardings)
        types = out_types or [placement.type for placement in local.outputs]
        shells = ResultTemplate([array_signature(*each, committed) for each in zip(types, out_shardings, strict=True)])
        calls = bool(module.callbacks)
        launch = launcher(self.loaded, handlers, shells.empty, shells.filled, wait=calls, meets=here and meet)
        self.run: Callable[[list[Any]], list[Array]] = callbacks.run()(launch) if calls else launch

    def texts(self) -> list[str]:
        """XLA's text of each module, optimised."""
        return [module.to_string() for module in self.loaded.hlo_modules()]


def _compiled(text: str, devices: Sequence[Any], callbacks: Sequence[Any], asked: CompilerOptions) -> Any:
    """The executable of a module: compiled now, or from the cache on disk, which keeps none that calls into this
    process. What the cache needs takes a fiftieth of the time to import all of this: it is imported where it is on."""
    if config.enable_compilation_cache and config.compilation_cache_dir and not callbacks:
        return compilation_cache.compiled(text, devices, asked)
    return compile_text(text, devices, callbacks, asked)
