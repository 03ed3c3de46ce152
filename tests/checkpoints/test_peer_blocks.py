"""Blocks of snapshots: which blocks partners get, and their bytes."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise.checkpoints.peer_blocks import (
    HeldSnapshot,
    assemble,
    blocks_to_send,
    intersection,
    overlapping,
    pack,
    take_blocks,
    unpack,
)
from shardwise.errors import CheckpointError

TOP, BOTTOM, WHOLE = ((0, 2), (0, 3)), ((2, 4), (0, 3)), ((0, 4), (0, 3))


@pytest.mark.parametrize(
    ("hosts", "sent"),
    [
        ("aaaa", {0: [("x", TOP)], 1: [], 2: [], 3: []}),
        ("abab", {0: [("x", TOP)], 1: [], 2: [], 3: []}),
        ("aabb", {0: [("x", TOP), ("y", WHOLE)], 1: [], 2: [], 3: []}),
    ],
)
def test_blocks_that_another_host_holds_are_not_sent(hosts, sent):
    holders = {("x", TOP): (0,), ("x", BOTTOM): (1, 2), ("y", WHOLE): (0, 1), ("z", WHOLE): (0, 1, 2, 3)}
    snapshot = HeldSnapshot(1, {}, holders, {})
    by_rank = dict(enumerate(hosts))
    assert {rank: blocks_to_send(snapshot, rank, by_rank) for rank in by_rank} == sent


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.int4])
def test_packed_blocks_are_equal(dtype):
    rng = np.random.default_rng(0)
    blocks = {("x", TOP): rng.integers(0, 2, (2, 3)).astype(dtype), ("s", ()): np.array(1, dtype)}
    blocks["empty", ((0, 0),)] = np.empty(0, dtype)
    read = unpack(pack(list(blocks.items())))
    assert read.keys() == blocks.keys()
    for key, data in blocks.items():
        assert read[key].dtype == dtype
        np.testing.assert_array_equal(read[key], data)


def test_boxes_are_assembled_from_blocks():
    x = np.arange(12.0).reshape(4, 3)
    blocks = {TOP: x[:2], BOTTOM: x[2:]}
    np.testing.assert_array_equal(assemble(((1, 3), (1, 3)), blocks, x.dtype), x[1:3, 1:3])
    assert assemble(TOP, blocks, x.dtype) is blocks[TOP]
    assert overlapping(((1, 2), (0, 3)), [("x", TOP), ("x", BOTTOM), ("y", TOP)], "x") == [("x", TOP)]
    assert intersection(TOP, BOTTOM) is None
    assert intersection((), ()) == ()


def test_missing_blocks_are_named():
    snapshot = HeldSnapshot(1, {}, {("x", TOP): (0,), ("x", BOTTOM): (1,)}, {})
    assert snapshot.missing([[("x", TOP)], [("x", BOTTOM)]]) == []
    assert snapshot.missing([[("x", TOP)], []]) == [("x", BOTTOM)]


def test_leaves_of_this_process_are_copied():
    host = np.arange(3)
    snapshot = take_blocks(3, {"host": host, "here": sw.numpy.ones(2), "number": 7, "none": None}, 0)
    host[0] = 9
    assert snapshot.blocks == {} and snapshot.nbytes == 0
    assert snapshot.values["host"].tolist() == [0, 1, 2] and snapshot.values["here"].tolist() == [1, 1]
    assert snapshot.values["number"] == 7 and snapshot.values["none"] is None


def test_peer_snapshots_need_several_processes():
    with pytest.raises(RuntimeError, match="needs several processes"):
        sw.checkpoints.PeerSnapshots()
    with pytest.raises(ValueError, match="every_steps must be positive"):
        sw.checkpoints.PeerSnapshots(every_steps=0)
    assert issubclass(sw.errors.CheckpointNotFound, CheckpointError)
