"""Meshes, PartitionSpecs and shardings: the layout of arrays on devices."""

from shardwise.api.meshes.axis_types import auto_axes, explicit_axes
from shardwise.api.meshes.current_mesh import get_abstract_mesh, get_mesh, set_mesh, use_abstract_mesh, use_mesh
from shardwise.api.meshes.placement import reshard
from shardwise.base.lazy import set_public_names
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.runtime.sharding import PositionalSharding, SingleDeviceSharding

__all__ = [
    "AbstractMesh",
    "AxisType",
    "Mesh",
    "NamedSharding",
    "PartitionSpec",
    "PositionalSharding",
    "Sharding",
    "SingleDeviceSharding",
    "auto_axes",
    "explicit_axes",
    "get_abstract_mesh",
    "get_mesh",
    "reshard",
    "set_mesh",
    "use_abstract_mesh",
    "use_mesh",
]


set_public_names(__name__, __all__)
