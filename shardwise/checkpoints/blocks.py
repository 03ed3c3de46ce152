"""Blocks: the partition of an array into files and chunks, and the zarr3 arrays that hold them.

A file holds a block of one shard, so that each process writes its own files. Inside a file, each chunk has a checksum
and can be read alone.
"""

import json
import math
from typing import Any

import numpy as np

from shardwise.base.object_store import ts
from shardwise.checkpoints.location import Location
from shardwise.checkpoints.manifest import Chunked, Shape
from shardwise.compiler.dtypes import SMALL_FLOATS, SMALL_INTEGERS

LARGEST_FILE = 1 << 28  # bytes; a file is copied in memory while it is written
PACK_CHUNK = 1 << 20  # bytes
_BIT_PATTERNS = {*SMALL_FLOATS.values(), *SMALL_INTEGERS.values()} - {
    SMALL_FLOATS["bf16"]
}  # dtypes for which zarr has no names


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which elements are stored: the bits of dtypes that zarr does not have."""
    return np.dtype(np.uint8) if dtype in _BIT_PATTERNS else dtype


def open_blocks(location: Location, shape: Shape, dtype: np.dtype[Any], blocks: Chunked, context: Any) -> Any:
    """Return a future of the zarr3 array with these blocks in the checkpoint at `location`.

    The manifest has its metadata. zarr's own metadata file is for other readers, and is not read.
    """
    spec = {
        "driver": "zarr3",
        "kvstore": location.child(blocks.folder).kvstore(),
        "metadata": _metadata(shape, dtype, blocks),
        "fill_missing_data_reads": False,  # a missing chunk is an error instead of zeros
        "store_data_equal_to_fill_value": True,  # so that chunks of zeros are stored too
    }
    return ts.open(spec, context=context, open=True, assume_metadata=True)


def zarr_file(shape: Shape, dtype: np.dtype[Any], blocks: Chunked) -> bytes:
    """Return the contents of zarr's metadata file."""
    encoding = {"name": "default", "configuration": {"separator": "/"}}
    fixed = {"zarr_format": 3, "node_type": "array", "chunk_key_encoding": encoding}
    return json.dumps({**fixed, **_metadata(shape, dtype, blocks)}).encode()


def _metadata(shape: Shape, dtype: np.dtype[Any], blocks: Chunked) -> dict[str, Any]:
    """Return the metadata of a zarr3 array with sharded chunks and crc32c checksums."""
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    sharding = {"chunk_shape": list(blocks.chunk_shape), "codecs": codecs, "index_codecs": codecs}
    stored = stored_dtype(dtype)
    return {
        "shape": list(shape),
        "data_type": str(stored),
        "fill_value": False if stored == np.bool_ else [0, 0] if stored.kind == "c" else 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(blocks.file_shape)}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }


def read_shape(itemsize: int, blocks: Chunked, limit: int) -> Shape:
    """Return the shape of the blocks to read at once: whole chunks, of at most `limit` bytes or a single chunk."""
    shape, nbytes = list(blocks.chunk_shape), math.prod(blocks.chunk_shape) * itemsize
    for dim in reversed(range(len(shape))):
        count = max(1, min(blocks.file_shape[dim] // shape[dim], limit // nbytes))
        shape[dim] *= count
        nbytes *= count
        if shape[dim] < blocks.file_shape[dim]:
            break
    return tuple(shape)


def pack_blocks(process: int, nbytes: int) -> Chunked:
    """Return the blocks of a process's pack, which has the bytes of all its small arrays."""
    chunk = min(max(nbytes, 1), PACK_CHUNK)
    files = min(-(-nbytes // chunk), LARGEST_FILE // chunk)
    return Chunked(f"packs/{process}", (max(files, 1) * chunk,), (chunk,))


def storage_error_text(error: Exception) -> str:
    """Return TensorStore's message of an error, without its description of the array."""
    return str(error).partition(" [tensorstore_spec=")[0]
