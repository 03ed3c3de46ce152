"""Request: a program to run, the signatures of its inputs, and the shardings that the user requested.

A request determines its target (one mesh or one device on which everything can run), and is partitioned and lowered to
StableHLO. Nothing here reads or moves the elements of an array.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from shardwise.base.config import config
from shardwise.compiler.candidates.refine import refine_program
from shardwise.compiler.control.manual import Manual
from shardwise.compiler.control.output_memory import out_kinds
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.memory_space import PINNED_HOST
from shardwise.compiler.ops.placement.reshard import Reshard
from shardwise.compiler.ops.shape.constants import ArrayConstant
from shardwise.compiler.pipeline import Stages, run_stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip_of
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import ONE_DEVICE, AbsentDevice, AbstractMesh, Mesh, absent_mesh, device_grid
from shardwise.compiler.shardings.named_sharding import NamedSharding, explicit_sharding
from shardwise.compiler.shardings.refine import coarsen_layout, common_mesh, refine_pin
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import spec_of
from shardwise.compiler.stage_dump import StageDump
from shardwise.compiler.trace.provenance import user_source
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.host_copies import NO_HOST_ARRAYS, HostArrays
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lift_constants import lift_constants
from shardwise.errors import DeviceMismatchError, ShardingError
from shardwise.runtime.array import ArrayImpl, ArraySignature, array_signature
from shardwise.runtime.client import local_devices, lowering_platform
from shardwise.runtime.sharding import PositionalSharding, SingleDeviceSharding, check_argument_type, mesh_of


@final
@dataclass(frozen=True)
class Target:
    """The mesh or the device that a program runs on.

    Attributes:
        mesh: the mesh; None for one device.
        device: the device, if there is no mesh.
        committed: whether the user chose it, by committed arrays or by shardings.
        meshes: the user's meshes. All have the same devices; `mesh` is their common refinement.
        positional: whether the user has only PositionalShardings, whose mesh axes have no names.
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
        """Return the sharding that has `layout` on this target."""
        if self.mesh is None:
            return SingleDeviceSharding(self.device)
        if self.positional:
            return PositionalSharding.on(self.mesh, layout)
        for mesh in self.meshes:
            if (coarse := coarsen_layout(layout, mesh.abstract, self.mesh.abstract)) is not None:
                return _named_sharding(mesh, coarse)
        return _named_sharding(self.mesh, layout)

    def sharding_on(self, mesh: AbstractMesh, layout: Layout) -> Sharding:
        """Return the sharding that has `layout` on this target, with the axes of `mesh` if that is possible."""
        assert self.mesh is not None
        coarse = coarsen_layout(layout, mesh, self.mesh.abstract)
        return self.sharding(layout) if coarse is None else _named_sharding(self.mesh.with_axes(mesh), coarse)

    def refined(self, fine: AbstractMesh) -> "Target":
        """Return this target on a finer mesh over the same devices."""
        if self.mesh is None or self.mesh.abstract == fine:
            return self
        grid = device_grid(self.mesh.flat_devices, fine.axis_sizes)
        return replace(self, mesh=Mesh(grid, fine.axis_names, fine.axis_types))

    def pin(self, sharding: Sharding, shape: tuple[int, ...], reason: str = "") -> Pin:
        """Return the pin of a sharding over the same devices, on the mesh of this target."""
        pin, mesh = sharding.pin(shape, reason), mesh_of(sharding)
        if mesh is None or self.mesh is None or mesh == self.mesh:
            return pin
        return refine_pin(pin, mesh.abstract, self.mesh.abstract)


def _named_sharding(mesh: Mesh, layout: Layout) -> NamedSharding:
    """Return the sharding of a layout, on an AbstractMesh if the mesh has no devices."""
    is_absent = isinstance(mesh.flat_devices[0], AbsentDevice)
    return NamedSharding(mesh.abstract if is_absent else mesh, spec_of(layout))


