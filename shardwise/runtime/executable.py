"""Executable: a program compiled by XLA, and the function that runs it on buffers."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from shardwise.base._jaxlib import (
    CompilerOptions,
    compile_for_topology,
    compile_text,
    is_compile_only,
    launcher,
    result_handler,
)
from shardwise.base.config import config
from shardwise.base.lazy import lazy_module
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.lower import StableHlo
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.shardings.mesh import ranks_of
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.errors import DeviceMismatchError
from shardwise.runtime.array import ArrayImpl, ResultTemplate, array_signature
from shardwise.runtime.binary import Binary
from shardwise.runtime.callbacks import Callbacks
from shardwise.runtime.process_set_registry import process_sets
from shardwise.runtime.thread_guard import guard

if TYPE_CHECKING:
    from shardwise.runtime import compilation_cache
    from shardwise.runtime.cache_stores import CacheStore
else:  # its import takes 9 ms, and few programs use it
    compilation_cache = lazy_module("shardwise.runtime.compilation_cache")


_LARGEST_KEPT = 1 << 12  # the most bytes of a result that processes keep until their next run with collectives

# Called with the client before a program is compiled; they may raise an error.
compile_checks: list[Callable[[Any], None]] = []


@final
class Executable:
    """A compiled program. `run` accepts buffers that have the shardings of the program's inputs."""

    __slots__ = ("binary", "can_run", "has_callbacks", "out_shardings", "processes", "run")
    run: Callable[[list[Any]], list[ArrayImpl]]

    def __init__(
        self,
        module: StableHlo,
        local: LocalProgram,
        devices: Sequence[Any],
        out_shardings: Sequence[Sharding],
        committed: bool,
        out_types: Sequence[ArrayType] = (),
        options: CompilerOptions = (),
        serialized: bytes | None = None,
    ):
        self.out_shardings = tuple(out_shardings)
        options = tuple({**_without_flags(module.options), **dict(options)}.items())
        self.has_callbacks = has_callbacks = bool(module.callbacks)
        self.can_run = not is_compile_only(devices[0])
        if not self.can_run:
            self.binary = _compiled_for_topology(module.text, devices, options)
            self.processes, self.run = None, _refuse(local.program.name, devices)
            return
        callbacks = Callbacks(module.callbacks, len(devices))
        self.binary = (
            _compiled(module.text, devices, callbacks.functions, options)
            if serialized is None
            else Binary.load(serialized, module.text, devices, options)
        )
        handlers = [
            result_handler(placement.shard_shape(local.mesh), placement.type.dtype, devices, sharding.nondefault_memory)
            for placement, sharding in zip(local.outputs, out_shardings, strict=True)
        ]
        shares_threads = len(devices) > 1 and devices[0].platform == "cpu"
        has_collectives = "replica_groups" in module.text or "source_target_pairs" in module.text
        if has_collectives and process_sets.gloo is not None:
            process_sets.gloo.add_groups(module.text, devices)
        types = out_types or [placement.type for placement in local.outputs]
        template = ResultTemplate(
            [array_signature(*each, committed) for each in zip(types, out_shardings, strict=True)]
        )
        self.processes = processes = process_sets.get(ranks_of(devices)) if process_sets.member is not None else None
        launch = launcher(
            self.loaded,
            handlers,
            template.create,
            template.fill,
            wait=has_callbacks,
            ordered=shares_threads and has_collectives,
            **({} if processes is None else {"wait_for_token": processes.wait_for_token}),
        )
        if processes is not None:
            text = f"devices: {[device.id for device in devices]}\noptions: {options}\n{module.text}"
            callback_error = callbacks.error if has_callbacks else None
            sizes = [placement.type.nbytes for placement in local.outputs]
            small = sizes.index(min(sizes)) if sizes and min(sizes) <= _LARGEST_KEPT else None
            launch = processes.guard(
                launch,
                local.program.name,
                text,
                has_collectives,
                small,
                callback_error,
                lambda: [f"{equation.op.name} at {equation.source}" for equation in local.collectives()],
            )
        run = callbacks.run()(launch) if has_callbacks else launch
        self.run = guard.guarded(run, devices)

    @property
    def loaded(self) -> Any:
        """XLA's executable."""
        return self.binary.executable

    def costs(self) -> dict[str, float]:
        """Return XLA's counts per device and call; none for devices of a topology."""
        return dict(self.loaded.cost_analysis()) if self.can_run else {}

    def texts(self) -> list[str]:
        """Return the optimized HLO of each module."""
        return [module.to_string() for module in self.loaded.hlo_modules()]


