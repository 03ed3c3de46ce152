"""Compile and run programs on concrete arrays.

`compile_request` turns a request into a `Launch`. The executor runs single ops and functions of arrays outside every
frame; importing this module installs it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from shardwise.base._jaxlib import EFFORT_OPTIONS, CompilerOptions, Device, RuntimeFailure, is_compile_only
from shardwise.base.caches import register, registered_cache
from shardwise.base.call_site import call_site, warn_user
from shardwise.base.config import all_threads, config
from shardwise.base.lazy import lazy_module
from shardwise.base.progress import Task
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, type_of
from shardwise.compiler.control.callback import Callback
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.dispatch import resolves_shardings
from shardwise.compiler.ir.op import Op, check_shardings, result_types
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.compiler.partition.reason import Conversion
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbsentDevice, Mesh, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.stage_dump import StageDump
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import user_source
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import DeviceMismatchError, UnexpectedTracerError
from shardwise.execute.compiler_effort import CompilerEffortLevel, effort_options
from shardwise.execute.inspect_sharding import report_shardings
from shardwise.execute.key_reuse import check_key_reuse
from shardwise.execute.launch_cache import LaunchCache
from shardwise.execute.launch_hooks import launch_hooks
from shardwise.execute.load import load
from shardwise.execute.nan_check import check_nans
from shardwise.execute.no_collectives import check_no_collectives
from shardwise.execute.request import Request, Target, default_device, lift_held_arrays, partition_request
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.execute.transfer import transfer, transfer_to_memory
from shardwise.monitoring import record_event_duration_secs
from shardwise.runtime.array import (
    ArrayImpl,
    Donation,
    HostArgument,
    array_signature,
    await_elements,
    deleted_error,
    memory,
    pending_origin,
    place,
)
from shardwise.runtime.callbacks import error_of_callback
from shardwise.runtime.executable import Executable
from shardwise.runtime.kernel_failure import check_kernels
from shardwise.runtime.memory_stats import MemoryStats, known_memory_stats
from shardwise.runtime.out_of_memory import check_memory, program_needs
from shardwise.runtime.process_set_registry import process_sets
from shardwise.runtime.sharding import SingleDeviceSharding, as_typed
from shardwise.runtime.transfer_guard import check_transfer

if TYPE_CHECKING:
    from shardwise.compiler.search import avoidable_gathers
else:  # its import takes 8 ms, and programs on one device do not need it
    avoidable_gathers = lazy_module("shardwise.compiler.search.avoidable_gathers")

_log = logging.getLogger("shardwise")


@final
class Launch:
    """A compiled program with its bound constants, for arguments with given signatures.

    `run` transfers arguments to the shardings that the program expects, executes it, and wraps the results in Arrays.

    Args:
        executable: the compiled program.
        request: the compiled request.
        moves: argument position → the sharding to which it must be transferred before the program runs.
        constants: the arrays bound as the last inputs of the program.
        out_memories: result position → its sharding, for results that end in a non-default memory.
    """

    chip = None  # that of the devices

    def __init__(
        self,
        executable: Executable,
        request: Request,
        moves: dict[int, Sharding],
        constants: Sequence[ArrayImpl],
        out_memories: dict[int, Sharding],
    ):
        self.executable = executable
        self.request = request
        self.moves = moves
        self.constants = list(constants)
        self.out_memories = out_memories
        # Several processes may compute the operands, even the operands of a program that runs only in this process.
        self._inherits_origin = process_sets.member is not None and not executable.processes
        takes_arguments_directly = request.kept is None and not (moves or constants or out_memories)
        self._is_simple = takes_arguments_directly and True not in request.donated and not self._inherits_origin
        self._run = executable.run

    def run(self, arrays: Sequence[ArrayImpl | HostArgument]) -> list[ArrayImpl]:
        """Run the program on its arguments, and return its results."""
        try:
            if self._is_simple and not (all_threads.launch_checks or launch_hooks.hooks):
                buffers = [array.buffers for array in arrays]
                if memory.any_donated:
                    self._check_alive(buffers, arrays)
                return self._run(buffers)
            return self._run_general(arrays)
        except RuntimeFailure as error:
            check_memory(error, f"`{self.request.program.name}`", lambda: program_needs(self.executable.loaded))
            raise

    def memory_stats(self) -> MemoryStats | None:
        """Return XLA's statistics of the executable; None on platforms that have no statistics."""
        return known_memory_stats(self.executable.loaded)

    def _check_alive(self, buffers: list[Any], arrays: Sequence[ArrayImpl | HostArgument]) -> None:
        """Raise an error if a buffer was deleted, because jaxlib would crash."""
        if True not in [buffer.is_deleted() for buffer in buffers]:
            return
        for index, array in enumerate(arrays):
            if array.is_deleted():
                raise deleted_error(array, f"argument {self.request.names[index]} of `{self.request.program.name}`")
        deleted = next(array for array in self.constants if array.is_deleted())
        raise deleted_error(deleted, f"an array that `{self.request.program.name}` closes over")

    def _run_general(self, arguments: Sequence[ArrayImpl | HostArgument]) -> list[ArrayImpl]:
        """Run with transfers, donation, launch hooks and checks."""
        if config.no_execution:
            raise RuntimeError(f"no_execution is set, so `{self.request.program.name}` cannot run here")
        if launch_hooks.hooks:
            launch_hooks.notify(self, runs=True)
        if self.request.kept is not None:
            arguments = [arguments[number] for number in self.request.kept if number < len(arguments)]
        arrays = [
            x if isinstance(x, ArrayImpl) else x.place(self.moves.get(number)) for number, x in enumerate(arguments)
        ]
        buffers = [array.buffers for array in (*arrays, *self.constants)]
        if memory.any_donated:
            self._check_alive(buffers, arrays)
        if self.moves:
            for number, sharding in self.moves.items():
                if isinstance(arguments[number], ArrayImpl):
                    check_transfer("device_to_device", arrays[number].type)
                    buffers[number] = transfer(arrays[number], sharding).buffers
        if True in self.request.donated:
            memory.any_donated = True
            donation = Donation(self.request.program.name, call_site())
            for array, is_donated in zip(arrays, self.request.donated, strict=False):
                if is_donated:
                    array.donated_by = donation
            if len(set(map(id, buffers))) < len(buffers):
                self._check_donated_once(buffers)  # on several devices, XLA would abort the process
        keys = check_key_reuse(self.request.program, [*arrays, *self.constants]) if config.debug_key_reuse else None
        origin = pending_origin([*arrays, *self.constants]) if self._inherits_origin else None
        if origin is not None and self.executable.has_callbacks:  # they read operands on the host
            await_elements([array for array in (*arrays, *self.constants) if array.processes() is not None])
        results = self._run(buffers)
        if origin is not None:
            for result in results:
                result.origin = origin
        if keys is not None:
            keys.finish(results)
        if all_threads.launch_checks:
            check_nans(self.request.program, [*arrays, *self.constants], results)
        for number, sharding in self.out_memories.items():
            results[number] = transfer_to_memory(results[number], sharding)
        return results

    def _check_donated_once(self, buffers: Sequence[Any]) -> None:
        """Raise an error if a donated buffer is passed twice."""
        constants = len(buffers) - len(self.request.donated)
        donated = [*self.request.donated, *[False] * constants]
        names = [*self.request.names, *["a value that it closes over"] * constants]
        first: dict[int, int] = {}
        for index, buffer in enumerate(buffers):
            other = first.setdefault(id(buffer), index)
            if other != index and (donated[other] or donated[index]):
                raise RuntimeError(
                    f"`{self.request.program.name}` gets the same array as {names[other]} and as {names[index]}, and "
                    "one of them is donated: its memory is reused while the other is read. Pass a copy, or do not "
                    "donate it."
                )


