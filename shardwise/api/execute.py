"""Programs on concrete arrays: where they run, how they get there, and the cache of what was compiled.

`prepare` turns a program and the arrays it is called with into a `Launch`. The executor runs single ops and whole
functions of `ops/methods` outside every frame; importing this module installs it.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, final

import numpy as np

from shardwise.api.boundary import boundary
from shardwise.api.numbers import check_numbers
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import Op, result_types
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.constrain import Constrain
from shardwise.compiler.ops.methods import PYTHON_SCALARS, type_of
from shardwise.compiler.ops.shape import Held
from shardwise.compiler.pipeline import Partitioned, load, partitioned
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.spec import spec_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import user_source
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.config import config
from shardwise.errors import DeviceMismatchError, UnexpectedTracerError
from shardwise.runtime.array import Array, Signature, deleted_error, memory, place
from shardwise.runtime.client import local_devices
from shardwise.runtime.executable import Executable
from shardwise.runtime.sharding import ONE_DEVICE, NamedSharding, Sharding, SingleDeviceSharding


@final
@dataclass(frozen=True)
class Target:
    """Where a program runs: on a mesh, or on one device. `committed`: because the user said so."""

    mesh: Mesh | None
    device: Any
    committed: bool

    @property
    def devices(self) -> tuple[Any, ...]:
        return self.mesh.flat_devices if self.mesh is not None else (self.device,)

    def sharding(self, layout: Layout) -> Sharding:
        """`layout` here."""
        if self.mesh is None:
            return SingleDeviceSharding(self.device)
        return NamedSharding(self.mesh, spec_of(layout))


@final
class Launch:
    """A compiled program for arrays of certain signatures: moves those that lie elsewhere, runs, wraps."""

    def __init__(
        self, executable: Executable, request: "Request", moves: dict[int, Sharding], constants: Sequence[Array]
    ):
        self.executable = executable
        self.request = request
        self.moves = moves
        self.constants = list(constants)
        self._plain = request.kept is None and not moves and not constants and True not in request.donated

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        if self._plain and not (memory.given_up or config.debug_nans or config.debug_infs):
            return self.executable([array.buffers for array in arrays])
        if self.request.kept is not None:
            arrays = [arrays[number] for number in self.request.kept if number < len(arrays)]
        if memory.given_up:  # jaxlib crashes on buffers that are gone
            for number, array in enumerate(arrays):
                if array.is_deleted():
                    name = f"argument {self.request.names[number]} of `{self.request.program.name}`"
                    raise deleted_error(array.type, name)
        if True in self.request.donated:
            memory.given_up = True
        buffers = [array.buffers for array in arrays]
        if self.moves:
            for number, sharding in self.moves.items():
                buffers[number] = moved(arrays[number], sharding).buffers
        if self.constants:
            buffers += [array.buffers for array in self.constants]
        results = self.executable(buffers)
        if config.debug_nans or config.debug_infs:
            check_numbers(self.request.program, [*arrays, *self.constants], results)
        return results


@final
@dataclass(frozen=True, eq=False)
class Request:
    """A program to run: its inputs as they are given, and what the user asked of its outputs.

    `names` are the arguments as the user wrote them, for messages. Inputs without a name are captured values.
    """

    program: Program
    signatures: tuple[Signature, ...]
    out_shardings: tuple[Sharding | None, ...]
    names: tuple[str, ...]
    in_shardings: tuple[Sharding | None, ...] = ()
    donated: tuple[bool, ...] = ()
    keep_unused: bool = True
    kept: tuple[int, ...] | None = None  # which inputs of an earlier request these are, where some were dropped

    def used(self) -> "Request":
        """This request without the inputs that its program does not use, unless they are to be kept."""
        program = dce(self.program)
        wanted = {value for equation in program.equations for value in equation.inputs} | set(program.outputs)
        kept = [number for number, value in enumerate(program.inputs) if value in wanted]
        if self.keep_unused or len(kept) == len(program.inputs):
            return self

        def only(items: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(items[number] for number in kept if number < len(items))

        smaller = Program(only(program.inputs), program.equations, program.outputs, program.name)
        return Request(
            smaller,
            only(self.signatures),
            self.out_shardings,
            only(self.names),
            only(self.in_shardings),
            only(self.donated),
            kept=tuple(kept),
        )

    def target(self) -> Target:
        """The one place where all of it can run; where there is none, an error that lists who wants what."""
        wishes: list[tuple[str, Sharding | Mesh]] = []
        for number, given in enumerate(self.signatures):
            if given.committed:
                name = self.names[number] if number < len(self.names) else "a captured array"
                wishes.append((f"{name}: {given.type}", given.sharding))
        for number, sharding in enumerate(self.in_shardings):
            if sharding is not None:
                wishes.append((f"in_shardings for {self.names[number]}", sharding))
        for number, sharding in enumerate(self.out_shardings):
            if sharding is not None:
                wishes.append((f"out_shardings for output {number}", sharding))
        wishes += [(f"with_sharding_constraint at {equation.source}", mesh) for equation, mesh in _meshes(self.program)]
        meshes = [(who, _mesh(wish)) for who, wish in wishes]
        places = {mesh if mesh is not None else wish for (_, wish), (_, mesh) in zip(wishes, meshes, strict=True)}
        if len(places) > 1:
            lines = "\n".join(f"  {who}: {wish}" for who, wish in dict(wishes).items())
            raise DeviceMismatchError(
                f"`{self.program.name}`, called at {user_source()}, cannot run on different devices at once.\n{lines}\n"
                "  Move arrays to one mesh or one device with `device_put` first."
            )
        for where in places:
            if isinstance(where, Mesh):
                return Target(where, None, True)
            assert isinstance(where, Sharding)
            return Target(None, where.devices[0], True)
        return Target(None, default_device(), False)


def _mesh(wish: Sharding | Mesh) -> Mesh | None:
    return wish if isinstance(wish, Mesh) else wish.mesh if isinstance(wish, NamedSharding) else None


def default_device() -> Any:
    """Where arrays go that nobody placed."""
    return local_devices()[0]


def stages(request: Request, target: Target) -> tuple[Partitioned, dict[int, Sharding]]:
    """The request up to XLA's text, and the inputs that must move to where they are expected."""
    mesh = target.mesh.abstract if target.mesh is not None else ONE_DEVICE
    moves: dict[int, Sharding] = {}
    pins = []
    for number, given in enumerate(request.signatures):
        name = request.names[number] if number < len(request.names) else "a captured array"
        asked = request.in_shardings[number] if number < len(request.in_shardings) else None
        here = given.sharding.devices == target.devices
        if here and (target.mesh is None or _mesh(given.sharding) == target.mesh):
            pins.append(given.sharding.pin(given.type.shape, name))
            continue
        wanted = asked or target.sharding(Layout.replicated(given.type.ndim))
        pins.append(Pin(wanted.pin(given.type.shape).layout, reason=name))
        moves[number] = wanted
    out_pins = [
        None if sharding is None else sharding.pin(type.shape, f"out_shardings of output {number}")
        for number, (type, sharding) in enumerate(zip(request.program.out_types, request.out_shardings, strict=True))
    ]
    return partitioned(_constrained(request, target), mesh, pins, out_pins, request.donated), moves


