"""Groups: how long processes wait for each other, and which process the error names. The store is in this process."""

import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from shardwise.base._jaxlib import RuntimeFailure
from shardwise.errors import CheckpointError, PeerFailure
from shardwise.processes.stragglers import PaceMeter
from shardwise.runtime import group as group_module
from shardwise.runtime.cluster import Timeouts
from shardwise.runtime.group import Group

TIME_LIMIT = 60.0


class Store:
    """A key-value store in memory, whose waits end at once."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite or key not in self.values, f"{key} already exists"
        self.values[key] = value

    def key_value_try_get(self, key):
        if key not in self.values:
            raise RuntimeFailure(f"NOT_FOUND: {key}")
        return self.values[key]

    def blocking_key_value_get(self, key, milliseconds):
        time.sleep(0.001)
        return self.key_value_try_get(key)


class Member:
    """A connection to a coordinator with a verdict on which process failed."""

    def __init__(self, verdict):
        self.verdict = verdict
        self.reasons = []
        self.pace = PaceMeter()

    def error(self, name, processes):
        return None

    def ask_for_failure(self, processes, reason):
        self.reasons.append((processes, reason))
        return self.verdict


UNDECIDED = PeerFailure(-1, None, "all processes are alive")


@pytest.fixture
def cluster(monkeypatch):
    """The cluster of process 0 of 2, with a peer timeout of 0.05 s."""
    member = Member(UNDECIDED)
    fake = SimpleNamespace(store=Store(), member=member, timeouts=Timeouts(peer=0.05), group_counts=Counter())
    monkeypatch.setattr(group_module, "cluster", fake)
    monkeypatch.setattr(group_module, "process_count", lambda: 2)
    monkeypatch.setattr(group_module, "process_index", lambda: 0)
    return fake


def test_a_process_that_does_not_come_is_named_after_the_peer_timeout(cluster):
    group = Group("save of /run/step-3")
    with pytest.raises(
        PeerFailure, match=r"process 1 failed: it did not reach save of /run/step-3 within 0.05 s"
    ) as error:
        group.exchange(1)
    assert error.value.rank == 1 and "all processes are alive" in error.value.reason
    assert cluster.member.reasons == [("0,1", "waited 0.05 s for process 1 in save of /run/step-3")]


def test_the_verdict_of_the_coordinator_comes_first(cluster):
    cluster.member.verdict = PeerFailure(1, 7, "it does not answer")
    with pytest.raises(PeerFailure, match="process 1 failed after step 7: it does not answer"):
        Group("save").agree(None)


def test_a_timeout_that_is_passed_replaces_the_peer_timeout(cluster):
    with pytest.raises(PeerFailure, match=r"within 0.01 s"):
        Group("save", 0.01).exchange(None)


def test_a_process_that_works_is_waited_for(cluster):
    group = Group("save")
    stop = threading.Event()

    def work():  # ten times as long as the timeout
        for count in range(50):
            cluster.store.key_value_set("checkpoint/heartbeat/1", str(count), allow_overwrite=True)
            if stop.wait(0.01):
                return
        cluster.store.key_value_set(f"{group._keys}/1/1", "[null, 5]")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert group.gather(lambda: 4) == [4, 5]
    finally:
        stop.set()
        thread.join(TIME_LIMIT)


def test_a_process_sends_heartbeats_while_it_works(cluster):
    heartbeats = set()
    deadline = time.monotonic() + TIME_LIMIT
    with Group("save").working():
        while len(heartbeats) < 3 and time.monotonic() < deadline:
            heartbeats.add(cluster.store.values.get("checkpoint/heartbeat/0"))
            time.sleep(0.001)
    last = cluster.store.values["checkpoint/heartbeat/0"]
    assert len(heartbeats) >= 3
    time.sleep(0.1)
    assert cluster.store.values["checkpoint/heartbeat/0"] == last


def test_a_process_without_progress_sends_no_more_heartbeats(cluster, monkeypatch):
    monkeypatch.setattr(group_module, "_LONGEST_WORK", 0.05)
    deadline = time.monotonic() + TIME_LIMIT
    with Group("save").working():
        while any("heartbeat of save" in thread.name for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_groups_of_the_same_name_have_their_own_messages(cluster):
    one, two = Group("manager of /run"), Group("manager of /run")
    for group, message in ((one, "1"), (two, "2")):
        cluster.store.key_value_set(f"{group._keys}/1/1", message)
    assert (one.exchange(3), two.exchange(4)) == ([3, 1], [4, 2])


def test_a_group_ends_when_its_process_joins_others(cluster):
    group = Group("save")
    cluster.member = Member(UNDECIDED)
    with pytest.raises(PeerFailure, match="the processes of save have failed, and this one has left them"):
        group.exchange(1)
    assert not cluster.store.values


def test_an_error_of_another_process_is_an_error_here(cluster):
    group = Group("restore")
    cluster.store.key_value_set(f"{group._keys}/1/1", '["OSError: disk", null]')
    with pytest.raises(CheckpointError, match="restore: process 1 failed: OSError: disk"):
        group.gather(lambda: 3)


def test_an_error_of_this_process_is_sent_to_the_others(cluster):
    group = Group("restore")
    cluster.store.key_value_set(f"{group._keys}/1/1", "[null, 3]")
    with pytest.raises(KeyError):
        group.agree(KeyError("name"))
    assert cluster.store.values[f"{group._keys}/1/0"] == """["KeyError: 'name'", null]"""
