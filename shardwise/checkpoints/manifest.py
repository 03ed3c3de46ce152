"""Manifest: the description of a checkpoint, as JSON that is validated before anything else is read.

The file is one JSON object: `format`, `format_version`, the `sha256` of the content, and the `content`. Its bytes
before and after the content must be exactly the bytes that `encode_file` writes, so that any changed bit is detected.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.checkpoints.fields import Fields
from shardwise.checkpoints.names import is_position, split_name
from shardwise.checkpoints.untrusted_json import has_too_many_values, parse_json
from shardwise.compiler.dtypes import SHORT_NAMES
from shardwise.errors import CheckpointError, CorruptCheckpoint
from shardwise.runtime.box import Box, Span, box_size

FORMAT = "shardwise checkpoint"
FORMAT_VERSION = 1
LARGEST_MANIFEST = 1 << 30  # bytes
DTYPES = {str(dtype): dtype for dtype in SHORT_NAMES.values()}
_LARGEST_RANK = 64  # of numpy arrays
_MOST_CHUNKS = 1 << 26  # in a file; their index has 1 GiB
_KEY_IMPLS = ("threefry2x32", "rbg", "unsafe_rbg")
_SCALARS = (bool, int, float, complex, str, type(None))

CHECKSUM_BYTES = 4  # the crc32c at the end of a chunk

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Chunked:
    """The storage of a large array: a zarr3 array in its own folder.

    Attributes:
        folder: the folder, relative to the checkpoint.
        file_shape: the shape of the block that one file holds.
        chunk_shape: the shape of the blocks with checksums inside a file.
        checksums: for each file, in row-major order, the concatenated crc32c of its chunks. None if they are not
            recorded:
            in packs, whose parts have their own checksums, and in older checkpoints.
    """

    folder: str
    file_shape: Shape
    chunk_shape: Shape
    checksums: tuple[bytes, ...] | None = None


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A block of a small array, in the pack of a process.

    Attributes:
        process: the process whose pack holds it.
        offset: its first byte in the pack.
        box: its position in the array.
        crc32: the checksum of its bytes.
    """

    process: int
    offset: int
    box: Box
    crc32: int


