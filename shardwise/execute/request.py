"""Request: a program to run, the arrays it is called with by their signatures, and what the user asked of the outcome.

A request finds its target (one mesh or one device on which all of it can run), and goes through every stage up to the
text for XLA. Nothing here holds or moves an array's elements.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.control.manual import Manual
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.shape.constants import ArrayConstant
from shardwise.compiler.pipeline import Stages, run_stages
from shardwise.compiler.plan.hardware import CPU, Chip, chip_of
from shardwise.compiler.propagate.refine import refine_program
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, device_grid
from shardwise.compiler.shardings.refine import coarsen_layout, common_mesh, refine_pin
from shardwise.compiler.shardings.spec import spec_of
from shardwise.compiler.trace.provenance import user_source
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lift_constants import lift_constants
from shardwise.config import config
from shardwise.errors import DeviceMismatchError, ShardingError
from shardwise.runtime.array import Array, ArraySignature
from shardwise.runtime.client import local_devices, platform_of
from shardwise.runtime.sharding import (
    ONE_DEVICE,
    NamedSharding,
    PositionalSharding,
    Sharding,
    SingleDeviceSharding,
    mesh_of,
)


@final
@dataclass(frozen=True)
class Target:
    """Where a program runs: on a mesh, or on one device. `committed`: because the user said so.

    `meshes` are those that the user named, over the same devices; `positional`: none of them has names for its axes.
    """

    mesh: Mesh | None
    device: Any
    committed: bool
    meshes: tuple[Mesh, ...] = ()
    positional: bool = False

    @property
    def devices(self) -> tuple[Any, ...]:
        return self.mesh.flat_devices if self.mesh is not None else (self.device,)

    def sharding(self, layout: Layout) -> Sharding:
        """`layout` here."""
        if self.mesh is None:
            return SingleDeviceSharding(self.device)
        if self.positional:
            return PositionalSharding.on(self.mesh, layout)
        for mesh in self.meshes:
            if (found := coarsen_layout(layout, mesh.abstract, self.mesh.abstract)) is not None:
                return NamedSharding(mesh, spec_of(found))
        return NamedSharding(self.mesh, spec_of(layout))

    def refined(self, fine: AbstractMesh) -> "Target":
        """This target on a finer mesh over the same devices."""
        if self.mesh is None or self.mesh.abstract == fine:
            return self
        return replace(self, mesh=Mesh(device_grid(self.mesh.flat_devices, fine.axis_sizes), fine.axis_names))

    def pin(self, sharding: Sharding, shape: tuple[int, ...], reason: str = "") -> Pin:
        """What a sharding over the same devices asks for, on the mesh of this target."""
        pin, mesh = sharding.pin(shape, reason), mesh_of(sharding)
        if mesh is None or self.mesh is None or mesh == self.mesh:
            return pin
        return refine_pin(pin, mesh.abstract, self.mesh.abstract)


@final
@dataclass(frozen=True, eq=False)
class Request:
    """A program to run: its inputs as they are given, and what the user asked of its outputs.

    `names` are the arguments as the user wrote them, for messages. Inputs without a name are captured values.
    """

    program: Program
    signatures: tuple[ArraySignature, ...]
    out_shardings: tuple[Sharding | None, ...]
    names: tuple[str, ...]
    in_shardings: tuple[Sharding | None, ...] = ()
    donated: tuple[bool, ...] = ()
    keep_unused: bool = True
    kept: tuple[int, ...] | None = None  # which inputs of an earlier request these are, where some were dropped

    def used(self) -> "Request":
        """This request without the inputs that its program does not use, unless they are to be kept."""
        program = dce(self.program)
        wanted = program.used
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
        meshes = _meshes(self.program)
        for equation, mesh in meshes:
            what = "with_sharding_constraint" if isinstance(equation.op, Constrain) else "shard_map"
            if isinstance(mesh, Mesh):
                wishes.append((f"{what} at {equation.source}", mesh))
        found = _common(wishes)
        if found is None:
            lines = "\n".join(f"  {who}: {wish}{_numbers(wish)}" for who, wish in dict.fromkeys(wishes))
            raise DeviceMismatchError(
                f"`{self.program.name}`, called at {user_source()}, cannot run on different devices at once.\n{lines}\n"
                "  Move arrays to one mesh or one device with `device_put` first."
            )
        for equation, mesh in meshes:
            if isinstance(equation.op, Manual) and (found.mesh is None or found.mesh.size != mesh.size):
                raise ShardingError(
                    f"shard_map at {equation.source} is over {mesh}, which has no devices, and the arguments of "
                    f"`{self.program.name}` are on {len(found.devices)}, not on {mesh.size} that it could run on.\n"
                    "  Put an argument on a mesh of these sizes with `device_put`, or give shard_map a Mesh."
                )
        return found


def _numbers(wish: Sharding | Mesh) -> str:
    """Which devices of all a mesh has."""
    if isinstance(wish, SingleDeviceSharding):
        return ""
    numbers = [device.id for device in (wish.flat_devices if isinstance(wish, Mesh) else wish.devices)]
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f", on devices {numbers[0]} to {numbers[-1]}"
    return f", on devices {', '.join(map(str, numbers))}"


def _common(wishes: Sequence[tuple[str, Sharding | Mesh]]) -> Target | None:
    """The place that serves all wishes: they name the same devices, on meshes that have a common refinement."""
    if not wishes:
        return Target(None, default_device(), False)
    wanted = {wish: mesh_of(wish) for _, wish in wishes}
    places = {mesh.flat_devices if mesh else wish.devices for wish, mesh in wanted.items()}
    if len(places) > 1:
        return None
    meshes = tuple(dict.fromkeys(mesh for mesh in wanted.values() if mesh is not None))
    if not meshes:
        return Target(None, next(iter(places))[0], True)
    mesh = common_mesh(meshes)
    if mesh is None:
        return None
    cut = [wish for wish in wanted if isinstance(wish, (NamedSharding, PositionalSharding))]
    positional = bool(cut) and all(isinstance(wish, PositionalSharding) for wish in cut)
    return Target(mesh, None, True, meshes, positional)


def default_device() -> Any:
    """Where arrays go that nobody placed."""
    asked = config.default_device
    return local_devices(backend=asked)[0] if asked is None or isinstance(asked, str) else asked


def partition_request(request: Request, target: Target, chip: Chip | None = None) -> tuple[Stages, dict[int, Sharding]]:
    """The request up to XLA's text, and the inputs that must move to where they are expected. `chip`: planned for
    other devices than the target's."""
    mesh = target.mesh.abstract if target.mesh is not None else ONE_DEVICE
    moves: dict[int, Sharding] = {}
    pins = []
    for number, given in enumerate(request.signatures):
        name = request.names[number] if number < len(request.names) else "a captured array"
        asked = request.in_shardings[number] if number < len(request.in_shardings) else None
        if given.sharding.devices == target.devices and (given.committed or mesh_of(given.sharding) == target.mesh):
            pins.append(target.pin(given.sharding, given.type.shape, name))
            if given.sharding.kind:
                moves[number] = given.sharding.in_default_memory
            continue
        wanted = asked or target.sharding(Layout.replicated(given.type.ndim))
        nobody = frozenset(range(given.type.ndim)) if asked is None else frozenset()  # has asked for it to be whole
        pins.append(Pin(target.pin(wanted, given.type.shape).layout, nobody, name))
        moves[number] = wanted.in_default_memory
    out_pins = [
        None if sharding is None else target.pin(sharding, type.shape, f"out_shardings of output {number}")
        for number, (type, sharding) in enumerate(zip(request.program.out_types, request.out_shardings, strict=True))
    ]
    device = target.devices[0]
    found = run_stages(
        _constrained(request, target),
        mesh,
        pins,
        out_pins,
        request.donated,
        platform_of(device),
        chip or chip_of(device.device_kind),
        _memory_limit(chip or chip_of(device.device_kind)),
    )
    return found, moves


