"""Snapshot: the shards that this process writes, in host memory.

Shards on CPU devices are shared instead of copied: while a host array shares the memory of a buffer, XLA neither reuses
nor frees it, even if the array is donated or deleted.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import numpy as np

from shardwise import tree_util
from shardwise.base._jaxlib import start_copy_to_host, to_numpy
from shardwise.checkpoints.blocks import LARGEST_FILE, stored_dtype
from shardwise.checkpoints.manifest import DTYPES, ArrayLeaf, Chunked, Leaf, Part, Shape, ValueLeaf, check_value
from shardwise.checkpoints.names import leaf_name, position_keys
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import CheckpointError
from shardwise.random.keys import key_impl
from shardwise.runtime.array import ArrayImpl, await_elements, without_padding
from shardwise.runtime.box import Box, block_shape, box_shape, whole
from shardwise.runtime.client import process_count

_T = TypeVar("_T")

LARGEST_PACKED = 1 << 20  # bytes; larger arrays are stored in their own folders


@final
@dataclass(frozen=True)
class Snapshot:
    """The part of a checkpoint that this process writes.

    Attributes:
        leaves: all leaves, by name. Packed leaves have only the parts of this process.
        shards: for each array in its own folder, the shards that this process writes, each with its index.
        pack: the bytes of the small arrays that this process writes.
        checksums: with several processes, the checksums of arrays of which each process has its own copy and one writes
            it.
    """

    leaves: Mapping[str, Leaf]
    shards: Mapping[str, list[tuple[Box, np.ndarray[Any, Any]]]]
    pack: bytearray
    checksums: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return len(self.pack) + sum(data.nbytes for shards in self.shards.values() for _, data in shards)


def named_leaves(tree: object) -> dict[str, tuple[tuple[bool, ...], Any]]:
    """Return the leaves of a pytree by name, each with its `position_keys`. None counts as a leaf.

    Raises:
        CheckpointError: if two leaves have the same name.
    """
    leaves, _ = tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is None)
    named: dict[str, tuple[tuple[bool, ...], Any]] = {}
    for path, leaf in leaves:
        name = leaf_name(path)
        if name in named:
            raise CheckpointError(
                f"two leaves of the tree have the name {name!r}, because their keys differ only in type, such as 1 and "
                '"1": rename one'
            )
        named[name] = tuple(position_keys(path)), leaf
    return named


def take_snapshot(tree: object, process: int, chunk_bytes: int) -> Snapshot:
    """Return the part of a pytree that the process with index `process` writes, in chunks of at most `chunk_bytes`.

    Raises:
        CheckpointError: if a leaf cannot be saved.
    """
    named = named_leaves(tree)
    arrays = {name: leaf.words for name, (_, leaf) in named.items() if isinstance(leaf, ArrayImpl)}
    for name, array in arrays.items():
        check_array(name, array)
    await_elements(list(arrays.values()))
    in_host_memory = {sharding: _is_in_host_memory(sharding) for sharding in {x.sharding for x in arrays.values()}}
    replicas = {name: array.first_replicas() for name, array in arrays.items() if not in_host_memory[array.sharding]}
    for shards_of_array in replicas.values():  # copies from devices run concurrently
        for _, buffers in shards_of_array:
            start_copy_to_host(buffers)
    has_peers = process_count() > 1
    sharding_texts: dict[int, str] = {}  # id of a sharding → its string
    leaves: dict[str, Leaf] = {}
    shards: dict[str, list[tuple[Box, np.ndarray[Any, Any]]]] = {}
    checksums: dict[str, int] = {}
    pack = bytearray()
    for index, (name, (positions, leaf)) in enumerate(named.items()):
        if not isinstance(leaf, (ArrayImpl, np.ndarray, np.generic)):
            leaves[name] = ValueLeaf(check_value(name, _checked(name, leaf)), positions)
            continue
        if isinstance(leaf, ArrayImpl):
            own = _host_shards(replicas.pop(name) if name in replicas else arrays[name].first_replicas())
            if (text := sharding_texts.get(id(leaf.sharding), "")) == "":
                text = sharding_texts[id(leaf.sharding)] = str(leaf.sharding)
        else:
            own, text = _host_shard(name, leaf), "host"
        if has_peers and _is_of_each_process(leaf):
            checksums[name] = _checksum(own)
            own = own if process == 0 else []
        impl = key_impl(leaf) if isinstance(leaf, ArrayImpl) and is_key(leaf.type.dtype) else None
        words = leaf.words if isinstance(leaf, ArrayImpl) else np.asarray(leaf)
        dtype, shape = np.dtype(words.dtype), tuple(words.shape)
        storage: Chunked | tuple[Part, ...]
        if is_packed(shape, dtype):
            storage = tuple(add_part(pack, process, box, data) for box, data in own)
        else:
            storage = blocks_of(index, _shard_shape(words), dtype, chunk_bytes)
            shards[name] = own
        leaves[name] = ArrayLeaf(dtype, shape, impl, not isinstance(leaf, ArrayImpl), text, storage, positions)
    return Snapshot(leaves, shards, pack, checksums)


def is_packed(shape: Shape, dtype: np.dtype[Any]) -> bool:
    """Return whether an array is small enough to be stored in a pack."""
    return math.prod(shape) * dtype.itemsize <= LARGEST_PACKED


def blocks_of(number: int, shard_shape: Shape, dtype: np.dtype[Any], chunk_bytes: int) -> Chunked:
    """Return the blocks of an array with shards of this shape.

    Args:
        number: the index of its folder.
        shard_shape: the shape of a shard.
        dtype: its dtype.
        chunk_bytes: the largest chunk, in bytes.
    """
    file_shape = block_shape(shard_shape, dtype.itemsize, LARGEST_FILE)
    return Chunked(f"arrays/{number}", file_shape, block_shape(file_shape, dtype.itemsize, chunk_bytes))


def _checked(name: str, leaf: _T) -> _T:
    if isinstance(leaf, Tracer):
        raise CheckpointError(f"the leaf {name!r} is {leaf!r}: save arrays outside of traced functions")
    return leaf


def check_array(name: str, array: ArrayImpl) -> None:
    """Raise a CheckpointError if an array cannot be saved."""
    if array.is_deleted():
        raise CheckpointError(f"the leaf {name!r}, {array.type}, was donated or deleted: save what replaces it")
    if array.is_unreduced:
        raise CheckpointError(
            f"the leaf {name!r}, {array.type}, is unreduced: each device holds a term of a sum. Sum the terms with "
            "`reshard` first."
        )


def _is_in_host_memory(sharding: Sharding) -> bool:
    """Return whether the shards of an array can be read without a copy from a device."""
    return all(device.platform == "cpu" for device in sharding.local_devices)


def _shard_shape(words: ArrayImpl | np.ndarray[Any, Any]) -> Shape:
    return tuple(words.sharding.shard_shape(words.shape)) if isinstance(words, ArrayImpl) else tuple(words.shape)


def _host_shard(name: str, leaf: np.ndarray[Any, Any] | np.generic) -> list[tuple[Box, np.ndarray[Any, Any]]]:
    """Return a copy of a host array as one shard."""
    host = np.asarray(leaf)
    if str(host.dtype) not in DTYPES:
        raise CheckpointError(f"the leaf {name!r} is a numpy array of {host.dtype}, which a checkpoint cannot hold")
    return [(whole(host.shape), _stored(np.array(host)))]


def _host_shards(replicas: list[tuple[Box, Any]]) -> list[tuple[Box, np.ndarray[Any, Any]]]:
    """Copy buffers of one device each to shards in host memory."""
    return [(spans, _stored(without_padding(to_numpy(buffers), box_shape(spans)))) for spans, buffers in replicas]


def _is_of_each_process(leaf: object) -> bool:
    """Return whether each of several processes has its own copy of an array: in host memory, or uncommitted."""
    return not isinstance(leaf, ArrayImpl) or (leaf.is_fully_addressable and not leaf.committed)


def _checksum(shards: list[tuple[Box, np.ndarray[Any, Any]]]) -> int:
    checksum = 0
    for _, data in shards:
        checksum = zlib.crc32(data.reshape(-1).view(np.uint8).data, checksum)
    return checksum


def _stored(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return contiguous elements in the dtype in which they are stored."""
    contiguous = data if data.flags.c_contiguous else np.ascontiguousarray(data).reshape(data.shape)
    return contiguous.view(stored_dtype(data.dtype))


def add_part(pack: bytearray, process: int, box: Box, data: np.ndarray[Any, Any]) -> Part:
    """Append a block to the pack of a process, and return its position."""
    content = data.tobytes()
    part = Part(process, len(pack), box, zlib.crc32(content))
    pack += content
    return part
