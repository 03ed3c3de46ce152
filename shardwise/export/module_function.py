"""ModuleFunction: the module of an exported function as a function of arrays, for one mesh."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.base._jaxlib import MlirObject
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, mesh_context
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import DeviceMismatchError, UnsupportedError
from shardwise.export.exported_data import ExportedData
from shardwise.export.safety_checks import platform_index
from shardwise.export.specialize import bytecode, drop_constraints, has_constraints, has_op, specialize
from shardwise.runtime.client import default_lowering_platform
from shardwise.runtime.sharding import mesh_of
from shardwise.stablehlo.load import LoadedModule, load
from shardwise.stablehlo.parse import parse

minimum_supported_calling_convention_version = 9
maximum_supported_calling_convention_version = 10


@final
class ModuleFunction:
    """The function of the arrays that a module takes.

    Args:
        data: the exported function.
        mesh: the mesh of the call; None if the arguments are on one device; the mesh that the module states if the
            arguments are traced and nothing states their mesh.
    """

    def __init__(self, data: ExportedData, mesh: Mesh | AbstractMesh | None):
        self._data, self._mesh = data, mesh
        self._loaded: dict[tuple[ArrayType, ...] | None, LoadedModule] = {}

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        """Apply the module to the arguments that it takes."""
        data = self._data
        platform = platform_index(
            data.fun_name, default_lowering_platform(), data.platforms, data.disabled_safety_checks
        )
        types = tuple(as_operand(x).type.strong() for x in operands) if data.uses_global_constants else None
        if types not in self._loaded:
            self._loaded[types] = self._load(types, platform if len(data.platforms) > 1 else None)
        results = self._loaded[types](*operands)
        return list(results) if isinstance(results, tuple) else [results]

    def _load(self, types: tuple[ArrayType, ...] | None, platform: int | None) -> LoadedModule:
        module = parse_exported(self._data)
        self._check_mesh(module)
        content = bytecode(module)
        if has_constraints(module) and not self._fits(module_mesh(self._data)):
            content = drop_constraints(module)
        if types is not None:
            content = specialize(module, platform, types)
        states_mesh = isinstance(self._mesh, Mesh) and self._fits(module_mesh(self._data))
        return load(content, mesh=self._mesh if states_mesh else None)

    def _fits(self, stated: AbstractMesh | None) -> bool:
        """Return whether the mesh of the call has the axes of the module's mesh."""
        return stated is not None and self._mesh is not None and self._mesh.shape_tuple == stated.shape_tuple

    def _check_mesh(self, module: MlirObject) -> None:
        stated = module_mesh(self._data)
        if has_op(module, "sdy.manual_computation") and not self._fits(stated):
            found = "one device" if self._mesh is None else f"the mesh {self._mesh}"
            raise DeviceMismatchError(
                f"`{self._data.fun_name}` was partitioned for the mesh {stated} when it was exported, but is called "
                f"with arguments on {found}. Place them with `device_put` on such a mesh, by "
                "`exported.in_shardings_jax(mesh)`, or export it without partitioned=True and shard_map."
            )


def parse_exported(data: ExportedData) -> Any:
    """Return the module of an exported function, parsed by MLIR.

    Raises:
        ProgramError: if it is damaged.
        UnsupportedError: if its calling convention, its effects or its version of StableHLO are not supported.
    """
    version = data.calling_convention_version
    oldest, newest = minimum_supported_calling_convention_version, maximum_supported_calling_convention_version
    if not oldest <= version <= newest:
        raise UnsupportedError(
            f"`{data.fun_name}` has version {version} of the calling convention, and versions {oldest} to {newest} are "
            "supported. Export it with a version of JAX or Shardwise that writes one of these."
        )
    if data.ordered_effects:
        raise UnsupportedError(
            f"`{data.fun_name}` has ordered effects, which are not supported: {', '.join(data.ordered_effects)}. "
            "Remove ordered callbacks from the exported function."
        )
    return parse(data.mlir_module_serialized).raw


def module_mesh(data: ExportedData) -> AbstractMesh | None:
    """Return the mesh of the shardings of an exported function; None if it states none."""
    shardings = (*data._in_named_shardings, *data._out_named_shardings)
    return next((each.mesh.abstract for each in shardings if each is not None and each.mesh.axis_names), None)


def mesh_of_call(data: ExportedData, leaves: Sequence[Any]) -> Mesh | AbstractMesh | None:
    """Return the mesh of the arguments of a call, else the current mesh, else that of the exported function if the
    arguments are traced; None for one device.
    """
    for leaf in leaves:
        sharding = getattr(leaf, "sharding", None) if not isinstance(leaf, Tracer) else None
        mesh = mesh_of(sharding) if sharding is not None and getattr(leaf, "committed", False) else None
        if mesh is not None:
            return mesh
    if mesh_context.mesh is not None:
        return mesh_context.mesh
    return module_mesh(data) if any(isinstance(leaf, Tracer) for leaf in leaves) else None
