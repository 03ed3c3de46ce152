"""The safetensors format: a length of 8 bytes, a JSON header, and the bytes of all arrays.

The package of that name writes files from arrays in memory; these functions stream.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.base.regular_file import NotRegularFileError, open_regular_file
from shardwise.checkpoints.blocks import stored_dtype
from shardwise.checkpoints.fields import Fields
from shardwise.checkpoints.host_memory import empty_host_array
from shardwise.checkpoints.manifest import Shape
from shardwise.checkpoints.names import check_name, join_keys, split_name
from shardwise.checkpoints.read import Reader
from shardwise.checkpoints.save import Save
from shardwise.checkpoints.sources import save_sources
from shardwise.checkpoints.untrusted_json import parse_json
from shardwise.errors import CheckpointError, CorruptCheckpoint
from shardwise.runtime.box import box_index, box_of, box_shape, whole

_LARGEST_HEADER = 100_000_000  # bytes, as in the format
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits // 8}") for kind in "IU" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "C64": np.dtype(np.complex64),
}
_LARGEST_RANK = 64  # of numpy arrays
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a safetensors file, mapped into memory: elements are read when they are used.

    Args:
        path: the file.

    Returns:
        The arrays by name, read-only.

    Raises:
        CheckpointError: if the file cannot be read.
        CorruptCheckpoint: if the file is truncated, if its header is invalid, or if arrays overlap or leave holes.

    Example:
        >>> jax.checkpoints.save(folder / "a", {"w": jnp.arange(3)}).wait()
        >>> size = jax.checkpoints.export_safetensors(folder / "a", folder / "a.safetensors")
        >>> list(jax.checkpoints.read_safetensors(folder / "a.safetensors"))
        ['w']
    """
    return {
        entry.name: np.memmap(entry.file, np.uint8, "r", entry.start, (entry.nbytes,))
        .view(entry.dtype)
        .reshape(entry.shape)
        if entry.nbytes
        else np.empty(entry.shape, entry.dtype)
        for entry in _read_header(Path(path))
    }


@final
@dataclass(frozen=True)
class _Entry:
    """An array of a safetensors file, whose elements are read when it is indexed.

    Reads do not use a memory map: a file that shrinks is an error here, whereas a map would abort the process.

    Attributes:
        file: the file.
        name: its name.
        dtype: its dtype.
        shape: its shape.
        start: its first byte in the file.
    """

    file: Path
    name: str
    dtype: np.dtype[Any]
    shape: Shape
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        box = box_of(index) if index else whole(self.shape)
        rows = (*box[:1], *whole(self.shape[1:]))  # contiguous
        elements = empty_host_array(box_shape(rows), self.dtype, f"{self.file}: {self.name!r}")
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        content = elements.reshape(-1).view(np.uint8).data
        position = 0
        try:
            with open_regular_file(self.file) as opened:
                opened.seek(self.start + (box[0][0] * row_bytes if box else 0))
                while position < len(content) and (count := opened.readinto(content[position:])):
                    position += count
        except OSError as error:
            raise CheckpointError(f"{self.file} cannot be read: {error.strerror or error}") from error
        if position < len(content):
            raise CorruptCheckpoint(f"{self.file}: {self.name!r} is truncated: the file shrank while it was read")
        return elements[(slice(None), *box_index(box[1:]))] if box else elements


def _read_header(file: Path) -> list[_Entry]:
    """Return the arrays of a safetensors file, in the order of its header.

    Raises:
        CorruptCheckpoint: if the file is not a regular file, is truncated, or has an invalid header.
    """
    try:
        with open_regular_file(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > min(size - 8, _LARGEST_HEADER):
                raise CorruptCheckpoint(f"{file} is not a safetensors file: its header does not fit")
            text = opened.read(length)
    except NotRegularFileError as error:
        raise CorruptCheckpoint(str(error)) from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    if len(text) < length:
        raise CorruptCheckpoint(f"{file} is truncated: the header ends after {len(text):,} of {length:,} bytes")
    parsed = parse_json(text, f"{file}: the header")
    header = Fields(parsed, f"{file}: header")
    entries = []
    for name in parsed:
        if name == "__metadata__":
            header.texts(name)
            continue
        fields = Fields(header[name], f"{file}: {name!r}")
        dtype = _DTYPES.get(fields.text("dtype"))
        if dtype is None:
            raise fields.error("dtype", f"is none of {', '.join(_DTYPES)}")
        shape, offsets = tuple(fields.sizes("shape")), fields.sizes("data_offsets")
        if len(shape) > _LARGEST_RANK or math.prod(max(1, dim) for dim in shape) * dtype.itemsize >= 1 << 63:
            raise fields.error("shape", "has too many dims or elements")
        entry = _Entry(file, name, dtype, shape, 8 + length + offsets[0] if offsets else 0)
        if len(offsets) != 2 or offsets[1] - offsets[0] != entry.nbytes or offsets[1] > size - 8 - length:
            raise fields.error("data_offsets", f"do not fit an array of {entry.nbytes:,} bytes in the file")
        entries.append(entry)
    _check_layout(file, entries, 8 + length, size)
    return entries


def _check_layout(file: Path, entries: list[_Entry], start: int, size: int) -> None:
    """Check that the arrays cover all bytes after the header exactly once, as the format requires.

    Raises:
        CorruptCheckpoint: if two arrays overlap, or if bytes belong to no array.
    """
    end, before = start, ""
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.nbytes)):
        if entry.start < end:
            raise CorruptCheckpoint(f"{file}: the arrays {before!r} and {entry.name!r} overlap")
        if entry.start > end:
            raise CorruptCheckpoint(f"{file}: {entry.start - end:,} bytes before {entry.name!r} belong to no array")
        end, before = entry.start + entry.nbytes, entry.name
    if end != size:
        raise CorruptCheckpoint(f"{file}: {size - end:,} bytes at the end belong to no array")


