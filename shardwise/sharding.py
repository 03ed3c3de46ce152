"""Meshes, specs and shardings: how arrays lie on devices."""

from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.runtime.sharding import NamedSharding, Sharding, SingleDeviceSharding

__all__ = ["AbstractMesh", "Mesh", "NamedSharding", "PartitionSpec", "Sharding", "SingleDeviceSharding"]
