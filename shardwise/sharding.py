"""Meshes, PartitionSpecs and shardings: the layout of arrays on devices."""

from shardwise.api.placement import get_abstract_mesh, get_mesh, reshard, set_mesh, use_mesh
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.lazy import set_public_names
from shardwise.runtime.sharding import NamedSharding, PositionalSharding, Sharding, SingleDeviceSharding

__all__ = [
    "AbstractMesh",
    "AxisType",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "PositionalSharding",
    "Sharding",
    "SingleDeviceSharding",
    "get_abstract_mesh",
    "get_mesh",
    "reshard",
    "set_mesh",
    "use_mesh",
]


set_public_names(__name__, __all__)