def _without_flags(options: CompilerOptions) -> dict[str, Any]:
    """Return the options of a module by name, without those that the user has set in XLA_FLAGS."""
    flags = {flag.partition("=")[0].removeprefix("--") for flag in os.environ.get("XLA_FLAGS", "").split()}
    return {name: value for name, value in options if name not in flags}


def _refuse(name: str, devices: Sequence[Any]) -> Callable[[list[Any]], list[ArrayImpl]]:
    """Return the `run` of a program that was compiled for devices of a topology, which raises an error."""

    def run(buffers: list[Any]) -> list[ArrayImpl]:
        raise DeviceMismatchError(
            f"`{name}` was compiled for {len(devices)} devices of a topology ({devices[0].device_kind}), which are not "
            "present: it cannot run here. Serialize it with `experimental.serialize_executable`, and load it on them."
        )

    return run


def _compiled_for_topology(text: str, devices: Sequence[Any], options: CompilerOptions) -> Binary:
    """Compile a module for devices that are not present, and write it to the persistent cache for these devices."""
    binary = Binary(compile_for_topology(text, devices, options))
    store = _cache_store()
    if store is not None:
        compilation_cache.write_entry(store, compilation_cache.topology_key(text, devices, options), binary)
    return binary


def _compiled(text: str, devices: Sequence[Any], callbacks: Sequence[Any], options: CompilerOptions) -> Binary:
    """Compile a module, or load its executable: a retained one, or one of the persistent cache or another process.

    Modules with callbacks are compiled: their executables contain addresses of this process.
    """
    for check in compile_checks:
        check(devices[0].client)
    if callbacks:
        return Binary(compile_text(text, devices, callbacks, options))
    if (retained := process_sets.retained) is None:
        return _loaded_or_compiled(text, devices, options)
    return retained.load_or_compile(
        compilation_cache.program_key(text, devices, options),
        load=lambda blob: Binary.load(blob, text, devices, options),
        make=partial(_loaded_or_compiled, text, devices, options),
    )


def _loaded_or_compiled(text: str, devices: Sequence[Any], options: CompilerOptions) -> Binary:
    """Load an executable from the persistent cache or from another process, or compile it."""

    def compile_here() -> Binary:
        return Binary(compile_text(text, devices, (), options))

    store = _cache_store()
    load_cached = None if store is None else partial(compilation_cache.load_or_compile, store, text, devices, options)
    shared, ranks = process_sets.executables, ranks_of(devices)
    if shared is None or not config.share_binary_between_hosts or len(ranks) == 1:
        return compile_here() if load_cached is None else load_cached(compile_here)
    load_shared = partial(
        shared.load_or_compile,
        compilation_cache.program_key(text, devices, options),
        compilation_cache.machine(devices[0]),
        ranks,
        load=lambda blob: Binary.load(blob, text, devices, options),
    )
    compile_module = partial(shared.count_compilation, compile_here)
    if store is None or load_cached is None:
        return load_shared(compile_module)
    if store.is_shared:  # one process reads it for all
        return load_shared(partial(load_cached, compile_module))
    return load_cached(partial(load_shared, compile_module))


def _cache_store() -> "CacheStore | None":
    """Return the store of the persistent cache, if it is enabled."""
    return compilation_cache.enabled_store() if config.compilation_cache_dir else None
