"""Blocks of a snapshot in the memory of processes: who holds them, who sends them to whom, and their bytes."""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from shardwise.api.creation import devices_by_box
from shardwise.checkpoints.manifest import DTYPES, check_value
from shardwise.checkpoints.snapshot import check_array, named_leaves
from shardwise.compiler.shardings.mesh import ranks_of
from shardwise.errors import CheckpointError
from shardwise.runtime.array import ArrayImpl, await_elements
from shardwise.runtime.box import Box, box_index, box_of, box_shape, relative, whole

_LENGTH = struct.Struct("<Q")  # of the table at the start of the bytes
BlockKey = tuple[str, Box]  # the name of a leaf, and a box of it
HostArray = np.ndarray[Any, Any]


@final
@dataclass(frozen=True)
class HeldSnapshot:
    """The part of a pytree's snapshot that this process holds.

    Attributes:
        step: the step.
        types: the shape and the dtype of each array, by name; those of its words for an array of keys.
        holders: the ranks that hold each block of each array on devices.
        blocks: the blocks that this process holds: its own, and those of the processes for which it is the partner.
        values: the leaves of which each process has its own: Python values, numpy arrays, arrays on its own devices.
        values_of: the values of this process and of the processes for which it is the partner, packed, by rank:
            its own first.
        value_digests: the digests of the packed values of all processes, by rank, when the snapshot is complete.
    """

    step: int
    types: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    holders: Mapping[BlockKey, tuple[int, ...]]
    blocks: dict[BlockKey, HostArray]
    values: Mapping[str, Any] = field(default_factory=dict)
    values_of: dict[int, bytes] = field(default_factory=dict)
    value_digests: dict[int, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks.values())

    def held_digests(self) -> dict[int, str]:
        """Return the digests of the packed values that this process holds, by rank."""
        return {rank: hashlib.sha256(packed).hexdigest() for rank, packed in self.values_of.items()}

    def description(self) -> bytes:
        """Return the types and the holders of the blocks, for a process that has no part of the snapshot."""
        types = [[name, shape, str(dtype)] for name, (shape, dtype) in self.types.items()]
        return json.dumps([types, [[*key, ranks] for key, ranks in self.holders.items()]]).encode()

    def missing(self, held: Iterable[Sequence[BlockKey]]) -> list[BlockKey]:
        """Return the blocks that none of some processes holds; `held` has the keys of the blocks of each."""
        return sorted(self.holders.keys() - {key for keys in held for key in keys})


def described_snapshot(step: int, description: bytes, rank: int, values: bytes) -> HeldSnapshot:
    """Return a snapshot without blocks.

    Args:
        step: the step.
        description: what `HeldSnapshot.description` has returned in another process.
        rank: the rank of this process.
        values: the packed values of this process.
    """
    types, holders = json.loads(description)
    return HeldSnapshot(
        step,
        {name: (tuple(shape), DTYPES[dtype]) for name, shape, dtype in types},
        {block_key(name, box): tuple(ranks) for name, box, ranks in holders},
        {},
        unpack_values(values),
        {rank: values},
    )


def block_key(name: str, box: Iterable[Iterable[int]]) -> BlockKey:
    """Return the key of a block from JSON."""
    return name, tuple((low, high) for low, high in box)


def take_blocks(step: int, tree: object, rank: int) -> HeldSnapshot:
    """Return the blocks of a pytree that are on the devices of this process, which has this rank, in host memory.

    On CPU devices, the blocks share the memory of the arrays, which XLA neither reuses nor frees meanwhile, even if
    they are donated.

    Raises:
        CheckpointError: if an array was donated or deleted, or is unreduced, or if a leaf cannot be sent.
    """
    types: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    holders: dict[BlockKey, tuple[int, ...]] = {}
    blocks: dict[BlockKey, HostArray] = {}
    values: dict[str, Any] = {}
    arrays: dict[str, ArrayImpl] = {}
    for name, (_, leaf) in named_leaves(tree).items():
        if isinstance(leaf, ArrayImpl) and len(ranks_of(leaf.sharding.devices)) > 1:
            check_array(name, leaf)
            arrays[name] = leaf.words
        elif isinstance(leaf, ArrayImpl):
            values[name] = np.array(leaf.words)
        else:
            is_host_value = isinstance(leaf, np.ndarray | np.generic)
            values[name] = leaf.copy() if is_host_value else check_value(name, leaf)
    await_elements(list(arrays.values()))
    for array in arrays.values():  # copies from devices run concurrently
        for index in range(len(array.sharding.local_devices)):
            array.addressable_data(index).copy_to_host_async()
    for name, array in arrays.items():
        types[name] = array.shape, np.dtype(array.dtype)
        ranks: dict[Box, set[int]] = {}
        for device, bounds in zip(array.sharding.devices, array.sharding.shard_indices(array.shape), strict=True):
            ranks.setdefault(box_of(bounds), set()).add(device.process_index)
        holders |= {(name, box): tuple(sorted(on)) for box, on in ranks.items()}
        data = {shard.device: shard.data for shard in array.addressable_shards}
        for box, devices in devices_by_box(array.shape, array.sharding).items():
            blocks[name, box] = np.asarray(data[devices[0]])
    return HeldSnapshot(step, types, holders, blocks, values, {rank: pack_values(values)})


