"""Exchange host data between processes: broadcast, gather, and arrays made of the data of all processes.

Every process calls these functions with pytrees of the same structure and types.
"""

from typing import Any
from zlib import crc32

import numpy as np

from shardwise import tree
from shardwise.api.arguments import describe_mismatch
from shardwise.api.creation import make_array_from_process_local_data
from shardwise.api.jit import jit
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.lazy import set_public_names
from shardwise.runtime.client import devices, process_count, process_index
from shardwise.runtime.sharding import NamedSharding

__all__ = [
    "assert_equal",
    "broadcast_one_to_all",
    "host_local_array_to_global_array",
    "process_allgather",
    "reached_preemption_sync_point",
    "sync_global_devices",
]


def _rows_of_all_processes(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the arrays of all processes, stacked along a new first dim."""
    if process_count() == 1:
        return x[None]
    by_process = sorted(devices(), key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.array(by_process).reshape(process_count(), -1), ("process", "device"))
    rows = make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("process")), x[None])
    return np.asarray(jit(lambda rows: rows, out_shardings=NamedSharding(mesh, PartitionSpec()))(rows))


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Gather the data of all processes in every process.

    Args:
        in_tree: a pytree of arrays and numbers. An array with shards on other processes is gathered as it is.
        tiled: whether to concatenate the data along the first dim, and not to stack it along a new one.

    Returns:
        A pytree of numpy arrays.

    Raises:
        ValueError: if `tiled` is true and an array has rank 0.

    Example:
        >>> jax.experimental.multihost_utils.process_allgather(np.arange(3))  # of a single process
        array([[0, 1, 2]])
    """

    def gather(x: Any) -> np.ndarray[Any, Any]:
        if isinstance(x, Array) and not x.is_fully_addressable:
            mesh = x.sharding.mesh
            return np.asarray(jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(x))
        rows = _rows_of_all_processes(np.asarray(x))
        if not tiled:
            return rows
        if rows.ndim == 1:
            raise ValueError("process_allgather: tiled=True concatenates along the first dim, which a number has not")
        return rows.reshape(-1, *rows.shape[2:])

    return tree.map(gather, in_tree)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Send the data of one process to all.

    Args:
        in_tree: a pytree of arrays and numbers.
        is_source: whether this process is the source; by default, the source is process 0.

    Returns:
        The pytree of the source, of numpy arrays.

    Raises:
        ValueError: if not exactly one process is the source.

    Example:
        >>> jax.experimental.multihost_utils.broadcast_one_to_all(np.arange(3))
        array([0, 1, 2])
    """
    source = process_index() == 0 if is_source is None else is_source
    sources = _rows_of_all_processes(np.asarray(source))
    if sources.sum() != 1:
        raise ValueError(f"broadcast_one_to_all: one process must be the source, not {sources.sum()}")
    number = int(sources.argmax())
    return tree.map(lambda x: _rows_of_all_processes(np.asarray(x))[number], in_tree)


def sync_global_devices(name: str) -> None:
    """Wait until all processes have reached this point.

    Args:
        name: the name of the point, which must be the same in all processes.

    Raises:
        AssertionError: if processes wait at points of different names.

    Example:
        >>> jax.experimental.multihost_utils.sync_global_devices("data is loaded")
    """
    assert_equal(np.uint32(crc32(name.encode())), f"sync_global_devices: processes differ in the name of {name!r}")


def reached_preemption_sync_point(step_id: int) -> bool:
    """Return whether all processes have reached the step at which they save before one of them is stopped.

    Args:
        step_id: the number of the training step.

    Returns:
        False: a program of one process has none to wait for.

    Raises:
        RuntimeError: if the program has several processes: they do not tell each other of a preemption here.
            `shardwise.checkpoints` does, if its manager has `save_on_sigterm`.

    Example:
        >>> jax.experimental.multihost_utils.reached_preemption_sync_point(3)
        False
    """
    if process_count() > 1:
        raise RuntimeError(
            "reached_preemption_sync_point: there is no preemption service. The manager of shardwise.checkpoints saves "
            "at a common step, with `save_on_sigterm=True`."
        )
    return False


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that all processes have the same data.

    Args:
        in_tree: a pytree of arrays and numbers.
        fail_message: the beginning of the error message.

    Raises:
        AssertionError: if the data of two processes differs.

    Example:
        >>> jax.experimental.multihost_utils.assert_equal({"seed": 3})
    """
    for path, leaf in tree.leaves_with_path(in_tree):
        rows = _rows_of_all_processes(np.asarray(leaf))
        if not all(np.array_equal(row, rows[0]) for row in rows):
            raise AssertionError(f"{fail_message or 'the data of processes differs'}: {tree.keystr(path)} is {rows}")


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Create arrays on a mesh to which each process contributes its own data.

    Args:
        local_inputs: a pytree of arrays: the elements that the devices of this process hold.
        global_mesh: the mesh.
        pspecs: the specs of the arrays, as a tree prefix.

    Returns:
        A pytree of arrays. A dim that processes hold different parts of is the concatenation of these parts.

    Raises:
        ValueError: if `pspecs` is not a tree prefix, or if an array does not fit its spec.

    Example:
        >>> mesh = jax.make_mesh((4,), ("rows",))
        >>> x = jax.experimental.multihost_utils.host_local_array_to_global_array(np.arange(8), mesh, P("rows"))
        >>> x.sharding.spec
        P('rows')
    """
    try:
        specs = tree.broadcast_prefix(pspecs, local_inputs, lambda x: x is None or isinstance(x, PartitionSpec))
    except tree.TreeMismatch as mismatch:
        raise ValueError(f"host_local_array_to_global_array: {describe_mismatch(mismatch, 'pspecs')}") from None
    leaves, structure = tree.flatten(local_inputs)
    shardings = [NamedSharding(global_mesh, PartitionSpec() if spec is None else spec) for spec in specs]
    return structure.unflatten(
        [make_array_from_process_local_data(s, np.asarray(x)) for s, x in zip(shardings, leaves, strict=True)]
    )


set_public_names(__name__, __all__)
