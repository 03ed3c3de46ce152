"""jax.experimental.array_serialization.serialization: write and read arrays, in the background or not."""

import asyncio
import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from shardwise.base.docstrings import documented
from shardwise.base.lazy import set_public_names
from shardwise.experimental.array_serialization import tensorstore_impl
from shardwise.experimental.array_serialization.tensorstore_impl import (
    TS_CONTEXT,
    ByteLimiter,
    async_deserialize,
    async_serialize,
)
from shardwise.runtime.group import Group
from shardwise.typing import SupportsShape

__all__ = [
    "TS_CONTEXT",
    "GlobalAsyncCheckpointManager",
    "GlobalAsyncCheckpointManagerBase",
    "async_deserialize",
    "async_serialize",
    "get_tensorstore_spec",
    "run_deserialization",
    "run_serialization",
]

_numbers = itertools.count()


@documented(tensorstore_impl.SPEC)
def get_tensorstore_spec(
    ckpt_path: str | os.PathLike[str],
    ocdbt: bool = False,
    process_idx: int | None = None,
    arr: SupportsShape | None = None,
    driver: str = "zarr",
) -> dict[str, Any]:
    """Return the spec of an array at a path, by default as a zarr array in a folder of its own.

    Example:
        >>> from shardwise.experimental.array_serialization import serialization
        >>> serialization.get_tensorstore_spec("s3://bucket/run/w")
        {'driver': 'zarr', 'kvstore': {'driver': 's3', 'bucket': 'bucket', 'path': 'run/w'}}
    """
    return tensorstore_impl.get_tensorstore_spec(ckpt_path, ocdbt, process_idx, arr, driver)


def run_serialization(arrays: Sequence[Any], tensorstore_specs: Sequence[dict[str, Any]]) -> None:
    """Write arrays, and wait until they are written.

    Args:
        arrays: the arrays. Every process calls this with the same ones, and writes the shards that it holds.
        tensorstore_specs: the spec of each.

    Raises:
        TypeError: if one is not an array, or has PRNG keys.
        ValueError: if there are not as many specs as arrays, or if an array is on devices of one of several processes.

    Example:
        >>> from shardwise.experimental.array_serialization import serialization
        >>> serialization.run_serialization([jnp.arange(4)], [serialization.get_tensorstore_spec(folder / "w")])
    """
    _write(arrays, tensorstore_specs)


def _write(arrays: Sequence[Any], specs: Sequence[dict[str, Any]], **options: Any) -> None:
    async def run() -> None:
        pairs = zip(arrays, specs, strict=True)
        await asyncio.gather(*(async_serialize(array, spec, **options) for array, spec in pairs))

    asyncio.run(run())


def run_deserialization(
    shardings: Sequence[Any],
    tensorstore_specs: Sequence[Any],
    global_shapes: Sequence[Sequence[int] | None] | None = None,
    dtypes: Sequence[Any] | None = None,
    concurrent_gb: int = 32,
) -> list[Any]:
    """Read arrays; each device gets its shards.

    Args:
        shardings: the sharding of each array.
        tensorstore_specs: the spec of each.
        global_shapes: the shape of each; by default, those of the stored arrays. Elements that are not stored are 0.
        dtypes: the dtype of each; by default, those of the stored arrays.
        concurrent_gb: the gigabytes of host memory that reads use at a time; a larger shard is read alone.

    Returns:
        The arrays.

    Raises:
        TypeError: if a sharding is missing.
        ValueError: if the sequences have different lengths, or if an array is not stored.

    Example:
        >>> from shardwise.experimental.array_serialization import serialization
        >>> specs = [serialization.get_tensorstore_spec(folder / "w")]
        >>> serialization.run_serialization([jnp.arange(4)], specs)
        >>> serialization.run_deserialization([jax.sharding.SingleDeviceSharding(jax.devices()[0])], specs)
        [Array([0, 1, 2, 3], dtype=int32)]
    """
    count = len(tensorstore_specs)

    async def run() -> list[Any]:
        limiter = ByteLimiter(concurrent_gb * 10**9)
        arguments = zip(
            shardings, tensorstore_specs, global_shapes or [None] * count, dtypes or [None] * count, strict=True
        )
        return await asyncio.gather(*(async_deserialize(*each, byte_limiter=limiter) for each in arguments))

    return asyncio.run(run())


class GlobalAsyncCheckpointManagerBase(ABC):
    """The interface of managers that write arrays in the background.

    Example:
        >>> from shardwise.experimental.array_serialization import serialization
        >>> manager = serialization.GlobalAsyncCheckpointManager()
        >>> isinstance(manager, serialization.GlobalAsyncCheckpointManagerBase)
        True
    """

    @abstractmethod
    def check_for_errors(self) -> None:
        """Raise the error of a write that failed in the background."""

    @abstractmethod
    def wait_until_finished(self) -> None:
        """Wait until all writes are finished."""

    @abstractmethod
    def serialize(
        self,
        arrays: Sequence[Any],
        tensorstore_specs: Sequence[dict[str, Any]],
        *,
        on_commit_callback: Callable[[], None] | None,
    ) -> Any:
        """Write arrays."""

    @abstractmethod
    def deserialize(
        self,
        shardings: Sequence[Any],
        tensorstore_specs: Sequence[Any],
        global_shapes: Sequence[Sequence[int] | None] | None,
        dtypes: Sequence[Any] | None,
    ) -> Any:
        """Read arrays."""


