"""Compile and run programs on concrete arrays.

`compile_request` turns a request into a `Launch`. The executor runs single ops and functions of arrays outside every
frame; importing this module installs it.
"""

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from shardwise._jaxlib import CompilerOptions, RuntimeFailure
from shardwise.caches import register, registered_cache
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, type_of
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import Op, result_types
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.callback import Callback
from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.compiler.ops.placement.memory_space import out_kinds
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.hardware import Chip
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbsentDevice
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import user_source
from shardwise.compiler.trace.tracer import Tracer
from shardwise.config import all_threads, config
from shardwise.errors import UnexpectedTracerError
from shardwise.execute.inspect_sharding import report_shardings
from shardwise.execute.launch_hooks import launch_hooks
from shardwise.execute.load import load
from shardwise.execute.lru import LruCache
from shardwise.execute.nan_check import check_nans
from shardwise.execute.request import Request, Target, default_device, lift_held_arrays, partition_request
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.execute.transfer import transfer, transfer_to_memory
from shardwise.lazy import lazy_module
from shardwise.runtime.array import Array, HostArgument, array_signature, deleted_error, memory, place
from shardwise.runtime.executable import Executable
from shardwise.runtime.out_of_memory import check_memory
from shardwise.runtime.sharding import Sharding, SingleDeviceSharding
from shardwise.runtime.transfer_guard import check_transfer

if TYPE_CHECKING:
    from shardwise.compiler.report import avoidable_gathers
else:  # what is compiled for one device, and what is only imported, needs none of it
    avoidable_gathers = lazy_module("shardwise.compiler.report.avoidable_gathers")

_log = logging.getLogger("shardwise")


@final
class Launch:
    """A compiled program for arrays of certain signatures: moves those that lie elsewhere, runs, wraps.

    `lands` are the results that go to another memory than the one in which they are computed.
    """

    def __init__(
        self,
        executable: Executable,
        request: Request,
        moves: dict[int, Sharding],
        constants: Sequence[Array],
        lands: dict[int, Sharding],
    ):
        self.executable = executable
        self.request = request
        self.moves = moves
        self.constants = list(constants)
        self.lands = lands
        as_they_are = request.kept is None and not (moves or constants or lands)
        self._plain = as_they_are and True not in request.donated
        self._run = executable.run

    def run(self, arrays: Sequence[Array | HostArgument]) -> list[Array]:
        try:
            if self._plain and not (all_threads.nan_checks or launch_hooks.hooks):
                buffers = [array.buffers for array in arrays]
                if memory.any_donated:
                    self._check_alive(buffers, arrays)
                return self._run(buffers)
            return self._run_general(arrays)
        except RuntimeFailure as error:
            check_memory(error, f"`{self.request.program.name}`", self.executable.loaded)
            raise

    def _check_alive(self, buffers: list[Any], arrays: Sequence[Array | HostArgument]) -> None:
        """jaxlib crashes on buffers that are gone."""
        if True not in [one.is_deleted() for one in buffers]:
            return
        for number, array in enumerate(arrays):
            if array.is_deleted():
                raise deleted_error(
                    array.type, f"argument {self.request.names[number]} of `{self.request.program.name}`"
                )
        gone = next(array for array in self.constants if array.is_deleted())
        raise deleted_error(gone.type, f"an array that `{self.request.program.name}` closes over")

    def _run_general(self, given: Sequence[Array | HostArgument]) -> list[Array]:
        """Where arrays may have to move, may be gone, or are looked at."""
        if launch_hooks.hooks:
            launch_hooks.notify(self, runs=True)
        if self.request.kept is not None:
            given = [given[number] for number in self.request.kept if number < len(given)]
        arrays = [x if isinstance(x, Array) else x.at(self.moves.get(number)) for number, x in enumerate(given)]
        buffers = [array.buffers for array in (*arrays, *self.constants)]
        if memory.any_donated:
            self._check_alive(buffers, arrays)
        if self.moves:
            for number, sharding in self.moves.items():
                if isinstance(given[number], Array):
                    check_transfer("device_to_device", arrays[number].type)
                    buffers[number] = transfer(arrays[number], sharding).buffers
        if True in self.request.donated:
            memory.any_donated = True
            if len(set(map(id, buffers))) < len(buffers):
                self._check_given_once(buffers)  # where there are several devices, XLA would end the process
        results = self._run(buffers)
        if all_threads.nan_checks:
            check_nans(self.request.program, [*arrays, *self.constants], results)
        for number, sharding in self.lands.items():
            results[number] = transfer_to_memory(results[number], sharding)
        return results

    def _check_given_once(self, buffers: Sequence[Any]) -> None:
        """What is donated can be no other argument too."""
        rest = len(buffers) - len(self.request.donated)
        donated = [*self.request.donated, *[False] * rest]
        names = [*self.request.names, *["a value that it closes over"] * rest]
        first: dict[int, int] = {}
        for number, one in enumerate(buffers):
            before = first.setdefault(id(one), number)
            if before != number and (donated[before] or donated[number]):
                raise ValueError(
                    f"`{self.request.program.name}` gets one array as {names[before]} and as {names[number]}, and one "
                    "of them is donated: its memory is reused while the other is read. Give a copy of it, or do not "
                    "donate it."
                )


