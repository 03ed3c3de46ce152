"""PeerRestore with threads as processes: which snapshot they choose, and whose values a new process gets."""

import threading
from concurrent.futures import ThreadPoolExecutor
from json import dumps, loads

import pytest

from shardwise.checkpoints.peer_blocks import HeldSnapshot, pack_values
from shardwise.checkpoints.peer_restore import PeerRestore
from shardwise.errors import CheckpointNotFound
from shardwise.processes.blob_server import BlobServer

LIMIT = 60.0


class Threads:
    """A group whose processes are threads."""

    def __init__(self, processes):
        self.processes = tuple(range(processes))
        self._barrier, self._messages = threading.Barrier(processes), {}

    def member(self, rank):
        group = Threads.__new__(Threads)
        group.__dict__.update(self.__dict__, rank=rank)
        return group

    def exchange(self, message):
        self._messages[self.rank] = dumps(message)
        self._barrier.wait(LIMIT)
        messages = [loads(self._messages[rank]) for rank in self.processes]
        self._barrier.wait(LIMIT)
        return messages

    def agree(self, error):
        assert self.exchange(error is None) == [True] * len(self.processes)


def snapshot(step, values, held, complete):
    """Return a snapshot of the first process of `held`, which holds the values of all of these."""
    packed = {rank: pack_values({"seed": value}) for rank, value in values.items()}
    digests = HeldSnapshot(step, {}, {}, {}, {}, packed).held_digests()
    own = {"seed": values[held[0]]}
    return HeldSnapshot(step, {}, {}, {}, own, {rank: packed[rank] for rank in held}, digests if complete else {})


def choose(held, complete=1):
    """Return the name and the snapshot that each process chooses. `held` has the snapshots of each, by name."""
    threads = Threads(len(held))

    def choose_in(rank):
        server = BlobServer("127.0.0.1", 1 << 20)
        try:
            return PeerRestore(threads.member(rank), rank, server).choose_snapshot(held[rank], complete)
        finally:
            server.close()

    with ThreadPoolExecutor(len(held)) as pool:
        return list(pool.map(choose_in, range(len(held))))


def restore(held):
    """Return the step and the values that each process restores. `held` has the snapshots of each."""
    chosen = choose([{f"run/{each.step}": each for each in snapshots} for snapshots in held])
    return [(snapshot.step, snapshot.values["seed"]) for _, snapshot in chosen]


def blocks(*held):
    """Return a snapshot of step 4 of three processes, each of which had one block; this process holds some of them."""
    keys = [("x", ((rank, rank + 1),)) for rank in range(3)]
    values = {1: pack_values({})}
    holders, parts = {key: (rank,) for rank, key in enumerate(keys)}, {keys[rank]: None for rank in held}
    return HeldSnapshot(4, {}, holders, parts, {}, values, HeldSnapshot(4, {}, {}, {}, {}, values).held_digests())


def test_the_old_snapshot_is_chosen_until_the_new_one_is_complete():
    """Process 0 was replaced, and got its block from process 1. Then process 1 died before it had sent its own."""
    held = [{"old": blocks(0), "new": blocks(0, 2)}, {}, {"old": blocks(2, 1), "new": blocks(2)}]
    assert {name for name, _ in choose(held)} == {"old"}
    del held[0]["old"], held[2]["old"]
    with pytest.raises(CheckpointNotFound, match=r"step 4: 'x' \[1:2\], which the processes \[1\] held, is lost"):
        choose(held)


def test_a_new_process_gets_the_values_of_its_rank_from_the_partner():
    values = {0: 10, 1: 11, 2: 12}
    held = [[snapshot(1, values, [0, 2], True)], [], [snapshot(1, values, [2, 1], True)]]
    assert restore(held) == [(1, 10), (1, 11), (1, 12)]


def test_a_snapshot_without_the_values_of_a_process_is_not_chosen():
    """Process 1 has died before its partner, the only other process, had its values of step 2."""
    values, later = {0: 10, 1: 11}, {0: 20, 1: 21}
    held = [[snapshot(1, values, [0, 1], True), snapshot(2, later, [0], False)], []]
    assert restore(held) == [(1, 10), (1, 11)]
    with pytest.raises(CheckpointNotFound, match=r"step 2: the values of the processes \[1\], which may differ"):
        restore([held[0][1:], []])


def test_equal_values_stand_in_for_those_that_are_lost():
    values = {0: 10, 1: 10, 2: 12}
    held = [[snapshot(1, values, [0, 2], True)], [], [snapshot(1, values, [2], True)]]
    assert restore(held) == [(1, 10), (1, 10), (1, 12)]
    held = [[snapshot(1, {0: 5, 1: 5}, [0, 1], True)], [snapshot(1, {0: 5, 1: 5}, [1, 0], True)], []]
    assert restore(held) == [(1, 5)] * 3  # process 2 took no part
    held = [[snapshot(1, {0: 5, 1: 6}, [0, 1], True)], [snapshot(1, {0: 5, 1: 6}, [1, 0], True)], []]
    with pytest.raises(CheckpointNotFound, match=r"the values of the processes \[2\]"):
        restore(held)