@final
@dataclass(frozen=True, eq=False)
class LoweredRequest:
    """A request that was partitioned and lowered to StableHLO.

    `constants` are bound as the last inputs of the program. `moves` maps the positions of inputs to the shardings to
    which they must be transferred before the program runs. `memory_kinds` are the memory kinds of the results.
    """

    request: Request
    constants: list[ArrayImpl]
    target: Target
    stages: Stages
    moves: dict[int, Sharding]
    memory_kinds: tuple[str | None, ...]

    def compile(self, options: CompilerOptions = (), serialized: bytes | None = None) -> Launch:
        """Compile the program with XLA.

        Args:
            options: XLA's compiler options.
            serialized: the executable of the program, which is loaded instead.
        """
        if isinstance(self.target.devices[0], AbsentDevice):
            raise DeviceMismatchError(
                f"`{self.request.program.name}` was lowered for the mesh {self.stages.problem.mesh}, which has no "
                "devices, so it cannot be compiled. Pass the devices to `compile(device_assignment=...)`, or use "
                "shardings on a Mesh."
            )
        for number, is_donated in enumerate(self.request.donated):
            if is_donated and number not in self.stages.module.aliases:
                signature = self.request.signatures[number]
                warn_user(
                    f"{self.request.names[number]} of `{self.request.program.name}` is donated, but no result has its "
                    f"type and sharding ({signature.type} in {signature.sharding}), so its memory is not reused.",
                )
        self._warn_of_gathers()
        self._warn_of_resharded_arguments()
        chosen = dict([*effort_options(), *options])
        executable = self._compile_logged(tuple(sorted(chosen.items())), serialized)
        arguments = len(self.request.signatures) - len(self.constants)
        constants = self.constants
        if not is_compile_only(self.target.devices[0]):
            constants = [
                transfer(array, self.moves[number]) if number in self.moves else array
                for number, array in enumerate(constants, arguments)
            ]
        moves = {number: sharding for number, sharding in self.moves.items() if number < arguments}
        out_memories = {
            number: sharding
            for number, sharding in enumerate(self.out_shardings)
            if sharding.nondefault_memory and number not in self.stages.module.host_outputs
        }
        launch = Launch(executable, self.request, moves, constants, out_memories)
        launch_hooks.notify(launch, runs=False)
        return launch

    def _warn_of_gathers(self) -> None:
        """Warn about all-gathers that another layout would avoid."""
        if len(self.target.devices) == 1:
            return
        meshes = [mesh.abstract for mesh in self.target.meshes]
        gathers = avoidable_gathers.avoidable_gathers(self.stages.problem, self.stages.plan, self.stages.local, meshes)
        if gathers:
            text = f"in `{self.request.program.name}`, {gathers[0]}"
            more = f" Further avoidable all-gathers in this program: {len(gathers) - 1}." if len(gathers) > 1 else ""
            warn_user(text + more)

    def _warn_of_resharded_arguments(self) -> None:
        """Warn about committed arguments that every call reshards to their `in_shardings`."""
        if config.in_shardings_mismatch != "warn":
            return
        local, inputs = self.stages.local, self.stages.problem.program.inputs
        for number in self.request.resharded_arguments():
            sent = sum(
                local.times[equation] * local.bytes_sent(equation)
                for equation in local.collectives()
                if isinstance(equation.reason, Conversion) and equation.reason.value is inputs[number]
            )
            effect = f": every call reshards it, and each device sends {sent:,.0f} bytes for that"
            warn_user(self.request.describe_mismatch(number, effect))

    def _compile_logged(self, options: CompilerOptions, serialized: bytes | None) -> Executable:
        """Compile with XLA. Log the time, and explain failures."""
        start, name = time.perf_counter(), self.request.program.name
        try:
            on_host = self.stages.module.host_outputs
            out_shardings = [
                sharding if number in on_host else sharding.in_default_memory
                for number, sharding in enumerate(self.out_shardings)
            ]
            with Task(f"compiling `{name}`") as task:
                task.stage = "XLA"
                executable = load(
                    self.stages, self.target.devices, out_shardings, self.target.committed, options, serialized
                )
        except RuntimeFailure as error:
            check_kernels(error, self.stages.module.text, self.target.devices, options)
            check_memory(error, f"the compilation of `{name}`")
            if options and "option" in str(error):
                raise ValueError(f"compiler_options of `{name}`: {error}") from None
            raise
        seconds, level = time.perf_counter() - start, logging.WARNING if config.log_compiles else logging.DEBUG
        record_event_duration_secs("/jax/core/compile/backend_compile_duration", seconds, fun_name=f"jit({name})")
        if _log.isEnabledFor(level):
            arguments = ", ".join(f"{x.type} in {x.sharding}" for x in self.request.signatures) or "no arguments"
            devices = len(self.target.devices)
            _log.log(level, "compiled `%s` for %s on %d devices: XLA took %.3f s", name, arguments, devices, seconds)
        return executable

    @cached_property
    def out_shardings(self) -> list[Sharding]:
        """The sharding of each result."""
        layouts, types = self.stages.plan.outputs, self.stages.out_types
        outputs = zip(self.request.out_shardings, layouts, types, strict=True)  # key layouts have a trailing dim
        shardings = [
            self._forwarded_sharding(index, layout)
            or _out_sharding(requested, Layout(layout.dims[: type.ndim], layout.partial), type, self.target)
            for index, (requested, layout, type) in enumerate(outputs)
        ]
        return [
            sharding.with_memory_kind(kind) if kind and requested is None else sharding
            for sharding, kind, requested in zip(shardings, self.memory_kinds, self.request.out_shardings, strict=True)
        ]

    def _forwarded_sharding(self, number: int, layout: Layout) -> Sharding | None:
        """Return the sharding of the committed argument that this result forwards unchanged; None for other results."""
        program, request = self.request.program, self.request
        value = program.outputs[number]
        if request.out_shardings[number] is not None or value not in program.inputs:
            return None
        position = program.inputs.index(value)
        signature = request.signatures[position]
        requested = request.in_shardings[position] if position < len(request.in_shardings) else None
        if requested is not None or not signature.committed or signature.sharding.devices != self.target.devices:
            return None
        pin = self.target.pin(signature.sharding, signature.type.shape)
        return signature.sharding if pin.layout == layout else None