@final
@dataclass(frozen=True, eq=False)
class LoweredRequest:
    """A request up to the text that XLA gets. `constants` are bound as the last inputs; `moves`: inputs that lie
    elsewhere."""

    request: Request
    constants: list[Array]
    target: Target
    stages: Stages
    moves: dict[int, Sharding]

    def compile(self, options: CompilerOptions = ()) -> Launch:
        """Compiled, and ready to run. `options` are XLA's own."""
        if isinstance(self.target.devices[0], AbsentDevice):
            raise ValueError(
                f"`{self.request.program.name}` was lowered for the mesh {self.stages.sharded.mesh}, which has no "
                "devices: it can be looked at, and not compiled. Use shardings on a Mesh."
            )
        for number, is_donated in enumerate(self.request.donated):
            if is_donated and number not in self.stages.module.aliases:
                given = self.request.signatures[number]
                warnings.warn(
                    f"{self.request.names[number]} of `{self.request.program.name}` is donated, but no result has its "
                    f"type and layout ({given.type} in {given.sharding}): its memory is not reused.",
                    stacklevel=4,
                )
        self._warn_of_gathers()
        executable = self._loaded(options)
        first = len(self.request.signatures) - len(self.constants)
        bound = [
            transfer(array, self.moves[first + i]) if first + i in self.moves else array
            for i, array in enumerate(self.constants)
        ]
        moves = {number: sharding for number, sharding in self.moves.items() if number < first}
        lands = {number: sharding for number, sharding in enumerate(self.out_shardings) if sharding.kind}
        launch = Launch(executable, self.request, moves, bound, lands)
        launch_hooks.notify(launch, runs=False)
        return launch

    def _warn_of_gathers(self) -> None:
        """Once for each compilation."""
        if len(self.target.devices) == 1:
            return
        meshes = [mesh.abstract for mesh in self.target.meshes]
        found = avoidable_gathers.avoidable_gathers(self.stages.sharded, self.stages.plan, self.stages.local, meshes)
        if found:
            text = f"in `{self.request.program.name}`, {found[0]}"
            more = f" Further avoidable all-gathers in this program: {len(found) - 1}." if len(found) > 1 else ""
            line = user_source()
            warnings.warn_explicit(text + more, UserWarning, line.file, line.line)

    def _loaded(self, options: CompilerOptions) -> Executable:
        start, name = time.perf_counter(), self.request.program.name
        try:
            computed = [sharding.in_default_memory for sharding in self.out_shardings]
            executable = load(self.stages, self.target.devices, computed, self.target.committed, options)
        except RuntimeFailure as error:
            check_memory(error, f"XLA, which compiles `{name}`,")
            if options and "option" in str(error):
                raise ValueError(f"compiler_options of `{name}`: {error}") from None
            raise
        took, level = time.perf_counter() - start, logging.WARNING if config.log_compiles else logging.DEBUG
        if _log.isEnabledFor(level):
            given = ", ".join(f"{one.type} in {one.sharding}" for one in self.request.signatures) or "no arguments"
            devices = len(self.target.devices)
            _log.log(level, "compiled `%s` for %s on %d devices: XLA took %.3f s", name, given, devices, took)
        return executable

    @cached_property
    def out_shardings(self) -> list[Sharding]:
        asked = zip(self.request.out_shardings, self.stages.plan.outputs, self.stages.out_types, strict=True)
        found = [
            _as_asked(sharding, Layout(layout.dims[: type.ndim]), self.target)  # without the dim of a key's words
            for sharding, layout, type in asked
        ]
        kinds = out_kinds(self.request.program)
        return [
            sharding.with_memory_kind(kind) if kind and asked is None else sharding
            for sharding, kind, asked in zip(found, kinds, self.request.out_shardings, strict=True)
        ]


def lower_request(request: Request, constants: Sequence[Array] = (), chip: Chip | None = None) -> LoweredRequest:
    """Every stage that needs no device; nobody is told. `constants` are captured arrays; `chip`: planned for other
    devices than those at hand."""
    request, constants = lift_held_arrays(request, constants)
    first = len(request.signatures) - len(constants)
    request = request.used()
    if request.kept is not None:
        constants = [constants[number - first] for number in request.kept if number >= first]
    target = request.target()
    compiled, moves = partition_request(request, target, chip)
    target = target.refined(compiled.sharded.mesh)
    return LoweredRequest(request, list(constants), target, compiled, moves)


