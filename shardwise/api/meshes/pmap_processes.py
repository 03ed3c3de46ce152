"""Conversion between a process's own slices and global arrays, for pmap over the devices of several processes.

Each process passes slices for its own devices to pmap and receives the slices that these compute. The compiled program
works on global arrays, which are sharded over the devices of all processes.
"""

from shardwise.api.creation import make_array_from_single_device_arrays
from shardwise.api.meshes.placement import device_put
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.typing import ArrayLike


def local_to_global(x: ArrayLike, dim: int | None, mesh: Mesh) -> Array:
    """Return the global array whose slices along `dim` on this process's devices are `x`.

    If `dim` is None, all processes pass the same `x`, and the result is replicated.
    """
    axis = mesh.axis_names[0]
    spec = PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, axis)
    local_mesh = Mesh(NamedSharding(mesh, spec).local_devices, (axis,))
    shards = _local_shards(device_put(x, NamedSharding(local_mesh, spec)))
    shape = list(type_of(x).shape)
    if dim is not None:
        shape[dim] = shape[dim] // local_mesh.device_count * mesh.device_count
    return make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), shards)


def global_to_local(array: Array) -> Array:
    """Return the concatenated slices of a global array that this process's devices hold."""
    sharding = array.sharding
    assert isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    local_mesh = Mesh(sharding.local_devices, sharding.mesh.axis_names)
    shape = [
        size if entry is None else size // sharding.mesh.device_count * local_mesh.device_count
        for size, entry in zip(array.shape, (*sharding.spec, *[None] * array.ndim), strict=False)
    ]
    return make_array_from_single_device_arrays(shape, NamedSharding(local_mesh, sharding.spec), _local_shards(array))


def _local_shards(array: Array) -> list[Array]:
    """Return the shards of an array on this process's devices."""
    return [shard.data for shard in array.addressable_shards if shard.data is not None]
