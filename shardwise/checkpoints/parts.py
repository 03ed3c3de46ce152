"""Messages in which processes report the parts of packed arrays and the files that they have written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.checkpoints.manifest import ArrayLeaf, Chunked, Leaf, Part
from shardwise.checkpoints.snapshot import Snapshot

# For each large array, by name, the checksums of the files that this process has written, by file index.
FileChecksums = Mapping[str, Mapping[int, bytes]]


def parts_of(snapshot: Snapshot, checksums: FileChecksums) -> dict[str, Any]:
    """Return, as JSON, the bytes of this process's pack, and its parts and files by leaf index."""
    numbers = {name: number for number, name in enumerate(snapshot.leaves)}
    parts = {
        str(number): [(part.process, part.offset, part.box, part.crc32) for part in leaf.storage]
        for number, leaf in enumerate(snapshot.leaves.values())
        if isinstance(leaf, ArrayLeaf) and not isinstance(leaf.storage, Chunked) and leaf.storage
    }
    files = {
        str(numbers[name]): {str(index): content.hex() for index, content in written.items()}
        for name, written in checksums.items()
    }
    return {"pack_bytes": len(snapshot.pack), "parts": parts, "files": files}


def merge_parts(leaves: Mapping[str, Leaf], messages: Sequence[Mapping[str, Any]]) -> dict[str, Leaf]:
    """Return the leaves of a process with its own parts and the parts in the messages of other processes."""
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


def merge_files(leaves: Mapping[str, Leaf], messages: Sequence[Mapping[str, Any]]) -> dict[str, Leaf]:
    """Return the leaves with the checksums of the files that all processes have written."""
    merged = dict(leaves)
    names = list(leaves)
    written: dict[str, dict[int, bytes]] = {}
    for message in messages:
        for number, files in message["files"].items():
            checksums = {int(index): bytes.fromhex(text) for index, text in files.items()}
            written.setdefault(names[int(number)], {}).update(checksums)
    for name, files in written.items():
        leaf = merged[name]
        assert isinstance(leaf, ArrayLeaf) and isinstance(leaf.storage, Chunked)
        ordered = tuple(content for _, content in sorted(files.items()))
        merged[name] = replace(leaf, storage=replace(leaf.storage, checksums=ordered))
    return merged
