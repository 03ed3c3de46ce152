"""Parts of packed arrays, as processes tell each other which ones they have written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.checkpoints.manifest import ArrayLeaf, Chunked, Leaf, Part
from shardwise.checkpoints.snapshot import Snapshot


def parts_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the bytes of this process's pack, and the parts in it by the number of their leaf, as JSON."""
    parts = {
        str(number): [(part.process, part.offset, part.box, part.crc32) for part in leaf.storage]
        for number, leaf in enumerate(snapshot.leaves.values())
        if isinstance(leaf, ArrayLeaf) and not isinstance(leaf.storage, Chunked) and leaf.storage
    }
    return {"pack_bytes": len(snapshot.pack), "parts": parts}


def merge_parts(leaves: Mapping[str, Leaf], messages: Sequence[Mapping[str, Any]]) -> dict[str, Leaf]:
    """Return the leaves of a process with its own parts and those in the messages of other processes."""
    merged = dict(leaves)
    names = list(leaves)
    for message in messages:
        for number, parts in message["parts"].items():
            leaf = merged[names[int(number)]]
            assert isinstance(leaf, ArrayLeaf) and not isinstance(leaf.storage, Chunked)
            received = (
                Part(process, offset, tuple((low, high) for low, high in box), crc32)
                for process, offset, box, crc32 in parts
            )
            merged[names[int(number)]] = replace(leaf, storage=(*leaf.storage, *received))
    return merged