def lower_request(
    request: Request,
    constants: Sequence[ArrayImpl] = (),
    chip: Chip | None = None,
    dump: StageDump | None = None,
) -> LoweredRequest:
    """Partition a request and lower it to StableHLO, without calling `inspect_array_sharding` callbacks.

    Args:
        request: the program and its inputs.
        constants: the arrays that the program captures, as its last inputs.
        chip: the chip to plan for, if it is not the chip of the target's devices.
        dump: keeps the result of every pass.
    """
    request.check_in_shardings()
    request, constants = lift_held_arrays(request, constants)
    arguments = len(request.signatures) - len(constants)
    request = request.without_unused_inputs()
    if request.kept is not None:
        constants = [constants[number - arguments] for number in request.kept if number >= arguments]
    memory_kinds = request.out_memory_kinds()
    target = request.target()
    with Task(f"planning `{request.program.name}`"):
        stages, moves = partition_request(request, target, chip, dump)
    check_no_collectives(stages.problem.program, stages.local)
    target = target.refined(stages.problem.mesh)
    return LoweredRequest(request, list(constants), target, stages, moves, memory_kinds)


def lower_for_compile(request: Request, constants: Sequence[ArrayImpl] = ()) -> LoweredRequest:
    """Lower a request that will be compiled, and call its `inspect_array_sharding` callbacks."""
    lowered = lower_request(request, constants)
    report_shardings(lowered.stages, lowered.target)
    return lowered


