"""Verify a checkpoint: read every byte of it, and compare it with its checksum."""

import os
from collections.abc import Callable, Iterator

import numpy as np

from shardwise.checkpoints.blocks import pack_blocks, zarr_file
from shardwise.checkpoints.manifest import ArrayLeaf, Chunked
from shardwise.checkpoints.read import Reader
from shardwise.errors import CorruptCheckpoint
from shardwise.runtime.box import Box, box_size, cut, whole

_MOST = 50  # problems in a message


def verify(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> int:
    """Read every block of a checkpoint, and compare it with its checksum.

    Args:
        path: the folder or URL of the checkpoint.
        progress: a function that is called with the bytes that were read, and those of all arrays.

    Returns:
        The number of bytes of the arrays.

    Raises:
        CheckpointError: if there is no checkpoint at `path`.
        CorruptCheckpoint: if it was changed after it was written; the message lists every block that was.

    Example:
        >>> jax.checkpoints.save(folder / "step-5", {"w": jnp.arange(4.0)}).wait()
        >>> jax.checkpoints.verify(folder / "step-5")
        16
    """
    reader = Reader(path)
    problems, done, total = list(_metadata_problems(reader)), 0, reader.manifest.nbytes
    for name, leaf in reader.manifest.arrays.items():
        for box in blocks_of_leaf(leaf):
            try:
                reader.read_box(name, box)
            except CorruptCheckpoint as error:
                problems.append(str(error).removeprefix(f"{reader.path}: "))
            done += box_size(box) * leaf.dtype.itemsize
            if progress is not None:
                progress(done, total)
    if problems:
        shown = "".join(f"\n  {problem}" for problem in problems[:_MOST])
        more = f"\n  and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
        raise CorruptCheckpoint(f"{reader.path} is corrupt in {len(problems)} places:{shown}{more}")
    return total


def blocks_of_leaf(leaf: ArrayLeaf) -> list[Box]:
    """Return the boxes of the files of a large array; that of a small array is the whole array."""
    if isinstance(leaf.storage, Chunked):
        return list(cut(whole(leaf.shape), leaf.storage.file_shape))
    return [whole(leaf.shape)]


def _metadata_problems(reader: Reader) -> Iterator[str]:
    """Return what is wrong with zarr's metadata files, which only other readers use."""
    expected = {
        leaf.storage.folder: zarr_file(leaf.shape, leaf.dtype, leaf.storage)
        for leaf in reader.manifest.arrays.values()
        if isinstance(leaf.storage, Chunked)
    }
    for process, nbytes in enumerate(reader.manifest.packs):
        if nbytes:
            blocks = pack_blocks(process, nbytes)
            expected[blocks.folder] = zarr_file((nbytes,), np.dtype(np.uint8), blocks)
    for folder, content in expected.items():
        if reader.location.read(f"{folder}/zarr.json") != content:
            yield f"{folder}/zarr.json is missing, or was changed"
