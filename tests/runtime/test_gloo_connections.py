"""GlooConnections: which connections are closed after a failure. A listener here stands for Gloo's.

`tests/multi_process/test_peer_snapshots.py` has runs of XLA that wait for dead processes.
"""

import socket
import sys
import time
from types import SimpleNamespace

import pytest

from shardwise.runtime import gloo_connections
from shardwise.runtime.gloo_connections import GlooConnections, listening_addresses

WAIT = 30.0
ALL = "#devices0 = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"
ROWS = "#devices1 = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
COLUMNS = "#devices0 = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>"
RING = "#devices0 = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>\nsource_target_pairs = #devices0"
SINGLE = "#devices0 = dense<[[0], [1], [2], [3]]> : tensor<4x1xi64>"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are found in /proc")


class Store(dict):
    def key_value_set(self, key, value):
        self[key] = value

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.items() if key.startswith(prefix)]


def devices(ranks, platform="cpu"):
    return [SimpleNamespace(process_index=rank, platform=platform) for rank in ranks]


@pytest.fixture
def network(monkeypatch):
    """A listener of Gloo with a connection to it, and a connection to another listener."""
    monkeypatch.setattr(gloo_connections, "_PAUSES", (0.0,))
    sockets = []

    def connect():
        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname(), timeout=WAIT)
        server, _ = listener.accept()
        sockets.extend([listener, client, server])
        return SimpleNamespace(listener=listener, client=client, server=server)

    yield SimpleNamespace(gloo=connect(), other=connect())
    for each in sockets:
        each.close()


def connections(network, count=2, other=("127.0.0.1", 9)):
    member = SimpleNamespace(rank=0, num_processes=count, failures={})
    store = Store()
    created = GlooConnections(member, store, network.gloo.listener.getsockname())
    for rank in range(1, count):
        store.key_value_set(f"shardwise/gloo/{rank}", repr(other))
    created.read_addresses(store)
    return created, member


def is_closed(connection):
    """Return whether a connection ends, soon."""
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def abort(created, member, *failed):
    member.failures.update(dict.fromkeys(failed, "killed"))
    created._abort()


def test_only_the_connections_of_gloo_are_closed_and_it_still_listens(network):
    created, member = connections(network)
    abort(created, member, 1)
    assert is_closed(network.gloo.client) and is_closed(network.gloo.server)
    assert not is_closed(network.other.client) and not is_closed(network.other.server)
    with socket.create_connection(network.gloo.listener.getsockname(), timeout=WAIT):
        network.gloo.listener.accept()[0].close()
    assert network.gloo.listener.getsockname() in listening_addresses()


@pytest.mark.parametrize(
    ("texts", "failed", "closes"),
    [
        ([ALL], [1], True),
        ([SINGLE], [1], True),
        ([ALL, ROWS], [1], False),  # the group of processes 2 and 3 may communicate later
        ([ROWS], [1, 2], True),
        ([COLUMNS], [0, 2], False),
        ([f"{ALL}\n{ROWS}"], [3], False),
        ([RING], [2], True),
    ],
)
def test_connections_stay_if_a_group_of_survivors_has_communicated(network, texts, failed, closes):
    created, member = connections(network, 4)
    for text in texts:
        created.add_groups(text, devices([0, 1, 2, 3]))
    abort(created, member, *failed)
    assert is_closed(network.gloo.client) == closes


def test_groups_on_other_platforms_do_not_count(network):
    created, member = connections(network, 4)
    created.add_groups(ROWS, devices([0, 1, 2, 3], "gpu"))
    abort(created, member, 1)
    assert is_closed(network.gloo.client)


def test_connections_are_closed_again_after_another_failure(network):
    created, member = connections(network, 3)
    abort(created, member, 1)
    assert is_closed(network.gloo.client)
    client = socket.create_connection(network.gloo.listener.getsockname(), timeout=WAIT)
    server, _ = network.gloo.listener.accept()
    with client, server:
        created.add_groups(ALL, devices([0, 0, 2, 2]))  # the survivors of the first failure
        created._abort()
        assert not is_closed(client)
        abort(created, member, 2)
        assert is_closed(client)


def test_nothing_is_closed_if_an_address_is_unknown(network):
    created, member = connections(network, 3, other=None)
    abort(created, member, 1)
    assert not is_closed(network.gloo.client)


def test_the_loss_of_the_coordinator_closes_nothing(network):
    created, member = connections(network)
    member.failures[-1] = "the coordinator is lost"
    created.abort_after_failure()
    assert not is_closed(network.gloo.client)
    member.failures[1] = "killed"
    created.abort_after_failure()
    deadline = time.monotonic() + WAIT
    while not is_closed(network.gloo.client) and time.monotonic() < deadline:
        pass
    assert is_closed(network.gloo.client)
