"""Plan a jaxpr of JAX for a mesh: from the jaxpr and the shardings of its arguments to a function that JAX runs.

    jaxpr  --read_jaxpr-->  Program  --lower_request-->  StableHLO of one device  --shard_map-->  JAX

XLA sees a manual computation, in which every collective is one of the plan's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from shardwise.base.caches import registered_cache
from shardwise.compiler.ir.program import Program
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip_of
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.transforms.dce import dce
from shardwise.errors import DeviceMismatchError, UnsupportedError
from shardwise.execute.executor import LoweredRequest, lower_request
from shardwise.execute.request import Request
from shardwise.inside_jax import _jax, translate
from shardwise.inside_jax.module_call import ModuleCall
from shardwise.inside_jax.read import read_jaxpr
from shardwise.inside_jax.tracing_context import tracing_context
from shardwise.runtime.array import array_signature
from shardwise.runtime.client import canonical_lowering_platform


@final
@dataclass(frozen=True, eq=False)
class PlannedJaxpr:
    """A jaxpr that was planned and partitioned.

    Attributes:
        lowered: the plan, and the module of one device.
        mesh: JAX's mesh; None for one device.
        in_shardings: JAX's sharding of each argument; None for one device.
        out_shardings: JAX's sharding of each result; None for one device.
        constants: the arrays that the jaxprs in it close over.
        module: the call of the module.
    """

    lowered: LoweredRequest
    mesh: _jax.Mesh | None
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    constants: list[Any]
    module: ModuleCall

    @property
    def request(self) -> Request:
        """The program with its shardings."""
        return self.lowered.request

    @property
    def chip(self) -> Chip:
        """The hardware that it is planned for."""
        return self.lowered.stages.plan.chip

    def memory_stats(self) -> None:
        """Return None: JAX compiles the program later, and keeps the executable."""

    def __call__(self, *args: object) -> list[Any]:
        """Apply the planned program to arrays or tracers of JAX."""
        operands = [*args, *self.constants]
        kept = self.lowered.request.kept
        numbers = range(len(operands)) if kept is None else kept
        used = [operands[number] for number in numbers]
        if self.mesh is None:
            return self.module(*used)
        shardings = [*self.in_shardings, *[_jax.NamedSharding(self.mesh, _jax.PartitionSpec())] * len(self.constants)]
        mapped = _jax.jax.shard_map(
            self.module,
            mesh=self.mesh,
            in_specs=tuple(shardings[number].spec for number in numbers),
            out_specs=[sharding.spec for sharding in self.out_shardings],
            check_vma=False,
        )
        return mapped(*used)


@final
@dataclass(frozen=True)
class Call:
    """A function to plan.

    Attributes:
        jaxpr: its closed jaxpr, without constants.
        name: its name.
        mesh: JAX's mesh; None for one device.
        in_shardings: the sharding of each argument; None if nothing states it.
        out_shardings: the requested sharding of each result, or None.
        names: the names of the arguments, for messages.
        donated: whether each argument is donated.
    """

    jaxpr: _jax.ClosedJaxpr
    name: str
    mesh: _jax.Mesh | None
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    names: tuple[str, ...]
    donated: tuple[bool, ...] = ()

    def placed(self, operands: Sequence[_jax.Array]) -> "Call":
        """Return the call with the shardings that concrete operands, structs and Explicit types state."""
        shardings = tuple(map(_sharding_of, operands, self.in_shardings))
        mesh = _mesh_of((*shardings, *self.out_shardings), self.mesh)
        placed = replace(
            self, in_shardings=shardings, mesh=next(_meshes_in(self.jaxpr.jaxpr), None) if mesh is None else mesh
        )
        placed._check_devices(operands)
        return placed

    def _check_devices(self, operands: Sequence[_jax.Array]) -> None:
        """Raise an error if an operand is committed to a device, and the mesh has others, as in JAX."""
        if not isinstance(self.mesh, _jax.Mesh):
            return
        for name, operand in zip(self.names, operands, strict=True):
            is_array = isinstance(operand, _jax.Array) and not isinstance(operand, _jax.core.Tracer)
            if is_array and operand.committed and operand.sharding.device_set != set(self.mesh.devices.flat):
                raise DeviceMismatchError(
                    f"inside_jax.jit of `{self.name}`: {name} is committed to {operand.sharding}, and the mesh "
                    f"{self.mesh} has other devices. Place it on the mesh with `jax.device_put`."
                )

    @property
    def is_placed(self) -> bool:
        """Whether the sharding of every argument is stated."""
        return None not in self.in_shardings

    @property
    def device_count(self) -> int:
        """The number of devices that the function runs on."""
        return 1 if self.mesh is None else self.mesh.size

    def lower(self, chip: Chip | None = None) -> tuple[LoweredRequest, list[Any]]:
        """Plan the function, and lower it to StableHLO. Arguments without a sharding are replicated.

        Args:
            chip: the hardware to plan for; by default, the mesh's devices.

        Returns:
            The lowered function, and the arrays that its jaxprs close over: its last inputs.
        """
        self._check_reduced()
        device = None if isinstance(self.mesh, _jax.AbstractMesh) else _first_device(self.mesh)
        platform = device.platform if device is not None else chip.platform if chip is not None else None
        with tracing_context(self.jaxpr, platform):
            program, constants = read_jaxpr(self.jaxpr, self.name, self.mesh)
            chip = chip_of(device.device_kind) if chip is None and device is not None else chip
            return lower_request(self._request(program, len(constants), platform), chip=chip), constants

    def _request(self, program: Program, constants: int, platform: str | None) -> Request:
        """Return the request to plan a program, whose last inputs are this number of constants."""
        live = dce(program)
        mesh = AbstractMesh((1,), ("device",)) if self.mesh is None else translate.mesh(self.mesh)
        replicated = NamedSharding(mesh, PartitionSpec())
        shardings = [replicated if each is None else self._on_mesh(each, mesh) for each in self.in_shardings]
        shardings += [replicated] * constants
        return Request(
            program,
            tuple(
                array_signature(type, sharding, committed=True)
                for type, sharding in zip(program.in_types, shardings, strict=True)
            ),
            tuple(None if each is None else self._on_mesh(each, mesh) for each in self.out_shardings),
            self.names,
            donated=self.donated,
            keep_unused=live.used.isdisjoint(live.inputs),  # an argument places the program on the mesh
            platform=None if platform is None else canonical_lowering_platform(platform),
            for_jax=True,
        )

    def _check_reduced(self) -> None:
        """Raise an error for arguments and results that are unreduced along Explicit axes."""
        results = [f"result {number}" for number in range(len(self.jaxpr.out_avals))]
        for name, aval in zip((*self.names, *results), (*self.jaxpr.in_avals, *self.jaxpr.out_avals), strict=True):
            if isinstance(aval, _jax.ShapedArray) and aval.sharding.spec.unreduced:
                raise UnsupportedError(
                    f"inside_jax.jit of `{self.name}`: {name} is {aval}, a sum that is not reduced yet, which may not "
                    "cross the boundary of a planned function. Reduce it with `jax.sharding.reshard` on this side."
                )

    def _on_mesh(self, sharding: _jax.Sharding, mesh: AbstractMesh) -> NamedSharding:
        """Return a sharding of JAX, which must be on the call's mesh."""
        if not isinstance(sharding, _jax.NamedSharding):
            raise UnsupportedError(
                f"inside_jax.jit of `{self.name}`: a {type(sharding).__name__} is not supported: {sharding}. Use a "
                "NamedSharding."
            )
        if self.mesh is None or sharding.mesh.shape_tuple != self.mesh.shape_tuple:
            raise DeviceMismatchError(
                f"inside_jax.jit of `{self.name}`: the sharding {sharding} is not on the mesh {self.mesh}. "
                "Place all arguments on one mesh with `jax.device_put`."
            )
        return NamedSharding(mesh, translate.spec(sharding.spec))