class GlobalAsyncCheckpointManager(GlobalAsyncCheckpointManagerBase):
    """Writes arrays in the background. Every process makes the same calls.

    Args:
        timeout_secs: how many seconds to wait for other processes.

    Raises:
        Nothing.

    Example:
        >>> from shardwise.experimental.array_serialization import serialization
        >>> manager = serialization.GlobalAsyncCheckpointManager()
        >>> manager.serialize_with_paths([jnp.arange(4)], [folder / "w"])
        >>> manager.deserialize_with_paths([jax.sharding.SingleDeviceSharding(jax.devices()[0])], [folder / "w"])
        [Array([0, 1, 2, 3], dtype=int32)]
    """

    def __init__(self, timeout_secs: float = 300):
        self._timeout = timeout_secs
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def check_for_errors(self) -> None:
        """Raise the error of a write that failed in the background, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_until_finished(self) -> None:
        """Wait until all processes have written their arrays, and the callback has run.

        Raises:
            CheckpointError: if another process could not write.
            PeerFailure: if another process ended, or neither wrote nor answered in time; the error names it.
            Exception: the error of this process, if it could not write.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check_for_errors()

    def serialize(
        self,
        arrays: Sequence[Any],
        tensorstore_specs: Sequence[dict[str, Any]],
        *,
        on_commit_callback: Callable[[], None] | None = None,
        transaction: object = None,
    ) -> None:
        """Write arrays in the background, after the write before has finished.

        Args:
            arrays: the arrays, which may be donated when this returns.
            tensorstore_specs: the spec of each.
            on_commit_callback: a function that process 0 calls after all processes have written: it renames the folder,
                or writes a marker.
            transaction: TensorStore's transaction that the writes belong to.

        Raises:
            CheckpointError: if the write before has failed in another process.
            Exception: the error of the write before, or that with which this one begins.
        """
        self.wait_until_finished()
        group = Group(f"array serialization {next(_numbers)}", self._timeout)
        futures: list[Any] = []
        error: Exception | None = None
        try:
            _write(arrays, tensorstore_specs, commit_future=futures, transaction=transaction)
        except Exception as failure:
            error = failure
        self._thread = threading.Thread(target=self._commit, args=(group, futures, error, on_commit_callback))
        self._thread.start()
        if error is not None:
            self.wait_until_finished()

    def _commit(
        self, group: Group, futures: list[Any], error: Exception | None, callback: Callable[[], None] | None
    ) -> None:
        """Wait for the writes of all processes, and run the callback in process 0."""

        def finish_writes() -> None:
            if error is not None:
                raise error
            for future in futures:
                future.result()
                group.report_progress()

        def commit() -> None:
            if group.index == 0 and callback is not None:
                callback()

        try:
            group.gather(finish_writes)
            group.gather(commit)
        except Exception as failure:
            self._error = failure

    def serialize_with_paths(
        self,
        arrays: Sequence[Any],
        paths: Sequence[str | os.PathLike[str]],
        *,
        on_commit_callback: Callable[[], None] | None = None,
        transaction: object = None,
    ) -> None:
        """Write arrays to paths, as `serialize` does."""
        specs = [get_tensorstore_spec(path) for path in paths]
        self.serialize(arrays, specs, on_commit_callback=on_commit_callback, transaction=transaction)

    def deserialize(
        self,
        shardings: Sequence[Any],
        tensorstore_specs: Sequence[Any],
        global_shapes: Sequence[Sequence[int] | None] | None = None,
        dtypes: Sequence[Any] | None = None,
        concurrent_gb: int = 32,
    ) -> list[Any]:
        """Read arrays, as `run_deserialization` does, after the write before has finished."""
        self.wait_until_finished()
        return run_deserialization(shardings, tensorstore_specs, global_shapes, dtypes, concurrent_gb)

    def deserialize_with_paths(
        self,
        shardings: Sequence[Any],
        paths: Sequence[str | os.PathLike[str]],
        global_shapes: Sequence[Sequence[int] | None] | None = None,
        dtypes: Sequence[Any] | None = None,
        concurrent_gb: int = 32,
    ) -> list[Any]:
        """Read arrays from paths, as `deserialize` does."""
        specs = [get_tensorstore_spec(path) for path in paths]
        return self.deserialize(shardings, specs, global_shapes, dtypes, concurrent_gb)


set_public_names(__name__, __all__)
