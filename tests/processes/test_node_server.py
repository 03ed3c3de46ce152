"""NodeServer: launchers take part, are refused, or are lost; strangers and hostile launchers harm no other."""

import logging
import os
import random
import resource
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from shardwise.errors import RendezvousError
from shardwise.processes import node_server
from shardwise.processes.node_link import NodeBusy, NodeLink
from shardwise.processes.node_server import NodeLost, NodeServer
from shardwise.processes.protocol import (
    PROTOCOL_VERSION,
    Heartbeat,
    JobEnded,
    NodeHello,
    NodeWelcome,
    ProcessEnded,
    StartProcess,
    encode,
    join_address,
    split_address,
)
from tests.processes.members import WAIT
from tests.processes.protocol_fuzz import any_line, from_launcher, mutated

TOKEN = "the secret of the job"
HELLO = NodeHello(TOKEN, PROTOCOL_VERSION, 1, 3, {"-n": "2", "--spares": "1", "--timeout": "not set"})
WELCOME = NodeWelcome("127.0.0.1:1234", "the token of the roster")


@pytest.fixture
def server():
    server = NodeServer("127.0.0.1", 0, replace(HELLO, node=0), WELCOME)
    yield server
    server.stop()


def events(server, count):
    """Return this number of events."""
    found, deadline = [], time.monotonic() + WAIT
    while len(found) < count:
        found += server.poll()
        assert time.monotonic() < deadline, found
        time.sleep(0.005)
    return found


def test_a_launcher_takes_part(server):
    link = NodeLink(server.address, HELLO)
    assert link.welcome == WELCOME
    ended = ProcessEnded(5, 4242, -9, False, "the last line\n")
    link.send(ended)
    link.send_heartbeat("7")
    link.send_heartbeat("7")  # nothing has changed
    link.close()
    lost = NodeLost("the connection of its launcher closed")
    assert events(server, 4) == [(1, HELLO), (1, ended), (1, Heartbeat("7")), (1, lost)]


def receive(link, count):
    """Return this number of commands, or those before the connection is lost."""
    found, deadline = [], time.monotonic() + WAIT
    while len(found) < count and not link.lost:
        found += link.receive()
        assert time.monotonic() < deadline, found
        time.sleep(0.005)
    return found


def test_commands_reach_their_launchers(server):
    links = [NodeLink(server.address, replace(HELLO, node=node)) for node in (1, 2)]
    for message in (StartProcess(3), Heartbeat(), StartProcess(8)):
        server.send(2, message)
    server.send(0, StartProcess(4))  # there is no such launcher
    assert receive(links[1], 2) == [StartProcess(3), StartProcess(8)]
    for node in (1, 2):
        server.send(node, JobEnded(3, "why"))
    server.stop()
    for link in links:
        assert receive(link, 2) == [JobEnded(3, "why")]
        assert link.lost == "the launcher of node 0 has closed the connection"
        link.send(Heartbeat())  # to nobody
        assert link.receive() == []


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        ({"token": "another"}, "SHARDWISE_COORDINATOR_TOKEN differs: set the same secret on all nodes"),
        ({"protocol": 0}, "the versions of Shardwise differ"),
        ({"nodes": 2}, "--nodes is 3 on node 0, and 2 on this one"),
        ({"options": {"-n": "3"}}, "-n is 2 on node 0, and 3 on this one"),
        ({"options": {"-n": "2"}}, "--spares is 1 on node 0, and not set on this one"),
        ({"options": {**HELLO.options, "--timeout": "9.0"}}, "--timeout is not set on node 0, and 9.0 on this one"),
        ({"node": 3}, "there is no node 3 of 3 nodes besides node 0"),
        ({"node": 0}, "there is no node 0 of 3 nodes besides node 0"),
    ],
)
def test_launchers_that_differ_are_refused(server, hello, text):
    with pytest.raises(RendezvousError, match=text):
        NodeLink(server.address, replace(HELLO, **hello))
    assert server.poll() == []


def test_a_second_launcher_of_a_node_must_wait(server):
    first = NodeLink(server.address, HELLO)
    with pytest.raises(NodeBusy, match="another launcher of node 1 is connected"):
        NodeLink(server.address, HELLO)
    first.close()
    events(server, 2)
    NodeLink(server.address, HELLO).close()


