"""One map over the devices of several processes: each gives slices for its own devices, and gets what these make.

What the program takes and gives are arrays over all devices. What a process has of them is an array of its own, which
lies on its devices in their order: `shared` makes the former of the latter, `own` the latter of the former.
"""

from typing import Any

from shardwise.api.creation import make_array_from_single_device_arrays
from shardwise.api.placement import device_put
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.runtime.array import Array
from shardwise.runtime.sharding import NamedSharding


def shared(x: Any, dim: int | None, mesh: Mesh) -> Array:
    """The array over all devices of which this process gives the slices `x` along `dim`; or all of it, as all do."""
    axis = mesh.axis_names[0]
    spec = PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, axis)
    here = Mesh(NamedSharding(mesh, spec).local_devices, (axis,))
    parts = _parts(device_put(x, NamedSharding(here, spec)))
    shape = list(type_of(x).shape)
    if dim is not None:
        shape[dim] = shape[dim] // here.size * mesh.size
    return make_array_from_single_device_arrays(shape, NamedSharding(mesh, spec), parts)


def own(array: Array) -> Array:
    """What this process's devices hold of an array over all: their slices, one after the other."""
    sharding = array.sharding
    assert isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    here = Mesh(sharding.local_devices, sharding.mesh.axis_names)
    shape = [
        size if entry is None else size // sharding.mesh.size * here.size
        for size, entry in zip(array.shape, (*sharding.spec, *[None] * array.ndim), strict=False)
    ]
    return make_array_from_single_device_arrays(shape, NamedSharding(here, sharding.spec), _parts(array))


def _parts(array: Array) -> list[Array]:
    """What each device of this process holds."""
    return [shard.data for shard in array.addressable_shards if shard.data is not None]
