"""Exchange host data between processes: broadcast, gather, and arrays made of the data of all processes.

Every process calls these functions with pytrees of the same structure and types.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final
from zlib import crc32

import numpy as np

from shardwise import tree
from shardwise.api.arguments import describe_mismatch
from shardwise.api.creation import make_array_from_single_device_arrays
from shardwise.api.meshes.placement import device_put
from shardwise.api.process_data import broadcast_row, describe_groups, digest, gather_rows
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.execute.transfer import transfer
from shardwise.runtime.array import ArrayImpl
from shardwise.runtime.client import process_index
from shardwise.runtime.cluster import cluster
from shardwise.runtime.preemption import preemption
from shardwise.typing import ArrayLike


def process_allgather(in_tree: object, tiled: bool = False) -> Any:
    """Gather the data of all processes in every process.

    Args:
        in_tree: a pytree of arrays and numbers. An array with shards on other processes is gathered as it is.
        tiled: whether to concatenate the data along the first dim, and not to stack it along a new one. Numbers are
            stacked in both cases.

    Returns:
        A pytree of numpy arrays.

    Raises:
        ValueError: if `tiled` is false and an array has shards on other processes.

    Example:
        >>> jax.experimental.multihost_utils.process_allgather(np.arange(3))  # of a single process
        array([[0, 1, 2]])
    """

    def gather(x: ArrayLike) -> np.ndarray[Any, Any]:
        if isinstance(x, ArrayImpl) and not x.is_fully_addressable:
            if not tiled:
                raise ValueError(
                    f"process_allgather: this {x.type} in {x.sharding} has shards on other processes. It is one array "
                    "for all processes, which cannot be stacked: pass tiled=True"
                )
            return transfer(x, x.sharding.replicated).numpy()
        rows = gather_rows(np.asarray(x))
        return rows.reshape(-1, *rows.shape[2:]) if tiled and rows.ndim > 1 else rows

    return tree.map(gather, in_tree)


def broadcast_one_to_all(in_tree: object, is_source: bool | None = None) -> Any:
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
    return tree.map(lambda x: broadcast_row(np.asarray(x), bool(source)), in_tree)


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


def assert_equal(in_tree: object, fail_message: str = "") -> None:
    """Check that all processes have the same data.

    Args:
        in_tree: a pytree of arrays and numbers. Of a replicated array on all processes, each process compares its own
            copy. An array of which each process has other shards is one array for all, and is not compared.
        fail_message: the beginning of the error message.

    Raises:
        AssertionError: if the data of two processes differs.

    Example:
        >>> jax.experimental.multihost_utils.assert_equal({"seed": 3})
    """
    for path, leaf in tree.leaves_with_path(in_tree):
        if isinstance(leaf, ArrayImpl) and not leaf.is_readable:
            continue
        value = np.asarray(leaf)
        rows = gather_rows(digest(f"{value.shape} {value.dtype}".encode(), value))
        if any(row.tobytes() != rows[0].tobytes() for row in rows):
            text = fail_message or "the data of processes differs"
            raise AssertionError(f"{text}. {tree.keystr(path) or 'The value'} is {value} here. {describe_groups(rows)}")


def host_local_array_to_global_array(local_inputs: object, global_mesh: Mesh, pspecs: object) -> Any:
    """Create arrays on a mesh to which each process contributes its own data.

    The memory of an array that is sharded over this process's devices already is shared, not copied.

    Args:
        local_inputs: a pytree of arrays: the elements that the devices of this process hold. An array with shards on
            other processes is returned unchanged.
        global_mesh: the mesh. The devices of each process form a grid in it.
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

    def to_global(x: ArrayLike, spec: PartitionSpec) -> Any:
        if isinstance(x, ArrayImpl) and not x.is_fully_addressable:
            return x
        local, sharding = NamedSharding(global_mesh.local_mesh, spec), NamedSharding(global_mesh, spec)
        if isinstance(x, ArrayImpl) and x.sharding.is_equivalent_to(local, x.type.ndim):
            array = x
        else:
            array = device_put(x, local)
        shape = _scaled_shape(array.type.shape, local, sharding)
        return _from_shards(shape, sharding, array)

    return _map_with_specs("host_local_array_to_global_array", to_global, local_inputs, pspecs)


def global_array_to_host_local_array(global_inputs: object, global_mesh: Mesh, pspecs: object) -> Any:
    """Return the part of each array that the devices of this process hold, as an array on these devices.

    It is the inverse of `host_local_array_to_global_array`.

    Args:
        global_inputs: a pytree of arrays on the mesh. They are resharded first, if they have other specs. An array on
            this process's devices is returned unchanged.
        global_mesh: the mesh. The devices of each process form a grid in it.
        pspecs: the specs of the arrays, as a tree prefix.

    Returns:
        A pytree of arrays on `global_mesh.local_mesh`.

    Raises:
        ValueError: if `pspecs` is not a tree prefix, or if an array does not fit its spec.

    Example:
        >>> mesh = jax.make_mesh((4,), ("rows",))
        >>> x = jax.device_put(jnp.arange(8), jax.NamedSharding(mesh, P("rows")))
        >>> jax.experimental.multihost_utils.global_array_to_host_local_array(x, mesh, P("rows")).shape
        (8,)
    """

    def to_local(x: ArrayLike, spec: PartitionSpec) -> Any:
        if isinstance(x, ArrayImpl) and x.is_fully_addressable:
            return x
        local, sharding = NamedSharding(global_mesh.local_mesh, spec), NamedSharding(global_mesh, spec)
        array: ArrayImpl = device_put(x, sharding)
        return _from_shards(_scaled_shape(array.type.shape, sharding, local), local, array)

    return _map_with_specs("global_array_to_host_local_array", to_local, global_inputs, pspecs)


