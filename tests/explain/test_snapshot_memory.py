"""Memory of snapshots, counted by hand. `multi_process/peer_snapshot_cases.py` compares it with real processes."""

import pytest

import shardwise as sw
from shardwise import P

KIB = 1024


def memory(mesh, spec, devices_per_node, processes_per_node=1):
    """Return the memory of snapshots of an array of 1 KiB, as own bytes and copies."""
    mesh = sw.sharding.AbstractMesh(tuple(mesh.values()), tuple(mesh))
    x = sw.ShapeDtypeStruct((16, 16), sw.numpy.float32, sharding=sw.NamedSharding(mesh, spec))
    failures = sw.Failures(days=1, trials=1, devices_per_node=devices_per_node, processes_per_node=processes_per_node)
    found = sw.simulate(lambda x: x + 1, hardware="h100", failures=failures)(x).goodput.snapshot_memory
    assert found.held == found.own + found.copies and found.peak == 2 * found.held
    return found.own, found.copies


@pytest.mark.parametrize(
    ("spec", "devices_per_node", "processes_per_node", "own", "copies"),
    [
        (P(("data", "model")), 4, 1, KIB // 4, KIB // 4),  # each node has a quarter, and that of another one
        (P(("data", "model")), 4, 4, KIB // 16, KIB // 16),
        (P(), 4, 1, KIB, 0),  # every node has it
        (P(), 4, 2, KIB, 0),
        (P("model"), 4, 1, KIB, 0),  # all nodes have all four blocks
        (P("data"), 4, 1, KIB // 4, KIB // 4),  # a block per node
        (P("data"), 4, 2, KIB // 4, KIB // 4),  # both processes have it, and one sends it
        (P("data"), 2, 1, KIB // 4, 0),  # two nodes have it
        (P("data"), 16, 1, KIB, 0),  # no other process
        (P("data"), 16, 4, KIB // 4, KIB // 4),  # one node: the partner is another process
        (P(None, "data"), 8, 2, KIB // 4, KIB // 4),
        (P(("data", "model")), 6, 1, 6 * KIB // 16, 6 * KIB // 16),  # the last node has four devices
    ],
)
def test_memory_of_one_array(spec, devices_per_node, processes_per_node, own, copies):
    assert memory({"data": 4, "model": 4}, spec, devices_per_node, processes_per_node) == (own, copies)


def test_processes_divide_the_devices_of_a_node():
    with pytest.raises(ValueError, match=r"processes_per_node \(3\) must divide devices_per_node \(8\)"):
        sw.Failures(processes_per_node=3)
