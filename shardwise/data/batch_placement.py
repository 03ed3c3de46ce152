"""Placement: which rows of a batch this process needs, and the sharded arrays made of them."""

from collections.abc import Callable
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.api.creation import make_array_from_callback, make_array_from_process_local_data
from shardwise.base.config import config
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import DataError
from shardwise.runtime.client import process_count
from shardwise.runtime.sharding import SingleDeviceSharding, resolve_sharding

NumpyArray = np.ndarray[Any, Any]


@final
class BatchPlacement:
    """The shardings of batches, resolved in the thread and with the settings of the caller.

    Args:
        shardings: a sharding, a spec on the current mesh, or a tree prefix of the batch with these as leaves.

    Raises:
        DataError: if a leaf of `shardings` is not a sharding that can be used for batches.
    """

    def __init__(self, shardings: object):
        self._shardings = tree.map(_resolve, shardings, is_leaf=_is_sharding)
        self._leaves: list[Sharding] = tree.leaves(self._shardings, is_leaf=_is_sharding)
        if not self._leaves:
            raise DataError("BatchIterator: there is no sharding")
        self._enable_x64 = config.enable_x64

    @property
    def spans_all_processes(self) -> bool:
        """Whether every process of the program has devices in one of the shardings."""
        return len({process for sharding in self._leaves for process in sharding.processes}) == process_count()

    def check_rows(self, rows: int) -> None:
        """Check that the devices divide the rows of a batch.

        Raises:
            DataError: if they do not.
        """
        for sharding in self._leaves:
            _check_divisible(rows, _row_shards(sharding), f"the number of its shards in {sharding}")

    def check_process_rows(self, rows: int) -> None:
        """Check that the devices of this process divide the rows that it contributes to a batch.

        Raises:
            DataError: if they do not.
        """
        for sharding in self._leaves:
            indices = _along_rows(sharding).local_shard_indices((_row_shards(sharding),)).values()
            count = len({span.start for (span,) in indices})
            _check_divisible(rows, max(1, count), f"the number of its shards on this process in {sharding}")

    def local_rows(self, rows: int) -> NumpyArray:
        """Return which rows of a batch the devices of this process hold, in ascending order.

        A process without devices gets the first row, for the types of the arrays.
        """
        held: set[int] = set()
        for sharding in self._leaves:
            for (span,) in _along_rows(sharding).local_shard_indices((rows,)).values():
                held.update(range(span.start, span.stop))
        return np.array(sorted(held) or [0])

    def put_rows(self, batch: object, held: NumpyArray, rows: int) -> Any:
        """Return the sharded arrays of a batch of which this process has read the rows `held`."""

        def put(data: NumpyArray, sharding: Sharding) -> Any:
            def shard_data(index: tuple[slice, ...]) -> NumpyArray:
                low, high, _ = index[0].indices(rows)
                start = int(np.searchsorted(held, low))
                return data[(slice(start, start + high - low), *index[1:])]

            return make_array_from_callback(
                (rows, *data.shape[1:]), sharding, shard_data, dtype=canonical_dtype(data.dtype)
            )

        return self._map(put, batch)

    def put_process_rows(self, batch: object) -> Any:
        """Return the sharded arrays of a batch to which each process contributes its own rows."""

        def put(data: NumpyArray, sharding: Sharding) -> Any:
            return make_array_from_process_local_data(sharding, data)

        return self._map(put, batch)

    def _map(self, put: Callable[[NumpyArray, Sharding], Any], batch: object) -> Any:
        try:
            shardings = tree.broadcast_prefix(self._shardings, batch, _is_sharding)
        except tree.TreeMismatch as mismatch:
            raise DataError(f"BatchIterator: the shardings must be a tree prefix of the batches: {mismatch}") from None
        leaves, structure = tree.flatten(batch)
        with config.override("enable_x64", self._enable_x64):
            return structure.unflatten([put(leaf, sharding) for leaf, sharding in zip(leaves, shardings, strict=True)])


def _row_shards(sharding: Sharding) -> int:
    """Return into how many shards a sharding divides the rows of a batch."""
    along = _along_rows(sharding)
    return along.mesh_shape.extent(along.pin((along.num_devices,)).layout.dims[0])


def _check_divisible(rows: int, count: int, meaning: str) -> None:
    if rows % count:
        near = sorted({max(1, rows // count) * count, -(-rows // count) * count})
        raise DataError(
            f"BatchIterator: a batch of {rows} rows is not divisible by {count}, {meaning}. "
            f"Use {' or '.join(map(str, near))} rows"
        )


def _is_sharding(x: object) -> bool:
    return x is None or isinstance(x, (Sharding, PartitionSpec))


def _resolve(sharding: object) -> Sharding:
    resolved = resolve_sharding(sharding, "BatchIterator")
    if not isinstance(resolved, (NamedSharding, SingleDeviceSharding)):
        raise DataError(
            f"BatchIterator needs a NamedSharding, a PartitionSpec on the current mesh, or a tree of these, not "
            f"{sharding!r}"
        )
    return resolved


def _along_rows(sharding: Sharding) -> Sharding:
    """Return the sharding of the first dim, for an array that has no other dims."""
    return sharding.with_spec(PartitionSpec(*sharding.spec[:1])) if isinstance(sharding, NamedSharding) else sharding