def compile_request(request: Request, constants: Sequence[ArrayImpl] = (), options: CompilerOptions = ()) -> Launch:
    """Compile a request. `constants` are captured arrays, bound as the last inputs; `options` are XLA's."""
    with Task(f"compiling `{request.program.name}`"):
        return lower_for_compile(request, constants).compile(options)


def compiler_options(options: object, function: str) -> CompilerOptions:
    """Check the `compiler_options` argument of `function`, and return it as sorted pairs."""
    if options is None:
        return ()
    types = (str, bool, int, float, CompilerEffortLevel)
    if isinstance(options, Mapping) and all(isinstance(k, str) and isinstance(v, types) for k, v in options.items()):
        levels = {name: CompilerEffortLevel(options[name]).value for name in EFFORT_OPTIONS if name in options}
        return tuple(sorted({**options, **levels}.items()))
    raise TypeError(
        f"{function}: compiler_options must be a dict from names of XLA's options to strings and numbers, such as "
        f"{{'xla_cpu_enable_fast_math': True}}, not {options!r}"
    )


def _out_sharding(requested: Sharding | None, layout: Layout, type: ArrayType, target: Target) -> Sharding:
    """Return the sharding of a result of this type: the requested sharding, unless it leaves dims open."""
    if requested is not None and not requested.pin((1,) * len(layout.dims)).open_dims:
        return requested
    sharding = target.sharding_on(type.explicit.mesh.abstract, layout) if type.explicit else target.sharding(layout)
    return as_typed(sharding, type)


