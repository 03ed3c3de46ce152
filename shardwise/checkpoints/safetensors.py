"""The safetensors format: a length of 8 bytes, a JSON header, and the bytes of all arrays.

The package of that name writes files from arrays that are in memory; these functions stream.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.checkpoints.blocks import stored_dtype
from shardwise.checkpoints.fields import Fields
from shardwise.checkpoints.manifest import Shape
from shardwise.checkpoints.names import check_name, join_keys, split_name
from shardwise.checkpoints.read import Reader
from shardwise.checkpoints.save import Save
from shardwise.checkpoints.sources import save_sources
from shardwise.errors import CheckpointError, CorruptCheckpoint
from shardwise.runtime.box import box_index

_LARGEST_HEADER = 100_000_000  # bytes, as the format says
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits // 8}") for kind in "IU" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "C64": np.dtype(np.complex64),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a safetensors file, mapped into memory: elements are read when they are used.

    Args:
        path: the file.

    Returns:
        The arrays by name, read-only.

    Raises:
        CorruptCheckpoint: if the file is truncated, or if its header is not valid.

    Example:
        >>> jax.checkpoints.save(folder / "a", {"w": jnp.arange(3)}).wait()
        >>> size = jax.checkpoints.export_safetensors(folder / "a", folder / "a.safetensors")
        >>> list(jax.checkpoints.read_safetensors(folder / "a.safetensors"))
        ['w']
    """
    file = Path(path)
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise CorruptCheckpoint(f"{file} is not a safetensors file: its header does not fit")
        text = opened.read(length)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{file}: the header is not JSON: {error}") from None
    header = Fields(parsed, f"{file}: header")
    arrays = {}
    for name in parsed:
        if name == "__metadata__":
            continue
        fields = Fields(header[name], f"{file}: {name!r}")
        dtype = _DTYPES.get(fields.text("dtype"))
        if dtype is None:
            raise fields.error("dtype", f"is none of {', '.join(_DTYPES)}")
        shape, offsets = tuple(fields.sizes("shape")), fields.sizes("data_offsets")
        nbytes = math.prod(shape) * dtype.itemsize
        if len(offsets) != 2 or offsets[1] - offsets[0] != nbytes or offsets[1] > size - 8 - length:
            raise fields.error("data_offsets", f"do not fit an array of {nbytes:,} bytes in the file")
        mapped = np.memmap(file, np.uint8, "r", 8 + length + offsets[0], (nbytes,)) if nbytes else np.empty(0, np.uint8)
        arrays[name] = mapped.view(dtype).reshape(shape)
    return arrays


def import_safetensors(
    files: list[str | os.PathLike[str]], path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None
) -> Save:
    """Save the arrays of safetensors files as a checkpoint, with one block in memory at a time.

    Args:
        files: the files; a name may be in one of them only.
        path: where the checkpoint will be.
        metadata: a JSON object to save beside the arrays.

    Returns:
        The save that is being written.

    Raises:
        CorruptCheckpoint: if a file is truncated or not valid.
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
        for key, array in read_safetensors(file).items():
            name = check_name(join_keys([key]))
            if name in leaves:
                raise CheckpointError(f"{file}: the array {key!r} is in another of the files too")
            leaves[name] = (False,), array
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
            arrays would have one name, because a key has a dot.
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
    """Return an array of a file, mapped into memory to be written, in the dtype in which elements are stored."""
    return np.memmap(file, stored_dtype(dtype), "r+", start, shape)


def _plain(name: str) -> str:
    """Return the name of a leaf for other programs: keys joined by dots."""
    return ".".join(split_name(name))