@final
@dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """An array of a checkpoint.

    Attributes:
        dtype: the dtype of the stored elements; for PRNG keys, the dtype of their words.
        shape: the shape of the stored array; for PRNG keys, with a trailing dim of words.
        key_impl: the implementation of PRNG keys; None for other arrays.
        is_host: whether it was a numpy array.
        sharding: its sharding when it was saved, as a string.
        storage: where its elements are stored.
        positions: for each key of its path, whether it is a position in a sequence.
    """

    dtype: np.dtype[Any]
    shape: Shape
    key_impl: str | None
    is_host: bool
    sharding: str
    storage: Chunked | tuple[Part, ...]
    positions: tuple[bool, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        keys = f" of {self.key_impl} keys" if self.key_impl else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{keys}"


@final
@dataclass(frozen=True, slots=True)
class ValueLeaf:
    """A Python number, string or None of a checkpoint, which the manifest itself holds."""

    value: Any
    positions: tuple[bool, ...]

    def __str__(self) -> str:
        return f"{type(self.value).__name__} {self.value!r}"


Leaf = ArrayLeaf | ValueLeaf


@final
@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint: its leaves, their types and where they are stored.

    Attributes:
        leaves: the leaves of the saved pytree, by name, in order.
        packs: the number of bytes in the pack of each process; 0 if it has none.
        metadata: the JSON object that the user saved with the arrays.
        versions: the versions of the packages that wrote it.
        created: when it was written, in ISO 8601.
    """

    leaves: Mapping[str, Leaf]
    packs: tuple[int, ...]
    metadata: Mapping[str, Any]
    versions: Mapping[str, str]
    created: str

    @cached_property
    def arrays(self) -> dict[str, ArrayLeaf]:
        return {name: leaf for name, leaf in self.leaves.items() if isinstance(leaf, ArrayLeaf)}

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(leaf.nbytes for leaf in self.arrays.values())

    def encode(self) -> bytes:
        """Return the bytes of the manifest's file.

        Raises:
            CheckpointError: if it would be too large to be read.
        """
        # Leaf by leaf, because the JSON of all leaves as one object would take ten times the memory.
        leaves = b",".join(_dump(name) + b":" + _dump(_encode_leaf(leaf)) for name, leaf in self.leaves.items())
        others = {
            "packs": list(self.packs),
            "total_bytes": self.nbytes,
            "metadata": self.metadata,
            "versions": dict(self.versions),
            "created": self.created,
        }
        encoded = encode_file(b'{"leaves":{' + leaves + b"}," + _dump(others)[1:])
        if len(encoded) > LARGEST_MANIFEST or has_too_many_values(encoded):
            raise CheckpointError(
                f"the manifest of {len(self.leaves):,} leaves would have {len(encoded):,} bytes, too many to be read "
                "again: join small arrays, or shard them over fewer devices"
            )
        return encoded

    @staticmethod
    def decode(data: bytes, where: str) -> "Manifest":
        """Read and validate a manifest. `where` is its file, for errors.

        Raises:
            CorruptCheckpoint: if it is truncated, changed or invalid.
            CheckpointError: if a newer version of the format wrote it.
        """
        content = Fields(_decode_file(data, where), f"{where}: content")
        packs = tuple(content.sizes("packs"))
        leaves = {
            name: _decode_leaf(name, Fields(value, f"{where}: leaf {name!r}"), packs)
            for name, value in content.mapping("leaves").items()
        }
        manifest = Manifest(
            leaves, packs, content.mapping("metadata"), content.texts("versions"), content.text("created")
        )
        manifest._check_folders(where)
        if manifest.nbytes != content.size("total_bytes"):
            raise CorruptCheckpoint(
                f"{where}: the arrays have {manifest.nbytes:,} bytes, but total_bytes is "
                f"{content.size('total_bytes'):,}"
            )
        return manifest

    def check(self, where: str) -> None:
        """Raise CorruptCheckpoint if `decode` would not return the same leaves. It works leaf by leaf, to save memory.

        `where` is the manifest's file, for errors.
        """
        for name, leaf in self.leaves.items():
            encoded = _dump(_encode_leaf(leaf))
            fields = Fields(json.loads(encoded), f"{where}: leaf {name!r}")
            if _dump(_encode_leaf(_decode_leaf(name, fields, self.packs))) != encoded:
                raise CorruptCheckpoint(f"{where}: leaf {name!r} cannot be read back")
        self._check_folders(where)

    def _check_folders(self, where: str) -> None:
        folders = [leaf.storage.folder for leaf in self.arrays.values() if isinstance(leaf.storage, Chunked)]
        if len(set(folders)) < len(folders):
            raise CorruptCheckpoint(f"{where}: two arrays have the same folder")


def file_grid(shape: Shape, file_shape: Shape) -> Shape:
    """Return the number of files along each dim of an array."""
    return tuple(-(-size // block) for size, block in zip(shape, file_shape, strict=True))


def chunk_grid(shape: Shape, file_shape: Shape, chunk_shape: Shape, position: Shape) -> Shape:
    """Return the number of chunks along each dim of the file at `position` in the grid of files.

    Chunks outside the array are not stored.
    """
    return tuple(
        -(-min(block, size - index * block) // chunk)
        for size, block, chunk, index in zip(shape, file_shape, chunk_shape, position, strict=True)
    )


def check_value(name: str, value: object) -> Any:
    """Return a leaf that the manifest can hold.

    Raises:
        CheckpointError: if it is neither a number nor a string nor None. `name` is the name of the leaf.
    """
    if type(value) not in _SCALARS:
        raise CheckpointError(
            f"the leaf {name!r} is a {type(value).__name__}, which a checkpoint cannot hold: it holds arrays, PRNG "
            "keys, numbers, strings and None. Convert it, or leave it out of the tree."
        )
    return value


def check_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata after a round trip through JSON.

    Raises:
        CheckpointError: if it is not JSON.
    """
    if not isinstance(metadata, Mapping):
        raise CheckpointError(f"metadata must be a dict with string keys, not {metadata!r}")
    try:
        restored = json.loads(_dump(dict(metadata)))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"metadata must be JSON (dicts with string keys, lists, numbers, strings): {error}"
        ) from None
    return dict(restored)