def as_array(x: object, name: str = "array", explicit: bool = False, may_be_donated: bool = False) -> ArrayImpl:
    """Convert `x` to an array: numpy arrays and scalars are copied to the default device, uncommitted.

    Args:
        x: an array or a number.
        name: the function that received it, for error messages.
        explicit: whether the user requested the transfer. Transfer guards distinguish this.
        may_be_donated: whether the memory may be freed. Otherwise equal Python scalars share one array.
    """
    argument = as_argument(x, name, explicit, may_be_donated)
    return argument if isinstance(argument, ArrayImpl) else argument.place()


def as_argument(
    x: object, name: str = "array", explicit: bool = False, may_be_donated: bool = False
) -> ArrayImpl | HostArgument:
    """Convert `x` as `as_array` does, but leave numpy arrays on the host until `Launch` determines their sharding.

    Equal Python scalars share one array, unless they may be donated.
    """
    if isinstance(x, ArrayImpl):
        return x
    if isinstance(x, Tracer):
        raise UnexpectedTracerError(x.frame.leak_message(x))
    if hasattr(x, "__jax_array__"):
        return as_argument(x.__jax_array__(), name, explicit, may_be_donated)
    if config.transfer_guard_host_to_device != "allow":
        check_transfer("host_to_device", type_of(x, name), explicit)
    if isinstance(x, PYTHON_SCALARS) and not may_be_donated:
        return _scalar(type_of(x), x, str(x), default_device())
    type = type_of(x, name)
    return HostArgument(np.asarray(x, type.dtype), array_signature(type, SingleDeviceSharding(default_device()), False))


@registered_cache(maxsize=128)
def _scalar(type: ArrayType, value: bool | int | float | complex, text: str, where: Device | Sharding) -> ArrayImpl:
    """Return a Python scalar as an uncommitted array on a device or with a sharding.

    `text` is `str(value)`, which distinguishes 0.0 from -0.0, although they are equal.
    """
    sharding = where if isinstance(where, Sharding) else SingleDeviceSharding(where)
    return place(np.asarray(value, type.dtype), type, sharding, committed=False)


def _as_operand(x: object, first: object, name: str) -> ArrayImpl:
    """Convert an operand as `as_array` does. A Python scalar after an array on a mesh is placed on that mesh once."""
    if isinstance(first, ArrayImpl) and first.committed and isinstance(x, PYTHON_SCALARS):
        sharding = first.sharding
        if len(sharding.devices) > 1 and config.transfer_guard_host_to_device == "allow":
            return _scalar(type_of(x), x, str(x), sharding.replicated)
    return as_array(x, name)


