"""The shardings that a module states: attributes of Shardy (`sdy.sharding`) and of HLO (`mhlo.sharding`)."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, final

from shardwise.base._jaxlib import mlir_dialects, mlir_ir
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import ShardingError, UnsupportedError
from shardwise.stablehlo.hlo_shardings import HloMesh, parse_hlo_sharding

AnyMesh = Mesh | AbstractMesh

_HLO, _SHARDY = "mhlo.sharding", "sdy.sharding"


@final
class Pin:
    """The sharding of one value: the mesh axes of each dim, and the dims that may be sharded further."""

    def __init__(self, mesh: AnyMesh | None, dims: Sequence[tuple[str, ...]], open_dims: Sequence[int] = ()):
        self.mesh, self.dims, self.open_dims = mesh, tuple(dims), tuple(open_dims)

    def apply(self, array: object) -> Any:
        """Return an array that is pinned to this sharding."""
        return array if self.mesh is None else Constrain(self.dims, self.mesh, self.open_dims)(array)

    @property
    def sharding(self) -> NamedSharding | None:
        if self.mesh is None:
            return None
        return NamedSharding(self.mesh, self.spec(self.mesh.axis_names))

    def spec(self, axes: Sequence[str]) -> PartitionSpec:
        """Return the spec of these axes."""
        parts = [tuple(axis for axis in dim if axis in axes) for dim in self.dims]
        return PartitionSpec(*(part[0] if len(part) == 1 else part or None for part in parts))


@final
class Annotations:
    """The shardings of a parsed module of MLIR.

    `mesh` replaces the mesh of the module: axis by axis, in the same order.
    """

    def __init__(self, raw: Any, mesh: AnyMesh | None = None):
        self._raw = raw
        self._replacement = mesh

    @cached_property
    def _meshes(self) -> dict[str, AbstractMesh | None]:
        """The meshes of Shardy by name. One without axes, of a single device, is None."""
        operations = (view.operation for view in self._raw.body.operations)
        return {
            operation.attributes["sym_name"].value: _mesh(operation.attributes["mesh"])
            for operation in operations
            if operation.name == "sdy.mesh"
        }

    @cached_property
    def _hlo(self) -> HloMesh:
        return HloMesh(map(parse_hlo_sharding, self._hlo_texts()))

    def _hlo_texts(self) -> Iterator[str]:
        """Yield all shardings of HLO in the module."""
        for attributes in _attributes(self._raw.operation):
            if _HLO in attributes:
                yield attributes[_HLO].value

    @cached_property
    def _stated_mesh(self) -> AbstractMesh | None:
        """The mesh that the annotations refer to; None if there are none."""
        meshes = {mesh for mesh in self._meshes.values() if mesh is not None}
        if not meshes and self._hlo.mesh is not None:
            meshes.add(self._hlo.mesh)
        if len(meshes) > 1:
            raise UnsupportedError(f"the module has several meshes: {', '.join(map(str, meshes))}")
        return meshes.pop() if meshes else None

    @cached_property
    def mesh(self) -> AnyMesh | None:
        """The mesh of all shardings; None if the module states none."""
        stated, replacement = self._stated_mesh, self._replacement
        if stated is None or replacement is None:
            return stated
        if replacement.axis_sizes != stated.axis_sizes:
            raise ShardingError(f"load: the mesh of the module is {stated}, and {replacement} has other sizes")
        return replacement

    def axis(self, name: str) -> str:
        """Return the axis of `mesh` for an axis of the module."""
        stated, mesh = self._stated_mesh, self.mesh
        if stated is None or mesh is None or name not in stated.axis_names:
            raise ShardingError(f"the mesh {stated} of the module has no axis {name!r}")
        return str(mesh.axis_names[stated.axis_names.index(name)])

    def _pin(self, mesh: AbstractMesh | None, dims: Sequence[Sequence[str]], open_dims: Sequence[int] = ()) -> Pin:
        """Return a sharding on a mesh of the module as one on `mesh`."""
        if mesh is None:
            return Pin(None, ())
        return Pin(self.mesh, [tuple(map(self.axis, dim)) for dim in dims], open_dims)

    def pins(self, attributes: Any, ndims: Sequence[int]) -> list[Pin] | None:
        """Return the shardings of the results of an op, among its attributes; None if it states none."""
        if _SHARDY in attributes and "sharding_per_value" in str(attributes[_SHARDY]):
            shardings = mlir_dialects["sdy"].TensorShardingPerValueAttr(attributes[_SHARDY]).shardings
            return [self.shardy_pin(sharding) for sharding in shardings]
        pin = self.pin(attributes, ndims[0]) if len(ndims) == 1 else None
        return None if pin is None else [pin]

    def pin(self, attributes: Any, ndim: int) -> Pin | None:
        """Return the sharding among the attributes of an argument or a result of a function."""
        if _SHARDY in attributes:
            return self.shardy_pin(attributes[_SHARDY])
        if _HLO not in attributes or self._meshes:
            return None
        return self._pin(self._hlo.mesh, self._hlo.dims(parse_hlo_sharding(attributes[_HLO].value), ndim))

    def shardy_pin(self, attribute: object) -> Pin:
        """Return a sharding of Shardy."""
        if "unreduced=" in str(attribute):
            raise UnsupportedError(f"the sharding {attribute} is not supported: it has unreduced axes")
        sdy = mlir_dialects["sdy"]
        sharding = sdy.TensorShardingAttr(attribute)
        dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
        if not isinstance(sharding.mesh_or_ref, mlir_ir.FlatSymbolRefAttr):
            raise UnsupportedError(f"the sharding {attribute} is not supported: name its mesh with sdy.mesh")
        return self._pin(
            self._meshes[sharding.mesh_or_ref.value],
            [list(map(_axis, dim.axes)) for dim in dims],
            [index for index, dim in enumerate(dims) if not dim.is_closed],
        )


def _mesh(attribute: object) -> AbstractMesh | None:
    sdy = mlir_dialects["sdy"]
    mesh = sdy.MeshAttr(attribute)
    axes = [sdy.MeshAxisAttr(axis) for axis in mesh.axes]
    if list(mesh.device_ids) and axes:
        raise UnsupportedError(f"the mesh {attribute} is not supported: its devices are not in order")
    return AbstractMesh(tuple(axis.size for axis in axes), tuple(axis.name for axis in axes)) if axes else None


def _axis(attribute: object) -> str:
    axis = mlir_dialects["sdy"].AxisRefAttr(attribute)
    if axis.sub_axis_info is not None:
        raise UnsupportedError(f"the sub-axis {attribute} is not supported: use a mesh with an axis for it")
    return str(axis.name)


def _attributes(operation: Any) -> Iterator[Any]:
    """Yield the attributes of all ops, arguments and results under an op."""
    stack = [operation]
    while stack:
        current = stack.pop()
        yield current.attributes
        for group in ("arg_attrs", "res_attrs"):
            if group in current.attributes:
                yield from current.attributes[group]
        stack += [view.operation for region in current.regions for block in region.blocks for view in block.operations]
