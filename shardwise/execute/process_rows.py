"""Exchange words of host memory between processes: every process has one row of a global array."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.base.caches import registered_cache
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import Mesh, device_grid, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.execute.transfer import transfer
from shardwise.runtime.array import ArrayImpl, array_signature, put_shards

NumpyArray = np.ndarray[Any, Any]
WORD = np.dtype(np.uint32)


@registered_cache(maxsize=64)
def process_mesh(devices: Sequence[Any]) -> Mesh:
    """Return the mesh of the first of these devices in each process, ordered by process."""
    first: dict[int, Any] = {}
    for device in devices:
        first.setdefault(device.process_index, device)
    return Mesh(device_grid([first[process] for process in sorted(first)], (len(first),)), ("process",))


def row_of_each_process(words: NumpyArray, mesh: Mesh) -> ArrayImpl:
    """Return the array with one row per process of `mesh`. `words` is the row of this process."""
    sharding = NamedSharding(mesh, PartitionSpec("process"))
    row_type = ArrayType((1, len(words)), WORD)
    buffers = put_shards([words[None]], row_type, sharding)
    return ArrayImpl.from_buffers(
        buffers, array_signature(row_type.with_shape((mesh.device_count, len(words))), sharding, True)
    )


def gather_words(words: NumpyArray, mesh: Mesh) -> NumpyArray:
    """All-gather the words of every process of `mesh`, one row each. All processes must call this."""
    with mesh_context.entered(None):
        return transfer(row_of_each_process(words, mesh), NamedSharding(mesh, PartitionSpec())).numpy()
