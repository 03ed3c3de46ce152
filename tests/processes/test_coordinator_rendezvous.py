"""The rendezvous: who may join, and the errors of those who may not. Members are threads here, on real sockets."""

import logging
import socket
import threading
import time
from contextlib import suppress

import pytest

from shardwise.errors import RendezvousError
from shardwise.processes import connections
from shardwise.processes.coordinator import Coordinator, listen
from shardwise.processes.member import Member
from shardwise.processes.protocol import split_address
from tests.processes.members import coordinator, join, leave_all, member, wait_until

pytestmark = pytest.mark.faults


def kinds(server, kind):
    return [event for event in server.events if event.kind == kind]


def test_all_members_are_welcomed_when_the_last_one_comes():
    with coordinator(3) as server:
        members = join(server, range(3), num_processes=3)
        assert [one.rank for one in members] == [0, 1, 2]
        assert sorted(event.rank for event in kinds(server, "joined")) == [0, 1, 2]
        assert len(kinds(server, "ready")) == 1
        leave_all(members)
        assert server.wait(30)


def test_an_unreachable_coordinator_is_an_error_with_its_address():
    with socket.socket() as probe:  # bound, but not listening
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(
            RendezvousError, match=rf"the coordinator at 127\.0\.0\.1:{port} cannot be reached within 1 s"
        ):
            Member("127.0.0.1", port, 0, 1, "", {}, 1)
        assert time.monotonic() - start < 30


def test_a_port_in_use_is_an_error_that_names_it():
    with coordinator(1) as server, pytest.raises(OSError, match=server.address.rpartition(":")[2]) as caught:
        Coordinator(1, port=split_address(server.address)[1]).start()
    assert "the coordinator cannot listen on 127.0.0.1" in str(caught.value)
    assert "choose another one" in str(caught.value)


def test_an_address_of_another_machine_is_an_error_that_names_the_argument():
    with pytest.raises(OSError, match=r"on 192\.0\.2\.1:99: .* not an address of this machine: pass coordinator_bind"):
        Coordinator(1, host="192.0.2.1", port=99).start()
    with pytest.raises(OSError, match="not an address of this machine: --coordinator must be an address of node 0"):
        listen("192.0.2.1", 99, is_option=True)


def test_a_duplicate_process_id_is_refused_and_the_others_are_unharmed():
    with coordinator(2) as server:
        members = join(server, [0, 1])
        with pytest.raises(RendezvousError, match=r"process id 1 is taken by pid \d+ on .*: give each process its own"):
            member(server, 1)
        assert not server.failures
        leave_all(members)


@pytest.mark.parametrize(
    ("rank", "processes", "message"),
    [
        (0, 3, "num_processes is 3 in process 0, and 2 in the coordinator"),
        (2, 2, "process_id must be from 0 to 1, not 2"),
        (-1, 2, "process_id must be from 0 to 1, not -1"),
    ],
)
def test_wrong_numbers_are_a_value_error(rank, processes, message):
    with coordinator(2) as server:
        with pytest.raises(ValueError, match=message):
            member(server, rank, num_processes=processes)
        leave_all(join(server, [0, 1]))


def test_the_missing_processes_are_listed_at_the_timeout():
    with coordinator(4, initialization_timeout=1) as server:
        results = join(server, [0, 2], num_processes=4)
        for error in results:
            assert isinstance(error, RendezvousError)
            assert "after 1 s, 2 of 4 processes are missing: process ids 1, 3." in str(error)
        assert server.wait(30)


def test_a_difference_is_refused_and_named():
    with coordinator(2) as server:
        answer = []
        thread = threading.Thread(
            target=lambda: answer.append(member(server, 0, requirements={"the version of jaxlib": "0.10.2"}))
        )
        thread.start()
        wait_until(lambda: kinds(server, "joined"))
        with pytest.raises(
            RendezvousError,
            match=r"the version of jaxlib differs: '0\.10\.2' in process 0, '0\.11\.0' in process 1\. All processes",
        ):
            member(server, 1, requirements={"the version of jaxlib": "0.11.0"})
        second = member(server, 1, requirements={"the version of jaxlib": "0.10.2"})
        thread.join(30)
        leave_all([*answer, second])


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100 + b"\n", b"x" * 70_000, b'{"type": "Goodbye"}\n', b"{}\n"]
)
def test_garbage_is_dropped_and_logged(garbage, caplog):
    with coordinator(2) as server, caplog.at_level(logging.WARNING, "shardwise"):
        with socket.create_connection(split_address(server.address)) as stranger:
            stranger.sendall(garbage)
            stranger.settimeout(30)
            with suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
        assert "The coordinator dropped a connection from 127.0.0.1" in caplog.text
        leave_all(join(server, [0, 1]))
        assert server.wait(30)
        assert not server.failures


def test_a_wrong_token_is_dropped_and_logged(caplog):
    with coordinator(2, token="secret") as server, caplog.at_level(logging.WARNING, "shardwise"):
        for token in ("", "guess"):
            with pytest.raises(RendezvousError, match="closed the connection: it has another token"):
                member(server, 0, token=token)
        assert "wrong token" in caplog.text
        leave_all(join(server, [0, 1], token="secret"))
        assert server.wait(30)


def test_a_silent_stranger_is_dropped(monkeypatch):
    monkeypatch.setattr(connections, "_HELLO_TIME", 0.2)
    with coordinator(1) as server, socket.create_connection(split_address(server.address)) as stranger:
        stranger.settimeout(30)
        assert stranger.recv(100) == b""


def test_garbage_after_the_rendezvous_harms_nobody():
    with coordinator(2) as server:
        members = join(server, [0, 1])
        for _ in range(3):
            with socket.create_connection(split_address(server.address)) as stranger:
                stranger.sendall(b"garbage\n")
        wait_until(lambda: len(kinds(server, "refused")) == 3)
        assert not server.failures
        leave_all(members)


def test_the_default_address_is_loopback(caplog):
    with caplog.at_level(logging.WARNING, "shardwise"), coordinator(1) as server:
        assert server.address.startswith("127.0.0.1:")
    assert not caplog.text


def test_another_address_is_explicit_and_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "shardwise"):
        listen("0.0.0.0", 0).close()
    assert "which other machines can reach. XLA's coordination service has no authentication" in caplog.text


def test_an_address_of_another_machine_is_an_error():
    with pytest.raises(OSError, match="pass coordinator_bind_address"):
        listen("192.0.2.1", 1234)


def test_proxy_variables_are_ignored(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:3128")
    with coordinator(2) as server:
        leave_all(join(server, [0, 1], timeout=20))


def test_a_process_that_ends_before_the_rendezvous_may_come_again():
    with coordinator(2) as server:
        (error,) = join(server, [1], timeout=0.3)
        assert isinstance(error, RendezvousError)
        assert "reached the coordinator" in str(error)
        members = join(server, [1, 0])
        leave_all(members)
        assert server.wait(30)
