"""Sources: arrays in files of another format, which are read block by block while a checkpoint is written."""

import os
from collections.abc import Mapping
from typing import Any, Protocol, final

import numpy as np

from shardwise.checkpoints.blocks import stored_dtype
from shardwise.checkpoints.manifest import (
    DTYPES,
    ArrayLeaf,
    Chunked,
    Leaf,
    Part,
    ValueLeaf,
    check_value,
)
from shardwise.checkpoints.save import Save, start_save
from shardwise.checkpoints.snapshot import Snapshot, add_part, blocks_of, is_packed
from shardwise.errors import CheckpointError
from shardwise.runtime.box import whole
from shardwise.runtime.client import process_count


class Source(Protocol):
    """An array that is not in memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]: ...


@final
class _Stored:
    """A source whose blocks have the dtype in which they are stored."""

    def __init__(self, source: Source):
        self._source = source
        self.nbytes = int(np.prod(source.shape, dtype=np.int64)) * source.dtype.itemsize

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        block = np.ascontiguousarray(self._source[index])
        return block.view(stored_dtype(block.dtype))


def save_sources(
    path: str | os.PathLike[str], leaves: Mapping[str, tuple[tuple[bool, ...], Any]], metadata: Mapping[str, Any]
) -> Save:
    """Save arrays from sources as a checkpoint, with one block in memory at a time.

    Args:
        path: where the checkpoint will be.
        leaves: name → (whether each key of the path is a position, a source or a Python value).
        metadata: a JSON object to save with them.

    Raises:
        CheckpointExists: if something else is at `path`.
        CheckpointError: if a leaf cannot be saved, if there are several processes, or if the previous save failed and
            no call has raised its error.
    """
    if process_count() > 1:
        raise CheckpointError("files are imported by one process")
    return start_save(path, lambda process, chunk_bytes: _snapshot(leaves, chunk_bytes), metadata)


def _snapshot(leaves: Mapping[str, tuple[tuple[bool, ...], Any]], chunk_bytes: int) -> Snapshot:
    """Return the leaves to write. Arrays in their own folders stay in their sources; small ones are read."""
    saved: dict[str, Leaf] = {}
    shards: dict[str, Any] = {}
    pack = bytearray()
    for index, (name, (positions, leaf)) in enumerate(leaves.items()):
        if not hasattr(leaf, "__getitem__") or isinstance(leaf, str):
            saved[name] = ValueLeaf(check_value(name, leaf), positions)
            continue
        dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape)
        if str(dtype) not in DTYPES:
            raise CheckpointError(f"the array {name!r} is of {dtype}, which a checkpoint cannot hold")
        stored, box = _Stored(leaf), whole(shape)
        storage: Chunked | tuple[Part, ...]
        if is_packed(shape, dtype):
            storage = (add_part(pack, 0, box, stored[()]),)
        else:
            storage = blocks_of(index, shape, dtype, chunk_bytes)
            shards[name] = [(box, stored)]
        saved[name] = ArrayLeaf(dtype, shape, None, True, "host", storage, positions)
    return Snapshot(saved, shards, pack)