def blocks_to_send(snapshot: HeldSnapshot, rank: int, hosts: Mapping[int, str]) -> list[BlockKey]:
    """Return the blocks that a process sends to its partner: those that no process on another host holds.

    If all processes are on one host, these are the blocks that no other process holds. If several processes hold such a
    block, the one with the lowest rank sends it.
    """
    has_hosts = len(set(hosts.values())) > 1
    selected = []
    for key, ranks in snapshot.holders.items():
        domains = {hosts[each] if has_hosts else str(each) for each in ranks}
        if len(domains) == 1 and rank == ranks[0]:
            selected.append(key)
    return sorted(selected)


def pack(blocks: Sequence[tuple[BlockKey, HostArray]]) -> bytes:
    """Return blocks as bytes."""
    table = [[name, box, str(data.dtype)] for (name, box), data in blocks]
    head = json.dumps(table).encode()
    parts: list[bytes | memoryview] = [_LENGTH.pack(len(head)), head]
    parts += [np.ascontiguousarray(data).reshape(-1).view(np.uint8).data for _, data in blocks]
    return b"".join(parts)


def unpack(content: bytes) -> dict[BlockKey, HostArray]:
    """Return the blocks that `pack` has packed. They share the memory of the bytes."""
    (length,) = _LENGTH.unpack_from(content)
    start = _LENGTH.size + length
    blocks: dict[BlockKey, HostArray] = {}
    for name, spans, dtype_name in json.loads(content[_LENGTH.size : start]):
        box = tuple((low, high) for low, high in spans)
        shape, dtype = box_shape(box), DTYPES[dtype_name]
        count = int(np.prod(shape, dtype=np.int64))
        blocks[name, box] = np.frombuffer(content, dtype, count, start).reshape(shape)
        start += count * dtype.itemsize
    return blocks


def pack_values(values: Mapping[str, Any]) -> bytes:
    """Return the values of a process, by the names of their leaves, as bytes.

    Raises:
        CheckpointError: if an array has a dtype that cannot be sent.
    """
    arrays = {name: np.asarray(x) for name, x in values.items() if isinstance(x, np.ndarray | np.generic)}
    for name, array in arrays.items():
        if str(array.dtype) not in DTYPES:
            raise CheckpointError(f"the leaf {name!r} has the dtype {array.dtype}, which a snapshot cannot hold")
    encoded = {
        name: {"complex": [x.real, x.imag]} if isinstance(x, complex) else x
        for name, x in values.items()
        if name not in arrays
    }
    scalars = [name for name in arrays if isinstance(values[name], np.generic)]
    head = json.dumps([encoded, scalars]).encode()
    return _LENGTH.pack(len(head)) + head + pack([((name, whole(x.shape)), x) for name, x in arrays.items()])


def unpack_values(content: bytes) -> dict[str, Any]:
    """Return the values that `pack_values` has packed."""
    (length,) = _LENGTH.unpack_from(content)
    start = _LENGTH.size + length
    encoded, scalars = json.loads(content[_LENGTH.size : start])
    values = {name: complex(*x["complex"]) if isinstance(x, dict) else x for name, x in encoded.items()}
    for (name, _), array in unpack(content[start:]).items():
        values[name] = array[()] if name in scalars else np.array(array)
    return values


def overlapping(box: Box, keys: Iterable[BlockKey], name: str) -> list[BlockKey]:
    """Return the blocks of an array that share elements with a box."""
    return [key for key in keys if key[0] == name and intersection(box, key[1]) is not None]


def intersection(one: Box, other: Box) -> Box | None:
    """Return the box that two boxes share; None if they share no element."""
    spans = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return spans if all(low < high for low, high in spans) else None


def assemble(box: Box, blocks: Mapping[Box, HostArray], dtype: np.dtype[Any]) -> HostArray:
    """Return the elements of a box from blocks that cover it."""
    if box in blocks:
        return blocks[box]
    result = np.empty(box_shape(box), dtype)
    for other, data in blocks.items():
        if (shared := intersection(box, other)) is not None:
            result[box_index(relative(shared, box))] = data[box_index(relative(shared, other))]
    return result
