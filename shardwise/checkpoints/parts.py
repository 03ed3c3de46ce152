"""Parts of packed arrays, as processes tell each other which ones they have written."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

from shardwise.checkpoints.manifest import ArrayLeaf, Chunked, Leaf, Part
from shardwise.checkpoints.snapshot import Snapshot


def parts_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the bytes of this process's pack, and the parts in it by the number of their leaf, as JSON."""
    parts = {
        str(number): [astuple(part) for part in leaf.storage]
        for number, leaf in enumerate(snapshot.leaves.values())
        if isinstance(leaf, ArrayLeaf) and not isinstance(leaf.storage, Chunked) and leaf.storage
    }
    return {"pack_bytes": len(snapshot.pack), "parts": parts}


def merge_parts(leaves: Mapping[str, Leaf], messages: Sequence[Mapping[str, Any]]) -> dict[str, Leaf]:
    """Return all leaves with the parts of all processes."""
    merged: dict[str, Leaf] = {}
    for number, (name, leaf) in enumerate(leaves.items()):
        if isinstance(leaf, ArrayLeaf) and not isinstance(leaf.storage, Chunked):
            found = [
                Part(process, offset, tuple((low, high) for low, high in box), crc32)
                for message in messages
                for process, offset, box, crc32 in message["parts"].get(str(number), ())
            ]
            merged[name] = replace(leaf, storage=tuple(found))
        else:
            merged[name] = leaf
    return merged
