"""SnapshotMemory: the host memory of snapshots in peers' memory, from the layouts of the arguments of a step."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.report.report import EndRow
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.processes.partners import partners


@final
@dataclass(frozen=True)
class SnapshotMemory:
    """The host memory of the snapshots in the process that has most of it.

    Attributes:
        own: the bytes of the shards of its own devices. It keeps a block once that several of them have.
        copies: the bytes of the blocks of other processes, whose partner it is.
    """

    own: int
    copies: int

    @property
    def held(self) -> int:
        """The bytes of one snapshot."""
        return self.own + self.copies

    @property
    def peak(self) -> int:
        """The bytes while a snapshot is copied: the last one is kept until the new one is complete."""
        return 2 * self.held


def snapshot_memory(
    arrays: Iterable[EndRow], devices: int, devices_per_node: int, processes_per_node: int
) -> SnapshotMemory:
    """Return the host memory of snapshots of some arrays, as `checkpoints.PeerSnapshots` takes them.

    Args:
        arrays: the arrays, with their layouts.
        devices: the number of devices.
        devices_per_node: the devices of a node, which are consecutive.
        processes_per_node: the processes of a node, with as many consecutive devices each.
    """
    node_of = np.arange(devices) // devices_per_node
    process_of = np.arange(devices) // (devices_per_node // processes_per_node)
    hosts = {process: str(node) for process, node in zip(process_of.tolist(), node_of.tolist(), strict=True)}
    domain_of = node_of if node_of[-1] else process_of  # a partner is in another one
    nbytes: Counter[tuple[AbstractMesh, frozenset[str]]] = Counter()
    for array in arrays:
        nbytes[array.mesh, frozenset(array.layout.axes)] += array.bytes
    own, sent, copies = np.zeros((3, len(hosts)), np.int64)
    for (mesh, axes), count in nbytes.items():
        blocks = _block_indices(mesh, axes)
        held, processes = np.unique([blocks, process_of], axis=1)
        np.add.at(own, processes, count)
        _, domains = np.unique(np.unique([blocks, domain_of], axis=1)[0], return_counts=True)
        _, first = np.unique(held, return_index=True)  # the holder with the lowest rank
        np.add.at(sent, processes[first[domains == 1]], count)
    for process, partner in partners(hosts).items():
        copies[partner] += sent[process]
    most = int(np.argmax(own + copies))
    return SnapshotMemory(int(own[most]), int(copies[most]))


def _block_indices(mesh: AbstractMesh, axes: frozenset[str]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return for each device the index of its block of an array that is sharded along some axes."""
    indices = np.zeros(mesh.axis_sizes, np.int64)
    for dim, (name, size) in enumerate(zip(mesh.axis_names, mesh.axis_sizes, strict=True)):
        if name in axes:
            indices = indices * size + np.arange(size).reshape(-1, *(1,) * (len(mesh.axis_sizes) - dim - 1))
    return indices.ravel()
