"""Traffic of collectives against messages that are counted one by one."""

import numpy as np
import pytest

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather, AllReduce, Collective, PositionOp
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import (
    Algorithm,
    all_gather,
    all_reduce,
    all_to_all,
    in_one_launch,
    one_after_another,
    one_hop,
    reduce_scatter,
)

COUNTS = (1, 2, 3, 4, 7, 8, 64)


def ring_messages(count):
    """Return the blocks that device 0 sends while every block travels around a ring, one message after the other."""
    holds, messages = {0}, []
    for step in range(count - 1):
        messages.append((0 - step) % count)
        holds.add((0 - step - 1) % count)
    assert holds == set(range(count))
    return messages


@pytest.mark.parametrize("count", COUNTS)
def test_rings_send_one_block_per_hop(count):
    messages, block = ring_messages(count), 24.0
    gathered, scattered = all_gather(block, count), reduce_scatter(block * count, count)
    assert gathered == scattered and gathered[0] == Algorithm(block * len(messages), hops=len(messages))
    reduced = all_reduce(block * count, count)
    assert reduced[0] == Algorithm(2 * block * len(messages), 2 * len(messages))  # a reduce-scatter, then an all-gather


@pytest.mark.parametrize("count", COUNTS)
def test_a_tree_has_the_hops_of_its_depth_up_and_down(count):
    depth = int(np.ceil(np.log2(count))) if count > 1 else 0
    assert all_reduce(1e3, count)[1].tree_levels == 2 * depth
    assert all_gather(1e3, count)[1] == Algorithm(1e3 * (count - 1), aggregated_levels=depth)


@pytest.mark.parametrize("count", COUNTS)
def test_an_all_to_all_keeps_one_block(count):
    (algorithm,) = all_to_all(8.0 * count, count)
    assert algorithm.bytes_sent == pytest.approx(8.0 * (count - 1)) and algorithm.hops == count - 1


def test_messages_at_the_same_time_are_one_hop_and_none_are_none():
    assert one_hop(12.0) == (Algorithm(12.0, 1),)
    assert one_hop(0.0) == ()


def test_collectives_in_one_launch_add_the_bytes_of_each_algorithm_and_share_its_hops():
    ring, tree = all_reduce(8.0, 4)
    assert in_one_launch(all_gather(8.0, 4), all_gather(2.0, 4)) == all_gather(10.0, 4)
    together = in_one_launch(all_reduce(8.0, 4), all_reduce(8.0, 4))
    assert together == tuple(each._replace(bytes_sent=2 * each.bytes_sent) for each in (ring, tree))
    assert in_one_launch(all_gather(8.0, 4)) == all_gather(8.0, 4)


def test_collectives_one_after_another_add_bytes_and_hops_of_every_choice_of_algorithms():
    gather, (ring, tree) = all_gather(8.0, 4), all_reduce(8.0, 4)
    chosen = one_after_another(gather, (ring, tree), one_hop(5.0))
    assert chosen[0] == Algorithm(24.0 + ring.bytes_sent + 5.0, hops=3 + ring.hops + 1)
    assert chosen[1] == Algorithm(24.0 + tree.bytes_sent + 5.0, hops=3 + 1, tree_levels=tree.tree_levels)
    assert chosen[2] == Algorithm(24.0 + ring.bytes_sent + 5.0, hops=ring.hops + 1, aggregated_levels=2)
    assert len(chosen) == 4
    assert one_after_another(one_hop(0.0), gather) == gather
    assert one_after_another() == one_after_another(one_hop(0.0)) == ()


def test_groups_communicate_among_themselves():
    mesh, x = AbstractMesh((8,), ("x",)), ArrayType((4,), np.float32)
    halves = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert AllReduce(("x",), SUM, halves).traffic(x, mesh) == all_reduce(x.nbytes, 4)
    assert AllGather(0, ("x",), 4, halves).traffic(x, mesh) == all_gather(x.nbytes, 4)


def test_every_collective_has_traffic_and_axes():
    """A forgotten rule is an error when it is asked for, and no class of collectives lacks it."""

    def subclasses(cls):
        return [cls, *(c for sub in cls.__subclasses__() for c in subclasses(sub))]

    concrete = [cls for cls in subclasses(Collective) if "name" in vars(cls)]
    assert len(concrete) > 12
    for cls in concrete:
        assert cls.traffic is not Collective.traffic, cls
        if not issubclass(cls, PositionOp):
            assert cls.traffic is not PositionOp.traffic, cls
        names = {field for base in cls.__mro__ for field in getattr(base, "__annotations__", {})}
        assert "axes" in names or "axes" in dir(cls) or "communicates_along" in vars(cls), cls
