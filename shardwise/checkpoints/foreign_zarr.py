"""Check zarr arrays that another program wrote, before TensorStore allocates memory according to their metadata.

TensorStore aborts the process if an allocation fails. So the shapes, the number of chunks and the decoded size of every
chunk are compared with the stored bytes.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, final

from shardwise.checkpoints.fields import Fields
from shardwise.checkpoints.host_memory import check_fits_memory
from shardwise.checkpoints.manifest import Shape
from shardwise.checkpoints.untrusted_json import parse_json
from shardwise.checkpoints.zstd_frames import largest_decoded_size
from shardwise.errors import CorruptCheckpoint
from shardwise.runtime.box import Box

_LARGEST_METADATA = 1 << 20  # bytes
_LARGEST_RANK = 32
_LARGEST_ITEM = 16  # bytes, of complex128
_SLACK = 1 << 20  # bytes that an encoded chunk may have in addition to its elements
_LOOSENESS = 16  # a chunk may be encoded in many small blocks, each of which is bounded as a large one
_INDEX_ENTRY = 16  # bytes: the offset and the size of a chunk in a shard
_ABSENT = (1 << 64) - 1


@final
@dataclass(frozen=True)
class ForeignZarr:
    """The layout of a zarr array.

    Attributes:
        where: its name, for errors.
        shape: its shape.
        chunk_shape: the shape of the block under one key.
        inner_shape: the shape of the blocks in a shard; None if a key holds a single block.
        is_compressed: whether blocks are compressed by zstd.
        first_key: the prefix of the keys of chunks.
        separator: the separator between the indices in a key.
        has_index_checksum: whether the index of a shard ends with a checksum.
        has_chunk_checksum: whether a block ends with a checksum.
    """

    where: str
    shape: Shape
    chunk_shape: Shape
    inner_shape: Shape | None
    is_compressed: bool
    first_key: str
    separator: str
    has_index_checksum: bool = False
    has_chunk_checksum: bool = False

    def check_chunks(self, store: Any, box: Box, itemsize: int) -> None:
        """Check the stored size of every chunk of a box, before TensorStore decodes it.

        Args:
            store: TensorStore's key-value store.
            box: the elements that will be read.
            itemsize: the bytes of an element.

        Raises:
            CorruptCheckpoint: if a chunk is missing, or is larger than its elements, encoded or decoded.
        """
        spans = [
            range(low // chunk, -(-high // chunk)) for (low, high), chunk in zip(box, self.chunk_shape, strict=True)
        ]
        nbytes = math.prod(self.chunk_shape) * itemsize
        for position in itertools.product(*spans):
            key = self._key(position)
            entries = 0 if self.inner_shape is None else math.prod(self.chunk_shape) // math.prod(self.inner_shape)
            data = _read_value(store, key, nbytes + nbytes // 8 + entries * _INDEX_ENTRY + _SLACK, self.where)
            if self.inner_shape is None:
                self._check_block(data, nbytes, key)
            else:
                self._check_shard(data, itemsize, key)

    def _key(self, position: Shape) -> str:
        """Return the key of a chunk. A scalar has one chunk: `c` in zarr3 and `0` in zarr2."""
        if not position:
            return self.first_key.removesuffix(self.separator) or "0"
        return self.first_key + self.separator.join(map(str, position))

    def _check_block(self, data: bytes, nbytes: int, key: str) -> None:
        if not self.is_compressed:
            return
        try:
            decoded = largest_decoded_size(data[:-4] if self.has_chunk_checksum else data)
        except ValueError as error:
            raise CorruptCheckpoint(f"{self.where}: the chunk {key} cannot be decoded: {error}") from None
        if decoded > _LOOSENESS * nbytes + _SLACK:
            raise CorruptCheckpoint(
                f"{self.where}: the chunk {key} decodes to {decoded:,} bytes, but its elements have {nbytes:,}"
            )

    def _check_shard(self, data: bytes, itemsize: int, key: str) -> None:
        assert self.inner_shape is not None
        count = math.prod(outer // inner for outer, inner in zip(self.chunk_shape, self.inner_shape, strict=True))
        end = len(data) - 4 * self.has_index_checksum
        start = end - count * _INDEX_ENTRY
        if start < 0:
            raise CorruptCheckpoint(f"{self.where}: the shard {key} is truncated: it has no index of {count:,} chunks")
        index = memoryview(data)[start:end].cast("Q")  # little-endian, as all platforms of TensorStore are
        nbytes = math.prod(self.inner_shape) * itemsize
        for offset, size in zip(index[::2], index[1::2], strict=True):
            if offset == size == _ABSENT:
                continue
            if offset + size > start:
                raise CorruptCheckpoint(f"{self.where}: the index of the shard {key} has a chunk outside of its bytes")
            self._check_block(data[offset : offset + size], nbytes, key)


def _read_value(store: Any, key: str, limit: int, where: str) -> bytes:
    """Return the value of a key.

    Raises:
        CorruptCheckpoint: if it is missing, or has more than `limit` bytes, for which no memory is allocated.
    """
    try:
        is_larger = store.read(key, byte_range=slice(limit, limit + 1)).result().state == "value"
    except ValueError as error:
        if not str(error).startswith("OUT_OF_RANGE"):  # OUT_OF_RANGE means that the value is smaller
            raise
        is_larger = False
    if is_larger:
        raise CorruptCheckpoint(f"{where}: {key} has more than {limit:,} bytes")
    result = store.read(key).result()
    if result.state == "missing":
        raise CorruptCheckpoint(f"{where}: {key} is missing")
    return bytes(result.value)


def check_zarr(store: Any, is_zarr3: bool, where: str) -> ForeignZarr:
    """Read and check the metadata of a zarr array.

    Args:
        store: TensorStore's key-value store with the keys of the array.
        is_zarr3: whether its format is zarr3. Otherwise it is zarr2.
        where: its name, for errors.

    Raises:
        CorruptCheckpoint: if the metadata is missing or invalid, or if there are fewer keys than chunks.
        CheckpointError: if a chunk does not fit in memory.
    """
    name = "zarr.json" if is_zarr3 else ".zarray"
    content = _read_value(store, name, _LARGEST_METADATA, where)
    fields = Fields(parse_json(content, f"{where}: {name}"), f"{where}: {name}")
    zarr = _decode_zarr3(fields, where) if is_zarr3 else _decode_zarr2(fields, where)
    chunks = math.prod(-(-size // chunk) for size, chunk in zip(zarr.shape, zarr.chunk_shape, strict=True))
    if chunks and chunks > (keys := len(store.list().result())):
        raise CorruptCheckpoint(
            f"{where}: {zarr.shape} in chunks of {zarr.chunk_shape} has {chunks:,} chunks, but {keys:,} keys"
        )
    if chunks:
        check_fits_memory(math.prod(zarr.chunk_shape), f"{where}: a chunk of {zarr.chunk_shape}")
    return zarr


def _decode_zarr2(fields: Fields, where: str) -> ForeignZarr:
    shape, chunk_shape = _shape(fields, "shape"), _shape(fields, "chunks")
    _check_chunk_shape(fields, "chunks", shape, chunk_shape)
    if fields["filters"] is not None:
        raise fields.error("filters", "are not supported: Orbax writes none")
    compressor = fields["compressor"]
    if compressor is not None and Fields(compressor, f"{fields.where}: compressor").text("id") != "zstd":
        raise fields.error("compressor", "is not supported: Orbax writes zstd")
    separator = fields.text("dimension_separator") if "dimension_separator" in fields else "."
    return ForeignZarr(where, shape, chunk_shape, None, compressor is not None, "", separator)


def _decode_zarr3(fields: Fields, where: str) -> ForeignZarr:
    shape = _shape(fields, "shape")
    grid = Fields(Fields(fields["chunk_grid"], fields.where)["configuration"], f"{fields.where}: chunk_grid")
    chunk_shape = _shape(grid, "chunk_shape")
    _check_chunk_shape(grid, "chunk_shape", shape, chunk_shape)
    encoding = Fields(fields["chunk_key_encoding"], fields.where)
    if encoding.text("name") != "default":
        raise encoding.error("name", "is not supported: Orbax writes 'default'")
    separator = "/"
    if "configuration" in encoding:
        options = Fields(encoding["configuration"], encoding.where)
        separator = options.text("separator") if "separator" in options else "/"
    codecs = _codecs(fields, "codecs")
    inner_shape, has_index_checksum = None, False
    if "sharding_indexed" in codecs:
        sharding = codecs["sharding_indexed"]
        if (
            len(codecs) > 1
            or sharding is None
            or ("index_location" in sharding and sharding["index_location"] != "end")
        ):
            raise fields.error("codecs", "are not supported: Orbax writes shards alone, with the index at the end")
        inner_shape = _shape(sharding, "chunk_shape")
        _check_chunk_shape(sharding, "chunk_shape", chunk_shape, inner_shape)
        if any(outer % inner for outer, inner in zip(chunk_shape, inner_shape, strict=True)):
            raise sharding.error("chunk_shape", "does not divide the shape of a shard")
        index_codecs = _codecs(sharding, "index_codecs")
        if not set(index_codecs) <= {"bytes", "crc32c"}:
            raise sharding.error("index_codecs", "are not supported: Orbax writes bytes and crc32c")
        has_index_checksum = "crc32c" in index_codecs
        codecs = _codecs(sharding, "codecs")
    if not set(codecs) <= {"bytes", "transpose", "zstd", "crc32c"}:
        raise fields.error("codecs", "are not supported: Orbax writes bytes, zstd and crc32c")
    if "zstd" in codecs and "crc32c" in codecs and list(codecs)[-1] != "crc32c":
        raise fields.error("codecs", "are not supported: crc32c must be the last one")
    return ForeignZarr(
        where,
        shape,
        chunk_shape,
        inner_shape,
        "zstd" in codecs,
        f"c{separator}",
        separator,
        has_index_checksum,
        "crc32c" in codecs,
    )


def _codecs(fields: Fields, name: str) -> dict[str, Fields | None]:
    """Return the configurations of a list of codecs, by codec name."""
    codecs: dict[str, Fields | None] = {}
    for value in fields.list(name):
        codec = Fields(value, f"{fields.where}: {name}")
        if codec.text("name") in codecs:
            raise fields.error(name, "has a codec twice")
        has_options = "configuration" in codec
        codecs[codec.text("name")] = Fields(codec["configuration"], codec.where) if has_options else None
    return codecs


def _shape(fields: Fields, name: str) -> Shape:
    """Return a shape whose rank and number of elements are possible."""
    shape = tuple(fields.sizes(name))
    if len(shape) > _LARGEST_RANK:
        raise fields.error(name, f"has more than {_LARGEST_RANK} dims")
    if math.prod(max(1, size) for size in shape) * _LARGEST_ITEM >= 1 << 63:
        raise fields.error(name, "has too many elements")
    return shape


def _check_chunk_shape(fields: Fields, name: str, shape: Shape, chunk_shape: Shape) -> None:
    if len(chunk_shape) != len(shape) or 0 in chunk_shape:
        raise fields.error(name, f"does not fit the shape {shape}")