@registered_cache(maxsize=1024)
def plan(call: Call) -> PlannedJaxpr:
    """Plan a function for the devices of its mesh."""
    lowered, constants = call.lower()
    types = lowered.stages.local.program.out_types
    module = ModuleCall(call.name, lowered.stages.module, types, call.jaxpr.out_avals, call.jaxpr.effects)
    if call.mesh is None:
        return PlannedJaxpr(lowered, None, (None,) * len(call.names), (None,) * len(types), constants, module)
    ins = tuple(each or _jax.NamedSharding(call.mesh, _jax.PartitionSpec()) for each in call.in_shardings)
    planned_outs = (translate.jax_sharding(sharding, call.mesh) for sharding in lowered.out_shardings)
    outs = tuple(map(_in_memory_of, planned_outs, call.out_shardings))
    return PlannedJaxpr(lowered, call.mesh, ins, outs, constants, module)


def _in_memory_of(sharding: _jax.NamedSharding, requested: _jax.Sharding | None) -> Any:
    """Return the planned sharding of a result, in the memory that the user requests."""
    return sharding if requested is None else sharding.with_memory_kind(requested.memory_kind)


def _first_device(mesh: _jax.Mesh | None) -> Any:
    return _jax.jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def _sharding_of(operand: _jax.Array, stated: _jax.Sharding | None) -> Any:
    """Return the sharding of an operand, if something states it; else None."""
    if stated is not None:
        return stated
    if isinstance(operand, _jax.core.Tracer):
        mesh = _jax.typeof(operand).sharding.mesh
        if mesh.empty or not mesh.are_all_axes_explicit:
            return None
        return _jax.NamedSharding(_jax.get_concrete_mesh(), _jax.typeof(operand).sharding.spec)
    sharding = getattr(operand, "sharding", None)  # of an array or of a ShapeDtypeStruct
    is_placed = getattr(operand, "committed", True) and not isinstance(sharding, _jax.SingleDeviceSharding)
    return sharding if is_placed else None


def _mesh_of(shardings: Sequence[Any], stated: _jax.Mesh | None) -> Any:
    """Return the mesh of the shardings, else the current mesh; None if there is none."""
    meshes = [sharding.mesh for sharding in shardings if isinstance(sharding, _jax.NamedSharding)]
    current = _jax.get_concrete_mesh()
    return meshes[0] if meshes else stated if stated is not None else None if current.empty else current


def _meshes_in(jaxpr: Any) -> Iterator[Any]:
    """Yield the meshes of devices that a jaxpr names, in sharding constraints and in `shard_map`."""
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            for item in value if isinstance(value, (tuple, list)) else (value,):
                mesh = getattr(item, "mesh", item)
                if isinstance(mesh, _jax.Mesh) and not mesh.empty:
                    yield mesh
    for inner in _jax.core.subjaxprs(jaxpr):
        yield from _meshes_in(inner)
