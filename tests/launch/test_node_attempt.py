"""The launcher of a node other than node 0: it obeys the launcher of node 0, which these tests play."""

import os
import re
import signal
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from shardwise.launch import node_attempt
from shardwise.launch import options as launch_options
from shardwise.launch.fleet import node_hello
from shardwise.launch.launcher import Launcher
from shardwise.launch.options import LaunchOptions
from shardwise.processes.node_link import NodeLink
from shardwise.processes.node_server import NodeLost, NodeServer
from shardwise.processes.protocol import (
    Heartbeat,
    JobEnded,
    KillProcess,
    NodeHello,
    NodeWelcome,
    ProcessEnded,
    SignalProcesses,
    StartProcess,
    join_address,
)

LIMIT = 300  # seconds, which no test waits for if it passes
TOKEN = "the secret of the job"
# A process that prints its roster, its node and its process id, and a line to standard error.
COMMAND = 'echo "$SHARDWISE_ROSTER $SHARDWISE_ROSTER_TOKEN $SHARDWISE_NODE_RANK $$"; echo a fault >&2; exec $PROGRAM'


def options(folder=None, address="host:1", program="true"):
    """Return the options of node 1 of two nodes with a process and a spare each."""
    command = ["sh", "-c", COMMAND.replace("$PROGRAM", program)]
    return LaunchOptions(command, 1, nodes=2, node_rank=1, coordinator=address, spares=1, log_folder=folder)


class Node:
    """A launcher of node 1 in a thread.

    Attributes:
        code: its exit code, when it has ended.
    """

    def __init__(self, folder, address, program):
        self._files = [open(folder / name, "w+") for name in ("stdout", "stderr")]  # noqa: SIM115
        self._launcher = Launcher(options(folder, address, program), *self._files)
        self.code = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self.code = self._launcher.run()

    def send_signal(self, number):
        self._launcher._signals.append(number)

    def outputs(self):
        """Wait for the end, and return what it has printed to standard output and standard error."""
        self._thread.join(LIMIT)
        texts = []
        for file in self._files:
            with file:
                file.seek(0)
                texts.append(file.read())
        return texts


@contextmanager
def serving(port=0):
    hello = replace(node_hello(options()), node=0)
    server = NodeServer("127.0.0.1", port, hello, NodeWelcome("roster:1", "roster token"))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_COORDINATOR_TOKEN", TOKEN)
    return lambda address, program="sleep 600": Node(tmp_path, address, program)


def wait_for(server, kind):
    """Return the next event of a type, other than the events before it."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for _, event in server.poll():
            if isinstance(event, kind):
                return event
        time.sleep(0.005)
    raise AssertionError(f"no {kind.__name__}")


def test_a_node_starts_and_kills_processes_until_the_job_has_ended(start):
    with serving() as server:
        node = start(server.address)
        wait_for(server, NodeHello)
        server.send(1, StartProcess(5))
        server.send(1, StartProcess(6))
        server.send(1, KillProcess(5))
        server.send(1, KillProcess(99))  # there is none
        ended = wait_for(server, ProcessEnded)
        assert (ended.process, ended.code, ended.by_launcher) == (5, -signal.SIGKILL, True)
        server.send(1, SignalProcesses(signal.SIGTERM))
        ended = wait_for(server, ProcessEnded)
        assert (ended.process, ended.code, ended.by_launcher) == (6, -signal.SIGTERM, False)
        server.send(1, SignalProcesses(10**6))  # no signal
        server.send(1, JobEnded(0, ""))
        out, _ = node.outputs()
    assert node.code == 0
    assert "[6] roster:1 roster token 1 " in out


def test_a_failure_of_the_job_is_the_exit_code_of_the_node(start):
    with serving() as server:
        node = start(server.address, "false")
        wait_for(server, NodeHello)
        server.send(1, StartProcess(3))
        ended = wait_for(server, ProcessEnded)
        assert (ended.process, ended.code, ended.errors) == (3, 1, "a fault")
        server.send(1, JobEnded(3, "process 0 has raised an error"))
        _, errors = node.outputs()
    assert node.code == 3
    assert "shardwise launch: the job failed: process 0 has raised an error" in errors


def test_a_stopped_process_is_reported(start):
    with serving() as server:
        node = start(server.address, "kill -STOP $$")
        wait_for(server, NodeHello)
        server.send(1, StartProcess(3))
        deadline = time.monotonic() + LIMIT
        while wait_for(server, Heartbeat) != Heartbeat("3"):
            assert time.monotonic() < deadline
        server.send(1, JobEnded(0, ""))
        node.outputs()
    assert node.code == 0


def test_a_signal_to_the_launcher_ends_its_node(start):
    with serving() as server:
        node = start(server.address)
        wait_for(server, NodeHello)
        server.send(1, StartProcess(3))
        wait_for(server, Heartbeat)
        node.send_signal(signal.SIGTERM)
        wait_for(server, NodeLost)
        _, errors = node.outputs()
    assert node.code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in errors


def test_a_node_that_loses_node_0_kills_its_processes_and_takes_part_again(start):
    with serving() as server:
        port = int(server.address.rpartition(":")[2])
        node = start(server.address)
        wait_for(server, NodeHello)
        server.send(1, StartProcess(3))
        wait_for(server, Heartbeat)  # after a second, in which the process prints
    with serving(port) as server:
        wait_for(server, NodeHello)
        server.send(1, StartProcess(8))
        server.send(1, JobEnded(0, ""))
        out, errors = node.outputs()
    assert node.code == 0
    assert "the connection to node 0 is lost (the launcher of node 0 has closed the connection)" in errors
    (pid,) = re.findall(r"\[3\] .* (\d+)\n", out)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_launcher_that_cannot_be_reached_is_a_failure(start, monkeypatch):
    monkeypatch.setattr(launch_options, "MIN_INITIALIZATION_TIMEOUT", 0.1)
    monkeypatch.setattr(launch_options, "INITIALIZATION_TIMEOUT", 0.1)
    monkeypatch.setattr(node_attempt, "PATIENCE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = join_address(*listener.getsockname())
    node = start(address)
    _, errors = node.outputs()
    assert node.code == 1
    assert re.search(rf"the job failed: after . s, the launcher of node 0 cannot be reached at {address} \(", errors)
    assert "start the job again: it continues from its newest checkpoint on disk" in errors
    assert "shardwise launch: waiting up to 0 s for node 0: the launcher of node 0 cannot be reached" in errors


def test_a_second_launcher_of_a_node_ends(start, monkeypatch):
    monkeypatch.setattr(node_attempt, "PATIENCE", 0.0)
    monkeypatch.setattr(node_attempt, "_RETURN_TIME", 0.2)
    with serving() as server:
        first = NodeLink(server.address, node_hello(options()))
        second = start(server.address)
        _, errors = second.outputs()
        first.close()
    assert second.code == 1
    reason = "refuses this one for now: another launcher of node 1 is connected: give each its own --node-rank"
    assert "waiting up to 0 s for node 0: the launcher of node 0 at" in errors
    assert re.search("the job failed: after . s, the launcher of node 0 at", errors)
    assert errors.count(reason) == 2


def test_a_launcher_that_refuses_this_one_is_a_failure(start, monkeypatch):
    with serving() as server:
        monkeypatch.setenv("SHARDWISE_COORDINATOR_TOKEN", "another secret")
        node = start(server.address)
        _, errors = node.outputs()
    assert node.code == 1
    assert "refuses this one: SHARDWISE_COORDINATOR_TOKEN differs: set the same secret on all nodes" in errors