# --- encoding ---------------------------------------------------------------------------------------------------------


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def encode_file(content: bytes) -> bytes:
    """Return the bytes of a manifest's file with this content, which is a JSON object."""
    return _header(FORMAT_VERSION, hashlib.sha256(content).hexdigest()) + content + b"}"


def _header(version: int, digest: str) -> bytes:
    """Return the bytes of a manifest's file before its content."""
    return _dump({"format": FORMAT, "format_version": version, "sha256": digest})[:-1] + b',"content":'


def _encode_leaf(leaf: Leaf) -> dict[str, Any]:
    positions = [index for index, is_position in enumerate(leaf.positions) if is_position]
    path = {"keys": len(leaf.positions), "positions": positions}
    if isinstance(leaf, ValueLeaf):
        return {**path, "value": _encode_value(leaf.value)}
    if isinstance(leaf.storage, Chunked):
        storage: dict[str, Any] = {
            "folder": leaf.storage.folder,
            "file_shape": list(leaf.storage.file_shape),
            "chunk_shape": list(leaf.storage.chunk_shape),
        }
        if leaf.storage.checksums is not None:
            storage["checksums"] = [checksums.hex() for checksums in leaf.storage.checksums]
    else:
        storage = {
            "parts": [[part.process, part.offset, list(map(list, part.box)), part.crc32] for part in leaf.storage]
        }
    return {
        **path,
        "dtype": str(leaf.dtype),
        "shape": list(leaf.shape),
        "key_impl": leaf.key_impl,
        "is_host": leaf.is_host,
        "sharding": leaf.sharding,
        **storage,
    }


def _encode_value(value: object) -> Any:
    """Return a JSON value. Floats are hexadecimal, so that they are exact and may be infinite or NaN."""
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    return value


# --- decoding ---------------------------------------------------------------------------------------------------------


def _decode_file(data: bytes, where: str) -> dict[str, Any]:
    """Return the content of a manifest's file, after verifying its checksum."""
    if len(data) > LARGEST_MANIFEST:
        raise CorruptCheckpoint(f"{where} has {len(data):,} bytes, more than {LARGEST_MANIFEST:,}")
    file = Fields(parse_json(data, where), where)
    if file.text("format") != FORMAT:
        raise CorruptCheckpoint(f"{where} is not the manifest of a {FORMAT}")
    if (version := file.size("format_version")) > FORMAT_VERSION:
        raise CheckpointError(
            f"{where} has format_version {version}, and this version of shardwise reads up to {FORMAT_VERSION}: "
            "upgrade shardwise"
        )
    content = file.mapping("content")
    digest = file.text("sha256")
    header = _header(version, digest)
    is_same = data.startswith(header) and data.endswith(b"}")
    if not is_same or hashlib.sha256(memoryview(data)[len(header) : -1]).hexdigest() != digest:
        raise CorruptCheckpoint(f"{where} does not match its checksum: it was changed after it was written")
    return content