def lower_for_compile(request: Request, constants: Sequence[Array] = ()) -> LoweredRequest:
    """The same on the way to being compiled: those who want to know a layout are told."""
    prepared = lower_request(request, constants)
    report_shardings(prepared.stages, prepared.target)
    return prepared


def compile_request(request: Request, constants: Sequence[Array] = (), options: CompilerOptions = ()) -> Launch:
    """Compile a request. `constants` are captured arrays, bound as the last inputs; `options` are XLA's own."""
    return lower_for_compile(request, constants).compile(options)


def compiler_options(given: Any, what: str) -> CompilerOptions:
    """Options of XLA's, by name, as `what` was given them."""
    if given is None:
        return ()
    kinds = (str, bool, int, float)
    if isinstance(given, Mapping) and all(isinstance(k, str) and isinstance(v, kinds) for k, v in given.items()):
        return tuple(sorted(given.items()))
    raise TypeError(
        f"{what}: compiler_options is a dict from names of XLA's options to strings and numbers, such as "
        f"{{'xla_cpu_enable_fast_math': True}}, not {given!r}"
    )


def _as_asked(asked: Sharding | None, layout: Layout, target: Target) -> Sharding:
    """The sharding of a result: the user's own, where it leaves nothing open."""
    if asked is None or asked.pin((1,) * len(layout.dims)).open_dims:
        return target.sharding(layout)
    return asked


def as_array(x: Any, name: str = "array", explicit: bool = False) -> Array:
    """`x` as an Array: numpy arrays and scalars are copied to the default device, uncommitted.

    `explicit`: the user asked for just this.
    """
    found = as_argument(x, name, explicit)
    return found if isinstance(found, Array) else found.at()


def as_argument(x: Any, name: str = "array", explicit: bool = False) -> Array | HostArgument:
    """The same, but for numpy arrays: these stay where they are until `Launch` knows where the program wants them."""
    if isinstance(x, Array):
        return x
    if isinstance(x, Tracer):
        raise UnexpectedTracerError(x.frame.leak_message(x))
    if config.transfer_guard_host_to_device != "allow":
        check_transfer("host_to_device", type_of(x, name), explicit)
    if isinstance(x, PYTHON_SCALARS):
        # 0.0 and -0.0 are equal but not the same: the text tells them apart.
        return _scalar(type_of(x), x, str(x), default_device())
    return HostArgument(np.asarray(x), array_signature(type_of(x, name), SingleDeviceSharding(default_device()), False))


@registered_cache(maxsize=128)
def _scalar(given: ArrayType, value: Any, text: str, device: Any) -> Array:
    return place(np.asarray(value, given.dtype), given, SingleDeviceSharding(device), committed=False)


class _Executor:
    """Ops and functions on concrete arrays, outside every frame."""

    def __init__(self) -> None:
        self._launches = LruCache(4096)
        register(self._launches.clear)

    def place(self, value: Any) -> Array:
        return as_array(value)

    def transfer(self, array: Array, sharding: Sharding) -> Array:
        return transfer(array, sharding)

    def run(self, op: Op, args: Sequence[Array]) -> tuple[Array, ...]:
        """One op."""
        if isinstance(op, Callback):
            found = op.function(*(x.numpy() for x in args))
            return tuple(as_array(x, explicit=True) for x in found)
        if isinstance(op, Inspect):
            op.look(args[0].sharding)
            return ()
        key = (op, config.state.trace_settings, *(x.signature for x in args))
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches.promote(key)
        if launch is None:
            inputs = [Value(x.type) for x in args]
            outputs = [Value(type) for type in result_types(op, tuple(value.type for value in inputs))]
            program = Program(tuple(inputs), (Equation(op, inputs, outputs, user_source()),), tuple(outputs), op.name)
            launch = self._launches.insert(key, compile_request(_request(program, args)))
        return tuple(launch.run(args))

    def call(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> Array:
        """A function of arrays with static keywords, as one program."""
        return self.call_list(function, args, static)[0]

    @filter_traceback
    def call_list(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> list[Array]:
        """The same of a function that may return a list."""
        arrays = [x if isinstance(x, Array) else as_array(x, function.__name__.lstrip("_")) for x in args]
        key = (function, config.state.trace_settings, *(x.signature for x in arrays), *static.items())
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches.promote(key)
        if launch is None:

            def listed(*xs: Any) -> list[Any]:
                found = function(*xs, **static)
                return found if isinstance(found, list) else [found]

            program, captured = build(listed, [x.type for x in arrays], function.__name__)
            assert not captured, f"{function.__name__} closes over arrays"
            launch = self._launches.insert(key, compile_request(_request(program, arrays)))
        return launch.run(arrays)  # type: ignore[no-any-return]


def _request(program: Program, args: Sequence[Array]) -> Request:
    names = tuple(f"operand {number}" for number in range(len(args)))
    return Request(program, tuple(x.signature for x in args), (None,) * len(program.outputs), names)


installed.executor = _Executor()
