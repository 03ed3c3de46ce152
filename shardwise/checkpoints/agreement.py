"""Agreement: all processes that save a checkpoint must have the same tree.

A global array is the same in all processes. Python values, numpy arrays and arrays on a process's own device may
differ, and only one process writes them.
"""

import hashlib
import zlib
from itertools import zip_longest

from shardwise.checkpoints.manifest import ArrayLeaf
from shardwise.checkpoints.snapshot import Snapshot
from shardwise.errors import CheckpointError
from shardwise.runtime.group import Group


def check_agreement(group: Group, snapshot: Snapshot) -> None:
    """Raise an error in all processes of a group if their trees differ.

    Raises:
        CheckpointError: if they differ; the message has the first leaf that differs.
    """
    if group.count == 1:
        return
    lines = _describe(snapshot)
    digests = group.exchange(hashlib.sha256("\n".join(lines).encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    other = next(index for index, digest in enumerate(digests) if digest != digests[0])
    checksums = group.exchange([zlib.crc32(line.encode()) for line in lines])
    pairs = enumerate(zip_longest(checksums[0], checksums[other]))
    number = next((number for number, (one, two) in pairs if one != two), 0)
    texts = group.exchange(lines[number] if number < len(lines) else "no further leaf")
    raise CheckpointError(
        f"{group.name}: the trees of the processes differ. Process {group.processes[0]} has {texts[0]}; process "
        f"{group.processes[other]} has {texts[other]}. Save the same tree in every process; put data that differs on a "
        "mesh of all processes, with `make_array_from_process_local_data`."
    )


def _describe(snapshot: Snapshot) -> list[str]:
    """Return a line for each leaf."""
    lines = []
    for name, leaf in snapshot.leaves.items():
        line = f"the leaf {name!r}, {leaf}"
        if name in snapshot.checksums:
            line += f" of each process, with the checksum {snapshot.checksums[name]:08x}"
        elif isinstance(leaf, ArrayLeaf):
            line += f" in {leaf.sharding}"
        lines.append(line)
    return lines
