"""Save pytrees of sharded arrays, in the background.

Every process writes the shards that it holds to a location that no reader sees. After all have written, process 0
writes the manifest and commits.
"""

import atexit
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, final

import numpy as np

from shardwise.checkpoints.agreement import check_agreement
from shardwise.checkpoints.blocks import open_blocks, pack_blocks, storage_error_text, zarr_file
from shardwise.checkpoints.context import write_context
from shardwise.checkpoints.file_checksums import chunk_range
from shardwise.checkpoints.lease import Lease
from shardwise.checkpoints.location import MANIFEST, Location, location_of
from shardwise.checkpoints.manifest import ArrayLeaf, Chunked, Leaf, Manifest, check_metadata
from shardwise.checkpoints.parts import FileChecksums, merge_files, merge_parts, parts_of
from shardwise.checkpoints.snapshot import Snapshot, take_snapshot
from shardwise.errors import CheckpointError, PeerFailure
from shardwise.runtime.box import Box, box_index, relative, split_box, whole
from shardwise.runtime.generations import generations
from shardwise.runtime.group import Group
from shardwise.version import __version__

BYTES_IN_FLIGHT = 1 << 29  # the most bytes that TensorStore may be writing at a time
_log = logging.getLogger("shardwise")


@final
class Save:
    """A checkpoint that is being written in the background.

    Args:
        location: where it will be.
        snapshot: the leaves, shards and pack that this process writes.
        metadata: a JSON object to save with it.
        group: the processes that write it.
        before_commit: a function that process 0 calls when everything is written, directly before the commit.
        after_commit: a function that process 0 calls after the checkpoint is committed.

    Attributes:
        path: where it will be, as a string.
        total_bytes: the bytes that this process writes.
        written_bytes: the bytes that are already written.
    """

    def __init__(
        self,
        location: Location,
        snapshot: Snapshot,
        metadata: Mapping[str, Any],
        group: Group,
        before_commit: Callable[[], None] | None,
        after_commit: Callable[[], None] | None,
    ):
        self.path = str(location)
        self.total_bytes = snapshot.nbytes
        self.written_bytes = 0
        self._error: BaseException | None = None
        self._is_reported = False
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._thread = threading.Thread(
            target=self._run, args=(location, snapshot, metadata, group), name=f"save {self.path}", daemon=True
        )
        self._thread.start()

    def done(self) -> bool:
        """Return whether it is committed, or has failed."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the checkpoint is committed.

        Args:
            timeout: the seconds to wait; by default, without limit.

        Raises:
            CheckpointError: if it could not be written; earlier checkpoints are unchanged.
            TimeoutError: if it is not committed in time.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.path} is not committed after {timeout} s: {self}")
        self._is_reported = True
        if self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        if not self.done():
            state = f"{self.written_bytes:,} of {self.total_bytes:,} bytes written"
        else:
            state = "committed" if self._error is None else f"failed: {self._error}"
        return f"<Save {self.path}: {state}>"

    def finish(self) -> None:
        """Wait until it ends, and raise its error unless a call of `wait` has raised it."""
        if not self._is_reported:
            self.wait()

    def _run(self, location: Location, snapshot: Snapshot, metadata: Mapping[str, Any], group: Group) -> None:
        try:
            self._write(location, snapshot, metadata, group)
        except (CheckpointError, PeerFailure) as error:
            self._error = error
        except Exception as error:
            self._error = CheckpointError(
                f"{self.path} could not be saved after {self.written_bytes:,} of {self.total_bytes:,} bytes: {error}. "
                "Earlier checkpoints are unchanged."
            )
            self._error.__cause__ = error

    def _write(self, location: Location, snapshot: Snapshot, metadata: Mapping[str, Any], group: Group) -> None:
        with ExitStack() as stack:
            leases: list[Lease] = []

            def take_lease() -> str:
                """Return the token of this save; in process 0, also take the lease that protects its files."""
                token = secrets.token_hex(8)
                if group.index == 0:
                    leases.append(stack.enter_context(location.lease(token)))
                return token

            partial = location.begin(group.gather(take_lease)[0])

            def write_arrays() -> dict[str, Any]:
                partial.prepare()
                return parts_of(snapshot, self._write_arrays(partial, snapshot, group))

            def commit() -> None:
                if group.index == 0:
                    leaves = merge_files(merge_parts(snapshot.leaves, parts[1:]), parts)
                    self._write_manifest(location, partial, leaves, parts, metadata)
                    leases[0].check()
                    if self._before_commit is not None:
                        self._before_commit()
                    location.commit(partial)

            try:
                parts = group.gather(write_arrays)
                group.gather(commit)
            except BaseException:
                if group.index == 0:
                    with suppress(CheckpointError):  # otherwise, the next Manager of this folder deletes it
                        partial.delete()
                raise
        _log.info("saved %s: %s bytes", self.path, f"{self.total_bytes:,}")
        if group.index == 0 and self._after_commit is not None:
            with group.working():
                self._call_after_commit(self._after_commit)

    def _call_after_commit(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            raise CheckpointError(
                f"{self.path} is saved, but the function `after_commit` raised {type(error).__name__}: {error}"
            ) from error

    def _write_arrays(self, partial: Location, snapshot: Snapshot, group: Group) -> FileChecksums:
        """Write the shards and the pack of this process; process 0 writes the metadata of arrays too.

        Returns:
            The checksums of the files of large arrays.
        """
        context = write_context()
        in_flight: deque[tuple[_Write, Any]] = deque()
        flying = 0
        checksums: dict[str, dict[int, bytes]] = {}

        def finish() -> int:
            """Wait until the first block in flight is written, and return its bytes."""
            write, future = in_flight.popleft()
            self._finish(write, future)
            if write.leaf is not None:
                assert isinstance(write.leaf.storage, Chunked)
                chunks = chunk_range(write.leaf.shape, write.leaf.storage, write.box)
                written = chunks.read(partial, write.leaf.storage, write.data.itemsize)
                checksums.setdefault(write.name, {})[chunks.file_index] = written
            group.report_progress()
            return write.data.nbytes

        for write in _writes(partial, snapshot, group, context):
            while in_flight and flying + write.data.nbytes > BYTES_IN_FLIGHT:
                flying -= finish()
            future = write.store[box_index(write.box)].write(write.data, can_reference_source_data_indefinitely=True)
            in_flight.append((write, future))
            flying += write.data.nbytes
        while in_flight:
            finish()
        return checksums

    def _finish(self, write: "_Write", future: Any) -> None:
        """Wait until a block is written."""
        nbytes = write.data.nbytes
        try:
            future.result()
        except Exception as error:
            raise CheckpointError(
                f"{self.path}: {nbytes:,} bytes of {write.name} in {write.folder} could not be written: "
                f"{storage_error_text(error)}. Earlier checkpoints are unchanged."
            ) from error
        self.written_bytes += nbytes

    def _write_manifest(
        self,
        location: Location,
        partial: Location,
        leaves: Mapping[str, Leaf],
        parts: list[Any],
        metadata: Mapping[str, Any],
    ) -> None:
        versions = {"shardwise": __version__, "jaxlib": version("jaxlib"), "tensorstore": version("tensorstore")}
        packs = tuple(part["pack_bytes"] for part in parts)
        manifest = Manifest(leaves, packs, metadata, versions, datetime.now(UTC).isoformat(timespec="seconds"))
        manifest.check(f"{location}/{MANIFEST}")  # do not commit a manifest that cannot be read back
        partial.write(MANIFEST, manifest.encode())


@final
@dataclass(frozen=True, slots=True)
class _Write:
    """One file to write.

    Attributes:
        name: the name of the array.
        folder: its folder.
        leaf: the array; None for a file of a pack.
        store: the zarr3 array.
        box: the elements of the array that the file contains.
        data: these elements.
    """

    name: str
    folder: str
    leaf: ArrayLeaf | None
    store: Any
    box: Box
    data: np.ndarray[Any, Any]


def _writes(partial: Location, snapshot: Snapshot, group: Group, context: Any) -> Iterator[_Write]:
    """Return the files that this process writes."""
    for name, leaf in snapshot.leaves.items():
        if not isinstance(leaf, ArrayLeaf) or not isinstance(leaf.storage, Chunked):
            continue
        if group.index == 0:
            partial.write(f"{leaf.storage.folder}/zarr.json", zarr_file(leaf.shape, leaf.dtype, leaf.storage))
        if shards := snapshot.shards[name]:
            store = open_blocks(partial, leaf.shape, leaf.dtype, leaf.storage, context).result()
            for box, data in shards:
                for part in split_box(box, leaf.storage.file_shape):
                    block = data[box_index(relative(part, box))]
                    yield _Write(name, leaf.storage.folder, leaf, store, part, block)
    if snapshot.pack:
        data = np.frombuffer(snapshot.pack, np.uint8)
        blocks = pack_blocks(group.index, len(data))
        partial.write(f"{blocks.folder}/zarr.json", zarr_file(data.shape, data.dtype, blocks))
        store = open_blocks(partial, data.shape, data.dtype, blocks, context).result()
        for part in split_box(whole(data.shape), blocks.file_shape):
            yield _Write("small arrays", blocks.folder, None, store, part, data[box_index(part)])


@final
class _Pending:
    """The save in flight. The next save waits for it, so that at most one snapshot is in memory."""

    def __init__(self) -> None:
        self.save: Save | None = None
        self.generation = -1  # of the processes that have started it
        self.lock = threading.Lock()
        self._waits_at_exit = False

    def make_way(self, processes: Sequence[int] | None) -> None:
        """Wait until the save in flight has ended, before the next save of these processes.

        The error of a save that lost a process is only logged if these processes continue without it, because their
        program already handles the failure. So is every error of an earlier generation: a process that has replaced
        another one does not have it, and would wait for the others in the next save.
        """
        try:
            self.finish()
        except (CheckpointError, PeerFailure) as failure:
            continues = isinstance(failure, PeerFailure) and processes is not None and failure.rank not in processes
            if not continues and self.generation == generations.number:
                raise
            _log.warning("%s was not committed: %s", self.save, failure)
        if not self._waits_at_exit:
            # Functions that are registered last run first, so this one runs while processes are still connected.
            atexit.register(self._finish_at_exit)
            self._waits_at_exit = True

    def finish(self) -> None:
        """Wait for the save in flight, and raise its error unless a call has raised it."""
        if self.save is not None:
            self.save.finish()

    def _finish_at_exit(self) -> None:
        """Wait for the save in flight, so that it is not lost when the program ends."""
        try:
            self.finish()
        except Exception as error:
            _log.error("%s", error)


_pending = _Pending()


def start_save(
    path: str | os.PathLike[str],
    take: Callable[[int, int], Snapshot],
    metadata: Mapping[str, Any] | None,
    *,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
    replaces: bool = False,
    before_commit: Callable[[], None] | None = None,
    after_commit: Callable[[], None] | None = None,
) -> Save:
    """Start to write a checkpoint in the background, after the save before it has ended.

    Args:
        path: where it will be.
        take: maps the position of this process in the group, and the largest chunk in bytes, to the snapshot that this
            process writes.
        metadata: a JSON object to save with it.
        processes: the ranks of the processes that save it; by default, all.
        timeout: the seconds to wait for other processes; by default, the peer timeout.
        replaces: whether there may be a checkpoint at `path`, which `before_commit` moves away.
        before_commit: a function that the first process calls when everything is written, directly before the commit.
        after_commit: a function that the first process calls after the checkpoint is committed.

    Raises:
        CheckpointExists: if something else is at `path`.
        CheckpointError: if a process cannot save it, or if the previous save failed and no call has raised its error.
    """
    location = location_of(path)
    with _pending.lock:
        _pending.make_way(processes)
        # Survivors of a failure may have started different numbers of saves, so the name does not include a count.
        group = Group(f"save of {location}", timeout, processes)
        error: Exception | None = None
        try:
            checked_metadata = check_metadata(metadata or {})
            if not replaces:
                location.check_free()
            with group.working():
                snapshot = take(group.index, location.chunk_bytes)
        except Exception as failure:
            error = failure
        group.agree(error)
        check_agreement(group, snapshot)
        _pending.save = Save(location, snapshot, checked_metadata, group, before_commit, after_commit)
        _pending.generation = generations.number
        return _pending.save


def save(
    path: str | os.PathLike[str],
    tree: object,
    *,
    metadata: Mapping[str, Any] | None = None,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
    after_commit: Callable[[], None] | None = None,
) -> Save:
    """Save a pytree of arrays as a checkpoint, in the background.

    It returns when the arrays may be changed or donated. The checkpoint appears at `path` when everything is written;
    if the program ends before, nothing appears. Every process of a program calls it with the same arguments, and writes
    the shards that it holds; replicas are written once. Python values, numpy arrays and uncommitted arrays, of which
    each process has its own copy, must be equal, and the first process writes them. A save waits for the previous one.

    Args:
        path: a folder that does not exist yet, or a URL, `s3://bucket/name` or `gs://bucket/name`. All processes must
            reach it.
        tree: a pytree of arrays, PRNG keys, numpy arrays, numbers, strings and None.
        metadata: a JSON object to save with it, such as the configuration of the run or the state of a data iterator.
        processes: the ranks of the processes that save it, if not all, such as the survivors of a failure.
        timeout: the seconds to wait for a process that neither answers nor writes; by default, the `peer_timeout` of
            `distributed.initialize`.
        after_commit: a function that the first process calls in the background, after the checkpoint is committed. If
            it fails, `wait()` raises an error which states that the checkpoint is saved.

    Returns:
        The save in flight: `wait()` waits for it and raises its errors.

    Raises:
        CheckpointExists: if there is a checkpoint, a file or a folder that is not empty at `path`.
        CheckpointError: if a leaf cannot be saved, if the trees of processes differ, if the folder cannot be written,
            or if the previous save failed and no call has raised its error.
        PeerFailure: if another process fails, or does not save within the timeout; the error names it.

    Example:
        >>> state = {"w": jnp.ones((4, 4)), "step": 3}
        >>> jax.checkpoints.save(folder / "step-3", state).wait()
        >>> jax.checkpoints.restore(folder / "step-3")["step"]
        3
    """
    return start_save(
        path,
        lambda process, chunk_bytes: take_snapshot(tree, process, chunk_bytes),
        metadata,
        processes=processes,
        timeout=timeout,
        after_commit=after_commit,
    )