def _constrained(request: Request, target: Target) -> Program:
    """The program with `in_shardings` as constraints on its inputs."""
    program = request.program
    if target.mesh is None or not any(request.in_shardings):
        return program
    inputs: dict[Value, Value] = {}
    pinning = []
    for value, asked in zip(program.inputs, request.in_shardings, strict=False):
        if isinstance(asked, NamedSharding):
            pin = asked.pin(value.type.shape)
            inputs[value] = Value(value.type)
            op = Constrain(pin.layout.dims, asked.mesh, tuple(sorted(pin.open_dims)))
            pinning.append(Equation(op, [inputs[value]], [value]))
    return Program(
        tuple(inputs.get(value, value) for value in program.inputs),
        (*pinning, *program.equations),
        program.outputs,
        program.name,
    )


def prepare(request: Request, constants: Sequence[Array] = ()) -> Launch:
    """Compile a request. `constants` are captured arrays, bound as the last inputs."""
    request, constants = hoisted(request, constants)
    first = len(request.signatures) - len(constants)
    request = request.used()
    if request.kept is not None:
        constants = [constants[number - first] for number in request.kept if number >= first]
        first = len(request.signatures) - len(constants)
    target = request.target()
    compiled, moves = stages(request, target)
    for number, is_donated in enumerate(request.donated):
        if is_donated and number not in compiled.module.aliases:
            given = request.signatures[number]
            warnings.warn(
                f"{request.names[number]} of `{request.program.name}` is donated, but no result has its type and "
                f"layout ({given.type} in {given.sharding}): its memory is not reused.",
                stacklevel=4,
            )
    shardings = [target.sharding(layout) for layout in compiled.plan.outputs]
    executable = load(compiled, target.devices, shardings, target.committed)
    bound = [moved(array, moves.pop(first + i)) if first + i in moves else array for i, array in enumerate(constants)]
    return Launch(executable, request, moves, bound)


