"""Verify a checkpoint: read all its bytes, and compare them with their checksums."""

import logging
import os
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from shardwise.checkpoints.blocks import pack_blocks, zarr_file
from shardwise.checkpoints.compare import listed
from shardwise.checkpoints.manifest import ArrayLeaf, Chunked
from shardwise.checkpoints.read import Reader
from shardwise.errors import CorruptCheckpoint
from shardwise.runtime.box import box_size

_log = logging.getLogger("shardwise")


def verify(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> int:
    """Read every block of a checkpoint, and compare it with its checksum.

    Older checkpoints do not record which files belong to their large arrays. This is then not checked, with a warning
    in the log of `shardwise`.

    Args:
        path: the folder or URL of the checkpoint.
        progress: a function that is called with the bytes read so far, and the bytes of all arrays.

    Returns:
        The number of bytes of the arrays.

    Raises:
        CheckpointError: if there is no checkpoint at `path`.
        CorruptCheckpoint: if it was changed after it was written; the message lists every changed block.

    Example:
        >>> jax.checkpoints.save(folder / "step-5", {"w": jnp.arange(4.0)}).wait()
        >>> jax.checkpoints.verify(folder / "step-5")
        16
    """
    reader = Reader(path)
    problems = list(_metadata_problems(reader))
    done, total = 0, reader.manifest.nbytes
    for nbytes, found in chain(_small_problems(reader), _large_problems(reader)):
        problems += found
        done += nbytes
        if progress is not None:
            progress(done, total)
    if problems:
        places = [problem.removeprefix(f"{reader.path}: ") for problem in problems]
        raise CorruptCheckpoint(f"{reader.path} is corrupt in {len(places)} places:{listed(places)}")
    if unbound := [name for name in reader.large if _is_unbound(reader.manifest.arrays[name])]:
        _log.warning(
            "%s: an older version saved it, without the checksums that tell the files of a large array from those of "
            "other steps and shards. Whether files were swapped is not checked for %s",
            reader.path,
            ", ".join(map(repr, unbound[:3])) + (f" and {len(unbound) - 3} more" if len(unbound) > 3 else ""),
        )
    return total


def _is_unbound(leaf: ArrayLeaf) -> bool:
    """Return whether the manifest does not record which files belong to an array."""
    return isinstance(leaf.storage, Chunked) and leaf.storage.checksums is None


def _small_problems(reader: Reader) -> Iterator[tuple[int, list[str]]]:
    """Read small arrays; yield the bytes read, and the problems found."""
    for names in reader.batches(reader.small):
        nbytes = sum(reader.manifest.arrays[name].nbytes for name in names)
        yield nbytes, list(_corrupt_arrays(reader, names))


def _corrupt_arrays(reader: Reader, names: list[str]) -> Iterator[str]:
    """Read small arrays together; only after an error, bisect them to find each corrupt array."""
    try:
        for _ in reader.read_small(names):
            pass
    except CorruptCheckpoint as error:
        if len(names) == 1:
            yield str(error)
        else:
            middle = len(names) // 2
            yield from _corrupt_arrays(reader, names[:middle])
            yield from _corrupt_arrays(reader, names[middle:])


def _large_problems(reader: Reader) -> Iterator[tuple[int, list[str]]]:
    """Read large arrays; yield the bytes read, and the problems found."""
    for name in reader.large:
        for box in reader.boxes(name):
            problems = []
            try:
                reader.read_box(name, box)
            except CorruptCheckpoint as error:
                problems.append(str(error))
            yield box_size(box) * reader.manifest.arrays[name].dtype.itemsize, problems


def _metadata_problems(reader: Reader) -> Iterator[str]:
    """Return the problems of zarr's metadata files, which only other readers use."""
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
        try:
            is_same = reader.location.read(f"{folder}/zarr.json", len(content)) == content
        except CorruptCheckpoint:  # it is too large, or not a file
            is_same = False
        if not is_same:
            yield f"{folder}/zarr.json is missing, or was changed"
