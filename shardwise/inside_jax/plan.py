"""Plan a jaxpr of JAX for a mesh: from the jaxpr and the shardings of its arguments to a function that JAX runs.

    jaxpr  --read_jaxpr-->  Program  --lower_request-->  StableHLO of one device  --shard_map-->  JAX

XLA sees a manual computation, in which every collective is one of the plan's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.compiler.plan.hardware import chip_of
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import DeviceMismatchError, UnsupportedError
from shardwise.execute.executor import LoweredRequest, lower_request
from shardwise.execute.request import Request
from shardwise.inside_jax import _jax, translate
from shardwise.inside_jax.module_call import ModuleCall
from shardwise.inside_jax.read import read_jaxpr
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
    """

    lowered: LoweredRequest
    mesh: Any
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    constants: list[Any]
    call: ModuleCall

    def __call__(self, *args: Any) -> list[Any]:
        """Apply the planned program to arrays or tracers of JAX."""
        operands = [*args, *self.constants]
        kept = self.lowered.request.kept
        kept = range(len(operands)) if kept is None else kept
        used = [operands[number] for number in kept]
        if self.mesh is None:
            return self.call(*used)
        shardings = [*self.in_shardings, *[_jax.NamedSharding(self.mesh, _jax.PartitionSpec())] * len(self.constants)]
        mapped = _jax.jax.shard_map(
            self.call,
            mesh=self.mesh,
            in_specs=tuple(shardings[number].spec for number in kept),
            out_specs=[sharding.spec for sharding in self.out_shardings],
            check_vma=False,
        )
        return mapped(*used)


def plan_jaxpr(
    closed: Any,
    name: str,
    mesh: Any,
    in_shardings: Sequence[Any],
    out_shardings: Sequence[Any],
    names: Sequence[str],
    donated: Sequence[bool] = (),
) -> PlannedJaxpr:
    """Plan a jaxpr.

    Args:
        closed: the closed jaxpr of JAX.
        name: the name of the function.
        mesh: JAX's mesh; None for JAX's default device.
        in_shardings: the sharding of each argument, or None if nobody has placed it: then it is replicated.
        out_shardings: the sharding of each result, or None if the planner chooses it.
        names: the names of the arguments, for messages.
        donated: whether each argument is donated.
    """
    program, constants = read_jaxpr(closed, name)
    abstract = AbstractMesh((1,), ("device",)) if mesh is None else translate.mesh(mesh)
    device = _jax.jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    replicated = NamedSharding(abstract, PartitionSpec())
    shardings = [replicated if each is None else _on_mesh(each, mesh, abstract) for each in in_shardings]
    shardings += [replicated] * len(constants)
    request = Request(
        program,
        tuple(
            array_signature(type, sharding, committed=True)
            for type, sharding in zip(program.in_types, shardings, strict=True)
        ),
        tuple(None if each is None else _on_mesh(each, mesh, abstract) for each in out_shardings),
        tuple(names),
        donated=tuple(donated),
        keep_unused=False,
        platform=canonical_lowering_platform(device.platform),
        for_jax=True,
    )
    lowered = lower_request(request, chip=chip_of(device.device_kind))
    types = lowered.stages.local.program.out_types
    call = ModuleCall(name, lowered.stages.module, types, [atom.aval for atom in closed.jaxpr.outvars])
    if mesh is None:
        return PlannedJaxpr(lowered, None, (None,) * len(in_shardings), (None,) * len(types), constants, call)
    planned_in = tuple(_of_jax(sharding, mesh) for sharding in shardings[: len(in_shardings)])
    planned_out = tuple(_of_jax(sharding, mesh) for sharding in lowered.out_shardings)
    return PlannedJaxpr(lowered, mesh, planned_in, planned_out, constants, call)


def _on_mesh(sharding: Any, mesh: Any, abstract: AbstractMesh) -> NamedSharding:
    """Return a sharding of JAX, which must be on the devices of `mesh`."""
    if not isinstance(sharding, _jax.NamedSharding):
        raise UnsupportedError(f"a {type(sharding).__name__} is not supported; use a NamedSharding: {sharding}")
    if sharding.mesh.shape_tuple != mesh.shape_tuple:
        raise DeviceMismatchError(f"the sharding {sharding} is not on the mesh {mesh}")
    return NamedSharding(abstract, translate.spec(sharding.spec))


def _of_jax(sharding: Any, mesh: Any) -> Any:
    """Return a sharding of Shardwise as JAX's, on the mesh with devices."""
    spec = sharding.spec
    return _jax.NamedSharding(mesh, _jax.PartitionSpec(*spec, unreduced=spec.unreduced, reduced=spec.reduced))