@final
@dataclass(frozen=True, eq=False)
class Request:
    """A program to run, with the signatures of its inputs and the shardings that the user requested.

    Attributes:
        program: the program. Its inputs without a name are captured arrays.
        signatures: the type, the sharding and whether it is committed, of each input.
        out_shardings: the requested sharding of each output, or None.
        names: the arguments in the user's notation, for messages.
        in_shardings: the requested sharding of each argument, or None.
        donated: whether each argument is donated.
        keep_unused: whether to keep inputs that the program does not use.
        kept: the positions, in the original request, of the inputs that were not dropped; None if none was dropped.
        device: the device to run on, wherever the inputs are; None if the inputs and shardings decide.
        out_names: the paths of the outputs in the result, for messages.
        jit_source: the line of the `jit` that has the requested shardings; None if the user requested none.
        platform: the platform to lower for; None for the devices' platform.
        mesh: the current mesh where the program is called; None if there is none.
        on_current_mesh: whether the program runs on `mesh` if it has no committed arrays and no shardings.
        for_jax: whether JAX runs the module: its devices are partitions, results are sharded evenly, and JAX donates.
    """

    program: Program
    signatures: tuple[ArraySignature, ...]
    out_shardings: tuple[Sharding | None, ...]
    names: tuple[str, ...]
    in_shardings: tuple[Sharding | None, ...] = ()
    donated: tuple[bool, ...] = ()
    keep_unused: bool = True
    kept: tuple[int, ...] | None = None
    device: Any = None
    out_names: tuple[str, ...] = ()
    jit_source: Source | None = None
    platform: str | None = None
    mesh: Mesh | AbstractMesh | None = None
    on_current_mesh: bool = False
    for_jax: bool = False

    def without_unused_inputs(self) -> "Request":
        """Return this request without the inputs that its program does not use, unless `keep_unused`."""
        program = dce(self.program)
        used = program.used
        kept = [number for number, value in enumerate(program.inputs) if value in used]
        if self.keep_unused or len(kept) == len(program.inputs):
            return self

        def only(items: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(items[number] for number in kept if number < len(items))

        smaller = Program(only(program.inputs), program.equations, program.outputs, program.name)
        return replace(
            self,
            program=smaller,
            signatures=only(self.signatures),
            names=only(self.names),
            in_shardings=only(self.in_shardings),
            donated=only(self.donated),
            keep_unused=True,
            kept=tuple(kept),
        )

    def on_devices(self, devices: Sequence[Any]) -> "Request":
        """Return this request with its shardings moved from AbstractMeshes to a Mesh of these devices.

        Raises:
            DeviceMismatchError: if the size of an AbstractMesh differs from the number of devices.
        """

        def move(sharding: Sharding | None) -> Any:
            if not isinstance(sharding, NamedSharding) or isinstance(sharding.mesh, Mesh):
                return sharding
            mesh = sharding.mesh
            if mesh.device_count != len(devices):
                raise DeviceMismatchError(
                    f"compile: device_assignment has {len(devices)} devices, but `{self.program.name}` was lowered for "
                    f"{mesh!r}, which has {mesh.device_count}"
                )
            grid = Mesh(device_grid(devices, mesh.axis_sizes), mesh.axis_names, mesh.axis_types)
            return sharding.update(mesh=grid)

        signatures = [array_signature(s.type, move(s.sharding), s.committed) for s in self.signatures]
        out_shardings, in_shardings = (tuple(map(move, given)) for given in (self.out_shardings, self.in_shardings))
        mesh = Mesh(devices, "devices").with_axes(self.mesh) if isinstance(self.mesh, AbstractMesh) else self.mesh
        return replace(
            self,
            signatures=tuple(signatures),
            out_shardings=out_shardings,
            in_shardings=in_shardings,
            platform=None,
            mesh=mesh,
        )

    def output_name(self, number: int) -> str:
        """Return the path of an output in the result, for messages."""
        return self.out_names[number] if self.out_names else f"output {number}"

    def resharded_arguments(self) -> list[int]:
        """Return the positions of the committed arguments whose sharding differs from their `in_shardings`."""
        if self.jit_source is None:
            return []
        return [
            index
            for index, (signature, requested) in enumerate(zip(self.signatures, self.in_shardings, strict=False))
            if requested is not None
            and signature.committed
            and not requested.pin(signature.type.shape).open_dims
            and not signature.sharding.in_default_memory.is_equivalent_to(
                requested.in_default_memory, signature.type.ndim
            )
        ]

    def check_in_shardings(self) -> None:
        """Raise an error if an argument would be resharded and the setting `in_shardings_mismatch` is "raise".

        Raises:
            ShardingError: if an argument would be resharded; the message has its name and both shardings.
        """
        for number in self.resharded_arguments():
            signature, requested = self.signatures[number], self.in_shardings[number]
            assert requested is not None
            if signature.sharding.mesh_shape.explicit_axes:
                check_argument_type(f"{self.names[number]} of `{self.program.name}`", signature.type, requested)
        if config.in_shardings_mismatch != "raise":
            return
        for number in self.resharded_arguments():
            raise ShardingError(f"{self.describe_mismatch(number)} (The setting in_shardings_mismatch is 'raise'.)")

    def describe_mismatch(self, number: int, effect: str = "") -> str:
        """Return the message for an argument whose sharding differs from its `in_shardings`."""
        actual, requested = self.signatures[number].sharding, self.in_shardings[number]
        return (
            f"argument {self.names[number]} of `{self.program.name}`, {self.signatures[number].type}, has {actual}, "
            f"but in_shardings of jit at {self.jit_source} has {requested}{effect}.\n"
            f"  Put it there once, with `device_put(…, {requested})`, or change in_shardings; None keeps the sharding "
            "of an argument."
        )

    def out_memory_kinds(self) -> tuple[str | None, ...]:
        """Return the memory kinds of the results: the memory of the operands if `jax_compatibility` is "exact".

        Raises:
            ValueError: if `jax_compatibility` is "exact" and the operands of an op are in different memories.
        """
        kinds = [signature.sharding.nondefault_memory for signature in self.signatures]
        for index, sharding in enumerate(self.in_shardings):
            kinds[index] = kinds[index] if sharding is None else sharding.nondefault_memory
        return out_kinds(self.program, kinds if config.is_exact else None)

    def result_memories(self) -> list[str | None]:
        """Return the memory kind in which each result must be: that of `out_shardings`, else that of the program."""
        return [
            kind if sharding is None else sharding.nondefault_memory
            for sharding, kind in zip(self.out_shardings, self.out_memory_kinds(), strict=True)
        ]

    def target(self) -> Target:
        """Return the mesh or the device on which everything can run.

        Raises:
            DeviceMismatchError: if arguments, shardings and constraints are on different devices.
            ShardingError: if a shard_map is over an AbstractMesh whose size differs from the target's.
        """
        requests: list[tuple[str, Sharding | Mesh]] = []  # (description of the requester, the devices that it needs)
        scoped_requests: list[tuple[str, Sharding | Mesh]] = []  # the requests of parts of the program
        if self.device is not None:
            requests.append(("the device of jit", SingleDeviceSharding(self.device)))
        for index, signature in enumerate(self.signatures):
            if signature.committed and self.device is None:
                name = self.names[index] if index < len(self.names) else "a captured array"
                explicit = signature.type.explicit
                is_scoped = explicit is not None and explicit.scoped
                (scoped_requests if is_scoped else requests).append((f"{name}: {signature.type}", signature.sharding))
        for index, sharding in enumerate(self.in_shardings):
            if sharding is not None:
                requests.append((f"in_shardings for {self.names[index]}", sharding))
        for index, sharding in enumerate(self.out_shardings):
            if sharding is not None:
                requests.append((f"out_shardings for {self.output_name(index)}", sharding))
        meshes = _meshes(self.program)
        scoped = scoped_meshes(self.program)
        for equation, mesh in meshes:
            if isinstance(mesh, Mesh):
                is_scoped = mesh.abstract in scoped
                (scoped_requests if is_scoped else requests).append(
                    (f"{equation.op.user_function} at {equation.source}", mesh)
                )
        abstract = [mesh for equation, mesh in meshes if equation.op.constraint and not isinstance(mesh, Mesh)]
        scoped = list(dict.fromkeys([*scoped, *(mesh.abstract for mesh in abstract)]))
        current = mesh_of(self.mesh)
        if not requests and current is not None and (scoped or self.on_current_mesh):
            requests.append(("the current mesh", current))
        if isinstance(self.mesh, AbstractMesh) and self.mesh.explicit_axes:
            self._check_size(requests, self.mesh)
        requests = requests or scoped_requests
        if not requests and abstract:
            requests.append(("with_sharding_constraint", absent_mesh(abstract[0].abstract)))
        target = _common_target([where for _, where in requests], scoped)
        if target is None:
            lines = "\n".join(f"  {source}: {where}{_device_ids(where)}" for source, where in dict.fromkeys(requests))
            raise DeviceMismatchError(
                f"`{self.program.name}`, called at {user_source()}, cannot run on different devices at once.\n{lines}\n"
                "  Move arrays to one mesh or one device with `device_put` first."
            )
        for equation, mesh in meshes:
            if isinstance(equation.op, Manual) and (
                target.mesh is None or target.mesh.device_count != mesh.device_count
            ):
                raise ShardingError(
                    f"shard_map at {equation.source} is over the AbstractMesh {mesh}, which needs {mesh.device_count} "
                    f"devices, but the arguments of `{self.program.name}` are on {len(target.devices)}.\n"
                    "  Put an argument on a mesh of these sizes with `device_put`, or pass a Mesh to shard_map."
                )
        return target

    def _check_size(self, requests: Sequence[tuple[str, Sharding | Mesh]], mesh: AbstractMesh) -> None:
        """Raise an error if a request needs more or fewer devices than the mesh of `use_abstract_mesh` has."""
        for source, where in requests:
            size = where.device_count if isinstance(where, Mesh) else where.num_devices
            if size != mesh.device_count:
                raise DeviceMismatchError(
                    f"`{self.program.name}`, called at {user_source()}, is in `use_abstract_mesh` of {mesh!r}, which "
                    f"has {mesh.device_count} devices, but {source} needs {size}: {where}. Use shardings on that mesh."
                )


def _device_ids(where: Sharding | Mesh) -> str:
    """Format the device ids of a mesh or a sharding, for messages."""
    if isinstance(where, SingleDeviceSharding):
        return ""
    ids = [device.id for device in (where.flat_devices if isinstance(where, Mesh) else where.devices)]
    if len(ids) > 2 and ids == list(range(ids[0], ids[0] + len(ids))):
        return f", on devices {ids[0]} to {ids[-1]}"
    return f", on devices {', '.join(map(str, ids))}"


def scoped_meshes(program: Program) -> list[AbstractMesh]:
    """Return the meshes of the parts of a program that `auto_axes` and similar functions wrap."""
    ops = (equation.op for equation in program.walk() if isinstance(equation.op, Reshard))
    shardings = [op.sharding for op in ops if op.scoped] + [type.explicit for type in program.in_types]
    return list(dict.fromkeys(sharding.mesh.abstract for sharding in shardings if sharding and sharding.scoped))


def _common_target(requests: Sequence[Sharding | Mesh], scoped: Sequence[AbstractMesh]) -> Target | None:
    """Return the target that fits all requests: the same devices, on a common refinement of the meshes; else None.

    `scoped` are the meshes of parts of the program.
    """
    if not requests:
        return Target(None, default_device(), False)
    mesh_by_request = {request: mesh_of(request) for request in requests}
    device_lists = {mesh.flat_devices if mesh else request.devices for request, mesh in mesh_by_request.items()}
    if len(device_lists) > 1:
        return None
    meshes = tuple(dict.fromkeys(mesh for mesh in mesh_by_request.values() if mesh is not None))
    if not meshes:
        return Target(None, next(iter(device_lists))[0], True)
    mesh = common_mesh(meshes, scoped)
    if mesh is None:
        return None
    shardings = [request for request in mesh_by_request if isinstance(request, (NamedSharding, PositionalSharding))]
    positional = bool(shardings) and all(isinstance(sharding, PositionalSharding) for sharding in shardings)
    return Target(mesh, None, True, meshes, positional)


def default_device() -> Any:
    """Return the device for arrays and programs that are not placed otherwise."""
    setting = config.default_device
    return local_devices(backend=setting)[0] if setting is None or isinstance(setting, str) else setting


def partition_request(
    request: Request, target: Target, chip: Chip | None = None, dump: StageDump | None = None
) -> tuple[Stages, dict[int, Sharding]]:
    """Partition a request and lower it to StableHLO.

    Args:
        request: the program and its inputs.
        target: the mesh or the device to run on.
        chip: the chip to plan for, if it is not the chip of the target's devices.
        dump: keeps the result of every pass.

    Returns:
        The partitioned program, and the shardings to which inputs must be transferred first, by position. The program
        itself copies inputs from pinned host memory, if the platform has such a memory.
    """
    mesh = target.mesh.abstract if target.mesh is not None else ONE_DEVICE
    moves: dict[int, Sharding] = {}
    host_inputs = []
    pins = []
    for index, signature in enumerate(request.signatures):
        type, sharding = signature.type, signature.sharding
        name = request.names[index] if index < len(request.names) else "a captured array"
        requested = request.in_shardings[index] if index < len(request.in_shardings) else None
        sharding.check_even(type.shape)
        if sharding.devices == target.devices and (signature.committed or mesh_of(sharding) == target.mesh):
            pins.append(target.pin(sharding, type.shape, name))
            if sharding.nondefault_memory:
                moves[index] = sharding.in_default_memory
                if sharding.nondefault_memory == PINNED_HOST:
                    host_inputs.append(index)
            continue
        expected = requested or target.sharding(Layout.replicated(type.ndim))
        open_dims = frozenset(range(type.ndim)) if requested is None else frozenset()  # replication was not requested
        pins.append(Pin(target.pin(expected, type.shape).layout, open_dims, name))
        moves[index] = expected.in_default_memory
    out_pins: list[Pin | None] = []
    for index, (type, out_sharding) in enumerate(zip(request.program.out_types, request.out_shardings, strict=True)):
        label = f"out_shardings for {request.output_name(index)}"
        out_pins.append(None if out_sharding is None else target.pin(out_sharding, type.shape, label))
    device = target.devices[0]
    chip = chip or chip_of(device.device_kind)
    platform = request.platform or lowering_platform(device)
    # JAX, and whoever loads an exported module, pass arguments in device memory.
    copies_in_module = not request.for_jax and request.platform is None and (platform != "cpu" or chip.host_link > 0)
    host_outputs = [index for index, kind in enumerate(request.result_memories()) if kind == PINNED_HOST]
    program = _constrained(request, target)

    def stages_with(out_pins: Sequence[Pin | None]) -> Stages:
        return run_stages(
            program,
            mesh,
            pins,
            out_pins,
            request.donated,
            platform,
            chip,
            memory_limit_of(chip),
            request.out_names,
            [] if target.positional else [user_mesh.abstract for user_mesh in target.meshes],
            dump,
            request.for_jax,
            HostArrays(frozenset(host_inputs), frozenset(host_outputs)) if copies_in_module else NO_HOST_ARRAYS,
        )

    stages = stages_with(out_pins)
    if (config.is_exact or request.for_jax) and (even_pins := _even_pins(stages, mesh, out_pins)) != out_pins:
        stages = stages_with(even_pins)
    return stages, {index: sharding for index, sharding in moves.items() if index not in stages.module.host_inputs}


def _even_pins(stages: Stages, mesh: AbstractMesh, pins: Sequence[Pin | None]) -> list[Pin | None]:
    """Return the pins of the outputs, with pins of the outputs that the planner has sharded unevenly."""
    even_pins = list(pins)
    for index, (type, planned) in enumerate(zip(stages.out_types, stages.plan.outputs, strict=True)):
        layout = Layout(planned.dims[: type.ndim], planned.partial)  # key layouts have a trailing dim
        even = layout.evenly(type.shape, stages.problem.mesh)
        if pins[index] is None and even != layout:
            coarse = coarsen_layout(even, mesh, stages.problem.mesh)
            even_pins[index] = Pin(coarse or Layout.replicated(type.ndim), reason="even shards, as JAX needs them")
    return even_pins


def memory_limit_of(chip: Chip) -> int | None:
    """Return the memory limit per device in bytes: the setting, or the memory of the chip that programs can use.

    None for no limit.

    Virtual CPU devices have no limit by default, because they share the host's memory.
    """
    limit = config.memory_limit
    if limit:
        return None if limit < 0 else limit
    return None if chip.platform == "cpu" else chip.usable_memory


def _constrained(request: Request, target: Target) -> Program:
    """Return the program with `in_shardings` as constraints on its inputs, and all constraints on the target's mesh."""
    program = request.program
    if target.mesh is None:
        return program
    if any(mesh not in (target.mesh, target.mesh.abstract) for _, mesh in _meshes(program)):
        program = refine_program(inline(program), target.mesh)
    inputs: dict[Value, Value] = {}
    constraints: dict[Value, Equation] = {}
    arguments = zip(program.inputs, request.signatures, request.in_shardings, request.names, strict=False)
    for value, signature, sharding, name in arguments:
        if sharding is not None:
            pin = target.pin(sharding, value.type.shape)
            label = "" if request.jit_source is None else f"in_shardings for {name}"
            inputs[value] = Value(value.type.with_explicit(signature.type.explicit))
            op: Op = Constrain(pin.layout.dims, target.mesh, tuple(sorted(pin.open_dims)), requested_by=label)
            if target.mesh.abstract.explicit_axes:
                op = Reshard.to(explicit_sharding(sharding, value.type.shape), value.type.ndim, target.mesh)
            constraints[value] = Equation(op, [inputs[value]], [value], request.jit_source or NOWHERE)
    if not constraints:
        return program
    program = inline(program)
    equations: list[Equation] = []
    # A constraint may pad its value: directly before the first use, the padded copy lives no longer than needed.
    for equation in program.equations:
        equations += [constraints.pop(value) for value in dict.fromkeys(equation.inputs) if value in constraints]
        equations.append(equation)
    return Program(
        tuple(inputs.get(value, value) for value in program.inputs),
        (*equations, *constraints.values()),
        program.outputs,
        program.name,
    )


def lift_held_arrays(request: Request, constants: Sequence[ArrayImpl]) -> tuple[Request, list[ArrayImpl]]:
    """Turn the arrays that the program holds as constants into inputs, and append them to the constants."""
    if not any(isinstance(equation.op, ArrayConstant) for equation in request.program.walk()):
        return request, list(constants)
    program, arrays = lift_constants(inline(request.program))
    signatures = (*request.signatures, *(array.signature for array in arrays))
    return replace(request, program=program, signatures=signatures), [*constants, *arrays]


def _meshes(program: Program) -> list[tuple[Equation, Mesh | AbstractMesh]]:
    """Return the meshes of the sharding constraints, reshards and manual regions of a program."""
    return [(equation, mesh) for equation in program.walk() if (mesh := equation.op.user_mesh)]
