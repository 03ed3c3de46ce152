"""File checksums: bind every file of a large array to the manifest.

The index of a zarr shard holds offsets, which are the same in all files of an array. Each chunk ends with the crc32c of
its data, so these checksums distinguish a file from files of other shards and other steps. They are read from the file,
because computing them would read the data again. All chunks of an array have one size, and TensorStore writes them
consecutively, so their positions follow from the shapes.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from shardwise.checkpoints.location import Location
from shardwise.checkpoints.manifest import CHECKSUM_BYTES, Chunked, Shape, chunk_grid, file_grid
from shardwise.runtime.box import Box

_INDEX_ENTRY_BYTES = 16  # the offset and the size of a chunk


@final
@dataclass(frozen=True, slots=True)
class ChunkRange:
    """Chunks of one file of a large array.

    Attributes:
        file: the name of the file, relative to the checkpoint.
        file_index: the position of the file among all files of the array, in row-major order.
        chunks: the positions of the chunks in the file, in row-major order.
    """

    file: str
    file_index: int
    chunks: tuple[int, ...]

    def recorded(self, blocks: Chunked) -> bytes:
        """Return the concatenated checksums of the chunks from the manifest."""
        assert blocks.checksums is not None
        checksums = np.frombuffer(blocks.checksums[self.file_index], np.uint32)
        return checksums[list(self.chunks)].tobytes()

    def read(self, location: Location, blocks: Chunked, itemsize: int) -> bytes:
        """Return the concatenated checksums of the chunks from the file.

        Raises:
            CorruptCheckpoint: if there is no such file, or if it is too short.
        """
        stride = math.prod(blocks.chunk_shape) * itemsize + CHECKSUM_BYTES
        offsets = [(chunk + 1) * stride - CHECKSUM_BYTES for chunk in self.chunks]
        return location.read_at(self.file, offsets, CHECKSUM_BYTES)


def chunk_range(shape: Shape, blocks: Chunked, box: Box) -> ChunkRange:
    """Return the chunks that contain the elements of a box, which is inside one file."""
    position = tuple(low // size for (low, _), size in zip(box, blocks.file_shape, strict=True))
    grid = chunk_grid(shape, blocks.file_shape, blocks.chunk_shape, position)
    starts = [index * size for index, size in zip(position, blocks.file_shape, strict=True)]
    spans = [
        np.arange((low - start) // chunk, -((start - high) // chunk))
        for (low, high), start, chunk in zip(box, starts, blocks.chunk_shape, strict=True)
    ]
    chunks = np.zeros((), np.int64)
    for span, count in zip(spans, grid, strict=True):
        chunks = chunks[..., None] * count + span
    index = 0
    for place, count in zip(position, file_grid(shape, blocks.file_shape), strict=True):
        index = index * count + place
    return ChunkRange("/".join([blocks.folder, "c", *map(str, position)]), index, tuple(chunks.reshape(-1).tolist()))


def largest_file(blocks: Chunked, itemsize: int) -> int:
    """Return the bytes of a file with all its chunks, their checksums and the index."""
    chunks = math.prod(blocks.file_shape) // math.prod(blocks.chunk_shape)
    entries = chunks * (CHECKSUM_BYTES + _INDEX_ENTRY_BYTES)
    return math.prod(blocks.file_shape) * itemsize + entries + CHECKSUM_BYTES