def _decode_leaf(name: str, fields: Fields, packs: tuple[int, ...]) -> Leaf:
    keys = split_name(name) if name or fields.size("keys") else []
    if fields.size("keys") != len(keys):
        raise fields.error("keys", f"is not the number of keys in {name!r}")
    positions = [False] * len(keys)
    for number in fields.sizes("positions"):
        if number >= len(positions) or not is_position(keys[number]):
            raise fields.error("positions", "has a number that is not that of a position")
        positions[number] = True
    if "value" in fields:
        return ValueLeaf(_decode_value(fields), tuple(positions))
    dtype = DTYPES.get(fields.text("dtype"))
    if dtype is None:
        raise fields.error("dtype", "is unknown")
    key_impl = fields.optional_text("key_impl")
    if key_impl is not None and key_impl not in _KEY_IMPLS:
        raise fields.error("key_impl", f"is none of {', '.join(_KEY_IMPLS)}")
    shape = tuple(fields.sizes("shape"))
    if len(shape) > _LARGEST_RANK:
        raise fields.error("shape", f"has more than {_LARGEST_RANK} dims")
    storage: Chunked | tuple[Part, ...]
    if "parts" in fields:
        storage = tuple(_decode_part(fields, part, shape, dtype.itemsize, packs) for part in fields.list("parts"))
        if sum(box_size(part.box) for part in storage) != math.prod(shape):
            raise fields.error("parts", "do not hold every element once")
    else:
        storage = Chunked(fields.text("folder"), tuple(fields.sizes("file_shape")), tuple(fields.sizes("chunk_shape")))
        if not (storage.folder.startswith("arrays/") and is_position(storage.folder.removeprefix("arrays/"))):
            raise fields.error("folder", "must be `arrays/<number>`")
        ranks = {len(shape), len(storage.file_shape), len(storage.chunk_shape)}
        if len(ranks) > 1 or 0 in storage.chunk_shape + storage.file_shape:
            raise fields.error("file_shape", "and chunk_shape do not fit the shape")
        if any(file % chunk for file, chunk in zip(storage.file_shape, storage.chunk_shape, strict=True)):
            raise fields.error("file_shape", "is not a multiple of chunk_shape")
        if math.prod(storage.file_shape) // math.prod(storage.chunk_shape) > _MOST_CHUNKS:
            raise fields.error("chunk_shape", f"is that of more than {_MOST_CHUNKS:,} chunks in a file")
        if "checksums" in fields:
            storage = replace(storage, checksums=_decode_checksums(fields, shape, storage))
    return ArrayLeaf(dtype, shape, key_impl, fields.flag("is_host"), fields.text("sharding"), storage, tuple(positions))


def _decode_checksums(fields: Fields, shape: Shape, blocks: Chunked) -> tuple[bytes, ...]:
    grid = file_grid(shape, blocks.file_shape)
    texts = fields.list("checksums")
    if len(texts) != math.prod(grid):
        raise fields.error("checksums", f"must have an entry for each of the {math.prod(grid):,} files")
    positions = itertools.product(*map(range, grid))
    checksums = []
    for position, text in zip(positions, texts, strict=True):
        count = math.prod(chunk_grid(shape, blocks.file_shape, blocks.chunk_shape, position))
        try:
            decoded = bytes.fromhex(text)
        except (TypeError, ValueError):
            raise fields.error("checksums", "has an entry that is not hexadecimal") from None
        if len(decoded) != count * CHECKSUM_BYTES:
            raise fields.error("checksums", "has an entry without a checksum for each chunk of its file")
        checksums.append(decoded)
    return tuple(checksums)


def _decode_part(fields: Fields, part: object, shape: Shape, itemsize: int, packs: tuple[int, ...]) -> Part:
    if not isinstance(part, list) or len(part) != 4 or not isinstance(part[2], list):
        raise fields.error("parts", "has a part that is not a list of four entries")
    spans = {str(dim): span for dim, span in enumerate(part[2])}
    entry = Fields({"process": part[0], "offset": part[1], "crc32": part[3], **spans}, fields.where)
    box = tuple(_span(entry, dim) for dim in spans)
    if len(box) != len(shape) or any(high > size for (_, high), size in zip(box, shape, strict=True)):
        raise fields.error("parts", f"has a part outside of the array's shape {shape}")
    decoded = Part(entry.size("process"), entry.size("offset"), box, entry.size("crc32"))
    if decoded.process >= len(packs) or decoded.offset + box_size(box) * itemsize > packs[decoded.process]:
        raise fields.error("parts", "has a part outside of its pack")
    return decoded


def _span(entry: Fields, name: str) -> Span:
    match entry.sizes(name):
        case [low, high] if low <= high:
            return low, high
    raise entry.error(name, "is not a first index and a last index plus one")


def _decode_value(fields: Fields) -> Any:
    value = fields["value"]
    if not isinstance(value, (dict, list)):
        return value
    try:
        match value:
            case {"float": str(text)}:
                return float.fromhex(text)
            case {"complex": [str(real), str(imaginary)]}:
                return complex(float.fromhex(real), float.fromhex(imaginary))
    except ValueError:
        pass
    raise fields.error("value", "is neither a number nor a string nor null")