def test_a_silent_launcher_is_lost_on_both_sides(server, monkeypatch):
    link = NodeLink(server.address, HELLO)
    monkeypatch.setattr(node_server, "SILENCE", 0.3)
    monkeypatch.setattr("shardwise.processes.node_link.SILENCE", 0.3)
    assert events(server, 2)[1] == (1, NodeLost("its launcher has been silent for 0 s"))
    link.close()
    monkeypatch.setattr(node_server, "SILENCE", WAIT)
    link = NodeLink(server.address, HELLO)
    assert receive(link, 1) == []
    assert link.lost == "the launcher of node 0 has been silent for 0 s"


def test_the_time_of_a_suspended_launcher_does_not_count(server, monkeypatch):
    link = NodeLink(server.address, HELLO)
    monkeypatch.setattr("shardwise.processes.node_link.SILENCE", 0.3)
    monkeypatch.setattr("shardwise.processes.node_link.SUSPENDED_TIME", 0.3)
    time.sleep(0.4)
    assert link.receive() == [] and not link.lost
    link.close()


def test_hostile_messages_harm_no_other_launcher(server, caplog):
    rng = random.Random(0)
    good = NodeLink(server.address, replace(HELLO, node=2))
    for _ in range(40):
        with socket.create_connection(split_address(server.address), timeout=WAIT) as stranger:
            line = rng.choice((any_line(rng), mutated(rng, HELLO), encode(from_launcher(rng))))
            stranger.sendall(line[: rng.randrange(len(line) + 1)])
    assert events(server, 1) == [(2, replace(HELLO, node=2))]
    for _ in range(40):
        with socket.create_connection(split_address(server.address), timeout=WAIT) as hostile:
            hostile.sendall(encode(HELLO))
            line = rng.choice((any_line(rng), mutated(rng, from_launcher(rng)), encode(from_launcher(rng))))
            hostile.sendall(line[: rng.randrange(len(line) + 1)])
        found = []
        while not any(isinstance(event, NodeLost) for _, event in found):
            found += events(server, 1)
        assert {node for node, _ in found} == {1}
        assert all(isinstance(event, NodeHello | ProcessEnded | Heartbeat | NodeLost) for _, event in found)
    server.send(2, StartProcess(1))
    assert receive(good, 1) == [StartProcess(1)]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    good.close()


@contextmanager
def answering(answer):
    """The address of a program that sends these bytes to its first client, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)  # otherwise the client gets a reset, and perhaps not the answer
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield join_address(*listener.getsockname())
        thread.join()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"type": "NodeWel', encode(JobEnded(0, ""))]
)
def test_another_program_at_the_address_is_an_error(answer):
    with answering(answer) as address, pytest.raises(OSError, match=r"has closed the connection|is no launcher"):
        NodeLink(address, HELLO)


def test_an_answer_that_does_not_end_is_an_error(server, monkeypatch):
    """Each byte arrives in time, and the line never ends."""
    monkeypatch.setattr("shardwise.processes.node_link._WELCOME_TIME", 0.2)
    reads = []

    def read(link):
        reads.append(link)
        assert len(reads) < 1000
        time.sleep(0.002)

    monkeypatch.setattr(NodeLink, "_read", read)
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        NodeLink(server.address, HELLO)


def test_a_link_may_have_a_high_descriptor(server):
    """A launcher with many processes has more than 1,024 open files, which `select` does not accept."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        link = NodeLink(server.address, HELLO)
        server.send(1, StartProcess(3))
        assert receive(link, 1) == [StartProcess(3)]
        link.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_messages_that_are_not_valid_end_the_connection():
    rng = random.Random(1)
    for _ in range(40):
        line = rng.choice((any_line(rng), mutated(rng, from_launcher(rng)), encode(from_launcher(rng))))
        with answering(encode(WELCOME) + line) as address, suppress(ConnectionAbortedError):  # with the welcome
            link = NodeLink(address, HELLO)
            receive(link, 1000)
            assert link.lost
