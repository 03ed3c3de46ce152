"""Meshes, PartitionSpecs and shardings: the layout of arrays on devices."""

from typing import NoReturn

from shardwise.api.placement import get_abstract_mesh, get_mesh, set_mesh, use_mesh
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.lazy import missing_attribute_error
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
    "set_mesh",
    "use_mesh",
]


def __getattr__(name: str) -> NoReturn:
    raise missing_attribute_error("shardwise.sharding", name, __all__)