class _Executor:
    """Runs ops and functions on concrete arrays, outside every frame. Compiled programs are cached."""

    def __init__(self) -> None:
        self._launches = LaunchCache(4096)
        register(self._launches.clear)

    def place(self, value: np.ndarray[Any, Any], beside: Array | None = None) -> ArrayImpl:
        """Return `value` as an Array, replicated on the devices of the array `beside`.

        Without `beside`, the value is replicated on the mesh that `set_mesh` has set, or placed on the default device.
        """
        mesh = None if beside is not None else mesh_context.program_mesh
        if isinstance(mesh, Mesh):
            return place(value, type_of(value), NamedSharding(mesh, PartitionSpec()), committed=True)
        if not isinstance(beside, ArrayImpl) or (len(beside.sharding.devices) == 1 and not beside.committed):
            return as_array(value)
        return place(value, type_of(value), beside.sharding.replicated, beside.committed)

    def transfer(self, array: ArrayImpl, sharding: Sharding) -> ArrayImpl:
        return transfer(array, sharding)

    def run(self, op: Op, args: Sequence[ArrayImpl]) -> tuple[ArrayImpl, ...]:
        """Run one op."""
        match op:
            case Callback():
                return self._call_host(op, args)
            case Inspect():
                op.callback(args[0].sharding)
                return ()
        mesh, on_mesh = mesh_context.mesh, mesh_context.runs_programs
        key = (op, config.state.trace_settings, resolves_shardings(), mesh, on_mesh, *(x.signature for x in args))
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches.promote(key)
        if launch is None:
            inputs = [Value(x.type) for x in args]
            types = tuple(value.type for value in inputs)
            if not resolves_shardings():
                check_shardings(op, types)
            outputs = [Value(type) for type in result_types(op, types)]
            program = Program(tuple(inputs), (Equation(op, inputs, outputs, user_source()),), tuple(outputs), op.name)
            launch = self._launches.add(key, compile_request(_request(program, args)))
        return tuple(launch.run(args))

    def _call_host(self, op: Callback, args: Sequence[ArrayImpl]) -> tuple[ArrayImpl, ...]:
        """Run a callback outside every program."""
        try:
            results = op.function(*(x.numpy() for x in args))
        except Exception as error:
            if op.is_debugging:
                raise
            raise error_of_callback(error)  # noqa: B904 - the same error, or one that has it as its cause
        return tuple(as_array(x, explicit=True) for x in results)

    def call(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> ArrayImpl:
        """Run a function of arrays, with static keyword arguments, as one program."""
        return self.call_list(function, args, static)[0]

    @filter_traceback
    def call_list(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> list[ArrayImpl]:
        """Run a function that returns an array or a list of arrays, as one program."""
        name = function.__name__.lstrip("_")
        arrays = [x if isinstance(x, ArrayImpl) else _as_operand(x, args[0], name) for x in args]
        key = (
            function,
            config.state.trace_settings,
            resolves_shardings(),
            mesh_context.mesh,
            mesh_context.runs_programs,
            *(x.signature for x in arrays),
            *static.items(),
        )
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches.promote(key)
        if launch is None:

            def returns_list(*xs: Array) -> list[Array]:
                results = function(*xs, **static)
                return results if isinstance(results, list) else [results]

            program, captured = build(returns_list, [x.type for x in arrays], function.__name__)
            assert not captured, f"{function.__name__} closes over arrays"
            launch = self._launches.add(key, compile_request(_request(program, arrays)))
        return launch.run(arrays)


def _request(program: Program, args: Sequence[ArrayImpl]) -> Request:
    names = tuple(f"operand {index}" for index in range(len(args)))
    signatures, out_shardings = tuple(x.signature for x in args), (None,) * len(program.outputs)
    return Request(
        program,
        signatures,
        out_shardings,
        names,
        mesh=mesh_context.mesh,
        on_current_mesh=mesh_context.program_mesh is not None,
    )


dispatch.executor = _Executor()