def _map_with_specs(name: str, function: Callable[[Any, PartitionSpec], Any], inputs: object, pspecs: object) -> Any:
    """Apply a function of an array and its spec to the leaves of a pytree."""
    try:
        specs = tree.broadcast_prefix(pspecs, inputs, lambda x: x is None or isinstance(x, PartitionSpec))
    except tree.TreeMismatch as mismatch:
        raise ValueError(f"{name}: {describe_mismatch(mismatch, 'pspecs')}") from None
    if None in specs:
        raise ValueError(f"{name}: pspecs cannot hold None: write PartitionSpec() for a replicated array")
    leaves, structure = tree.flatten(inputs)
    return structure.unflatten([function(leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)])


def _scaled_shape(shape: tuple[int, ...], before: NamedSharding, after: NamedSharding) -> tuple[int, ...]:
    """Return the shape of an array whose shards are those of another one, on a larger or smaller mesh."""
    counts = [before.mesh_shape.extent(axes) for axes in before.pin(shape).layout.dims]
    new_counts = [after.mesh_shape.extent(axes) for axes in after.pin(shape).layout.dims]
    if uneven := [dim for dim, (size, count) in enumerate(zip(shape, counts, strict=True)) if size % count]:
        raise ValueError(
            f"dim {uneven[0]} of an array of shape {shape} is not divisible by {counts[uneven[0]]}, the number of its "
            f"shards in {before}: parts of processes cannot be joined. Use `make_array_from_process_local_data`."
        )
    return tuple(size // count * new for size, count, new in zip(shape, counts, new_counts, strict=True))


def _from_shards(shape: tuple[int, ...], sharding: NamedSharding, x: ArrayImpl) -> Any:
    """Return the array whose shards on this process's devices are those of `x`, sharing their memory."""
    shards = [shard.data for shard in x.addressable_shards if shard.data is not None]
    return make_array_from_single_device_arrays(shape, sharding, shards, dtype=type_of(x).dtype)


def reached_preemption_sync_point(step_id: int) -> bool:
    """Return whether this is the step at which all processes should save, because one of them will be preempted.

    A process is preempted by SIGTERM. All processes call this at every step, from the same step on. After a SIGTERM
    it returns True at one step, which is the same on all processes, and which none of them has passed. The first call
    starts to watch for SIGTERM, which then does not end the process.

    Args:
        step_id: the number of the step.

    Returns:
        Whether to save now. False without `distributed.initialize`.

    Example:
        >>> jax.experimental.multihost_utils.reached_preemption_sync_point(7)
        False
    """
    del step_id  # calls are counted: see `runtime/preemption.py`
    return preemption.reached_sync_point(cluster.store)


class ProcessFailureError(Exception):
    """Processes ended while code ran on their devices.

    Attributes:
        failed_devices: the devices of these processes.

    Example:
        >>> issubclass(jax.experimental.multihost_utils.ProcessFailureError, Exception)
        True
    """

    def __init__(self, failed_devices: set[Any]):
        self.failed_devices = failed_devices
        processes = sorted({device.process_index for device in failed_devices})
        super().__init__(f"process {', '.join(map(str, processes))} ended: devices {sorted(map(str, failed_devices))}")


@final
class _LiveDevices:
    """The context manager `live_devices`. It remembers the devices of its last use and their incarnations."""

    def __init__(self) -> None:
        self._alive: dict[Any, int] | None = None

    @contextmanager
    def __call__(self, devices: Sequence[Any]) -> Iterator[list[Any]]:
        if cluster.store is None:
            raise RuntimeError("live_devices needs distributed.initialize first")
        if not any(device.process_index == process_index() for device in devices):
            raise ValueError(f"live_devices: process {process_index()} has none of the devices {list(devices)}")
        before = self._alive if self._alive is not None else _alive_devices(devices)
        error: Exception | None = None
        try:
            yield sorted(before, key=lambda device: device.id)
        except Exception as raised:
            error = raised
        self._alive = after = _alive_devices(devices)
        if failed := {device for device in before if after.get(device) != before[device]}:
            raise ProcessFailureError(failed) from error
        if error is not None:
            raise error


def _alive_devices(devices: Sequence[Any]) -> dict[Any, int]:
    """Return the devices whose processes run, each with the incarnation of its process. It waits for all of these."""
    ranks, store = sorted({device.process_index for device in devices}), cluster.store
    call = partial(store.get_live_nodes, ranks)
    incarnations = cluster.wait_for_processes(call, ranks, "live_devices", survives_failures=True)
    return {device: incarnations[device.process_index] for device in devices if device.process_index in incarnations}


_live_devices = _LiveDevices()


def live_devices(devices: Sequence[Any]) -> Any:
    """Run code on those devices whose processes still run.

    In `with live_devices(devices) as alive:`, all processes of `alive` get the same list. At the end of the block they
    wait for each other. If one of them has failed meanwhile, all others raise an error.

    Args:
        devices: devices, at least one of them of this process.

    Returns:
        A context manager that returns the list of live devices.

    Raises:
        RuntimeError: if `distributed.initialize` was not called.
        ValueError: if no device belongs to this process.
        ProcessFailureError: at the end of the block, if a process has failed.
        PeerFailure: if a process that is alive does not come within the peer timeout.

    Example:
        >>> with jax.experimental.multihost_utils.live_devices(jax.devices()):
        ...     pass
        Traceback (most recent call last):
        RuntimeError: live_devices needs distributed.initialize first
    """
    return _live_devices(devices)


publish(__name__)