def hoisted(request: Request, constants: Sequence[Array]) -> tuple[Request, list[Array]]:
    """The request with the arrays that its program holds as further inputs, and these among the constants."""
    if not any(isinstance(equation.op, Held) for equation in _equations(request.program)):
        return request, list(constants)
    program = inline(request.program)
    held = [equation for equation in program.equations if isinstance(equation.op, Held)]
    arrays = [equation.op.array.value for equation in held if isinstance(equation.op, Held)]
    larger = Program(
        (*program.inputs, *(equation.outputs[0] for equation in held)),
        tuple(equation for equation in program.equations if not isinstance(equation.op, Held)),
        program.outputs,
        program.name,
    )
    signatures = (*request.signatures, *(array.signature for array in arrays))
    return replace(request, program=larger, signatures=signatures), [*constants, *arrays]


def moved(array: Array, sharding: Sharding) -> Array:
    """The array in another sharding: by a compiled exchange where the devices are the same, else through the host."""
    if array.sharding == sharding:
        return array
    if isinstance(sharding, NamedSharding) and _mesh(array.sharding) == sharding.mesh:
        pin = sharding.pin(array.type.shape)
        return installed.executor.run(Constrain(pin.layout.dims, sharding.mesh), (array,))[0]  # type: ignore[no-any-return]
    return place(array.numpy(), array.type, sharding, committed=True)


def _meshes(program: Program) -> list[tuple[Equation, Mesh]]:
    return [
        (equation, equation.op.mesh)
        for equation in _equations(program)
        if isinstance(equation.op, Constrain) and isinstance(equation.op.mesh, Mesh)
    ]


def _equations(program: Program) -> Iterator[Equation]:
    """Every equation, those of inner programs too."""
    for equation in program.equations:
        yield equation
        inner = getattr(equation.op, "program", None)
        if isinstance(inner, Program):
            yield from _equations(inner)


def as_array(x: Any, name: str = "array") -> Array:
    """`x` as an Array: numpy arrays and scalars are copied to the default device, uncommitted."""
    if isinstance(x, Array):
        return x
    if isinstance(x, Tracer):
        raise UnexpectedTracerError(x.frame.leak(x))
    if isinstance(x, PYTHON_SCALARS):
        # 0.0 and -0.0 are equal but not the same: the text tells them apart.
        return _scalar(type_of(x), x, str(x), default_device())
    return place(np.asarray(x), type_of(x, name), SingleDeviceSharding(default_device()), committed=False)


@lru_cache(maxsize=1024)
def _scalar(given: ArrayType, value: Any, text: str, device: Any) -> Array:
    return place(np.asarray(value, given.dtype), given, SingleDeviceSharding(device), committed=False)


class _Executor:
    """Ops and functions on concrete arrays, outside every frame."""

    def __init__(self) -> None:
        self._launches: dict[Any, Launch] = {}

    def place(self, value: Any) -> Array:
        return as_array(value)

    def run(self, op: Op, args: Sequence[Array]) -> tuple[Array, ...]:
        """One op."""
        key = (op, config.enable_x64, *(x.signature for x in args))
        launch = self._launches.get(key)
        if launch is None:
            inputs = [Value(x.type) for x in args]
            outputs = [Value(type) for type in result_types(op, tuple(value.type for value in inputs))]
            program = Program(tuple(inputs), (Equation(op, inputs, outputs, user_source()),), tuple(outputs), op.name)
            launch = self._launches[key] = prepare(_request(program, args))
        return tuple(launch(args))

    @boundary
    def call(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> Array:
        """A function of arrays with static keywords, as one program."""
        arrays = [x if isinstance(x, Array) else as_array(x, function.__name__) for x in args]
        key = (function, config.enable_x64, *(x.signature for x in arrays), *static.items())
        launch = self._launches.get(key)
        if launch is None:
            bound = partial(function, **static)
            program, captured = build(lambda *xs: [bound(*xs)], [x.type for x in arrays], function.__name__)
            assert not captured, f"{function.__name__} closes over arrays"
            launch = self._launches[key] = prepare(_request(program, arrays))
        return launch(arrays)[0]


def _request(program: Program, args: Sequence[Array]) -> Request:
    names = tuple(f"operand {number}" for number in range(len(args)))
    return Request(program, tuple(x.signature for x in args), (None,) * len(program.outputs), names)


installed.executor = _Executor()