def _memory_limit(chip: Chip) -> int | None:
    """What a device should hold at most, in bytes: as the user says, or as much as it has. Virtual devices share the
    host's memory, of which none has a part of its own."""
    asked = config.memory_limit
    if asked:
        return None if asked < 0 else asked
    return None if chip is CPU else chip.memory


def _constrained(request: Request, target: Target) -> Program:
    """The program with `in_shardings` as constraints on its inputs, and all constraints on the target's mesh."""
    program = request.program
    if target.mesh is None:
        return program
    if any(mesh not in (target.mesh, target.mesh.abstract) for _, mesh in _meshes(program)):
        program = refine_program(inline(program), target.mesh)
    inputs: dict[Value, Value] = {}
    pinning = []
    for value, asked in zip(program.inputs, request.in_shardings, strict=False):
        if asked is not None:
            pin = target.pin(asked, value.type.shape)
            inputs[value] = Value(value.type)
            op = Constrain(pin.layout.dims, target.mesh, tuple(sorted(pin.open_dims)))
            pinning.append(Equation(op, [inputs[value]], [value]))
    if not pinning:
        return program
    return Program(
        tuple(inputs.get(value, value) for value in program.inputs),
        (*pinning, *program.equations),
        program.outputs,
        program.name,
    )


def lift_held_arrays(request: Request, constants: Sequence[Array]) -> tuple[Request, list[Array]]:
    """The request with the arrays that its program holds as further inputs, and these among the constants."""
    if not any(isinstance(equation.op, ArrayConstant) for equation in request.program.walk()):
        return request, list(constants)
    larger, arrays = lift_constants(inline(request.program))
    signatures = (*request.signatures, *(array.signature for array in arrays))
    return replace(request, program=larger, signatures=signatures), [*constants, *arrays]


def _meshes(program: Program) -> list[tuple[Equation, Mesh | AbstractMesh]]:
    """The meshes that constraints and manual regions are on."""
    return [(equation, equation.op.mesh) for equation in program.walk() if isinstance(equation.op, (Constrain, Manual))]