def import_safetensors(
    files: list[str | os.PathLike[str]], path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None
) -> Save:
    """Save the arrays of safetensors files as a checkpoint, with one block in memory at a time.

    Args:
        files: the files; a name may occur in only one of them.
        path: where the checkpoint will be.
        metadata: a JSON object to save with the arrays.

    Returns:
        The save that is being written.

    Raises:
        CorruptCheckpoint: if a file is truncated or invalid.
        CheckpointError: if two files have an array of the same name, if a checkpoint cannot hold a name, or if there is
            a checkpoint at `path`.

    Example:
        >>> jax.checkpoints.save(folder / "a", {"w": jnp.arange(3)}).wait()
        >>> size = jax.checkpoints.export_safetensors(folder / "a", folder / "a.safetensors")
        >>> jax.checkpoints.import_safetensors([folder / "a.safetensors"], folder / "b").wait()
        >>> jax.checkpoints.restore(folder / "b")["w"]
        array([0, 1, 2], dtype=int32)
    """
    leaves: dict[str, tuple[tuple[bool, ...], Any]] = {}
    for file in files:
        for entry in _read_header(Path(file)):
            name = check_name(join_keys([entry.name]))
            if name in leaves:
                raise CheckpointError(f"{file}: the array {entry.name!r} is in another of the files too")
            leaves[name] = (False,), entry
    return save_sources(path, leaves, metadata or {})


def export_safetensors(path: str | os.PathLike[str], file: str | os.PathLike[str]) -> int:
    """Write the arrays of a checkpoint to a safetensors file, with one block in memory at a time.

    Args:
        path: the checkpoint.
        file: the file, which must not exist.

    Returns:
        The number of bytes of the arrays.

    Raises:
        CheckpointError: if the file exists, if its folder does not, if safetensors has no name for a dtype, or if two
            arrays would have the same name, because a key contains a dot.
        CorruptCheckpoint: if the checkpoint was changed.

    Example:
        >>> jax.checkpoints.save(folder / "a", {"w": jnp.arange(3)}).wait()
        >>> jax.checkpoints.export_safetensors(folder / "a", folder / "a.safetensors")
        12
    """
    reader = Reader(path)
    target = Path(file)
    if target.exists():
        raise CheckpointError(f"{target} exists: choose another name")
    if not target.parent.is_dir():
        raise CheckpointError(f"there is no folder {target.parent} for {target.name}: create it first")
    header: dict[str, Any] = {}
    offset = 0
    for name, leaf in reader.manifest.arrays.items():
        if leaf.dtype not in _NAMES:
            raise CheckpointError(f"{reader.path}: {name!r} is {leaf}, and safetensors has no name for that dtype")
        if _plain(name) in header:
            raise CheckpointError(f"{reader.path}: two arrays would have the name {_plain(name)!r}: rename one")
        header[_plain(name)] = {
            "dtype": _NAMES[leaf.dtype],
            "shape": list(leaf.shape),
            "data_offsets": [offset, offset + leaf.nbytes],
        }
        offset += leaf.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as opened:
            opened.write(len(text).to_bytes(8, "little") + text)
            opened.truncate(8 + len(text) + offset)
        starts = {name: 8 + len(text) + header[_plain(name)]["data_offsets"][0] for name in reader.manifest.arrays}
        for name, data in reader.read_small(reader.small):
            if data.nbytes:
                _map(partial, starts[name], data.dtype, data.shape)[...] = data.view(stored_dtype(data.dtype))
        for name in reader.large:
            leaf = reader.manifest.arrays[name]
            elements = _map(partial, starts[name], leaf.dtype, leaf.shape)
            for _, box, data in reader.read_boxes((name, box) for box in reader.boxes(name)):
                elements[box_index(box)] = data.view(elements.dtype)
        with partial.open("rb") as opened:
            os.fsync(opened.fileno())
        partial.rename(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return offset


def _map(file: Path, start: int, dtype: np.dtype[Any], shape: Shape) -> np.memmap[Any, Any]:
    """Map an array of a file into memory to be written, in the dtype in which elements are stored."""
    return np.memmap(file, stored_dtype(dtype), "r+", start, shape)


def _plain(name: str) -> str:
    """Return the name of a leaf for other programs: keys joined by dots."""
    return ".".join(split_name(name))
