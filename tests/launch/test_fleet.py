"""Fleet: the processes of all nodes, as the launcher of node 0 sees them. The tests play the other launchers."""

import signal
import time
from dataclasses import replace

import pytest

from shardwise.launch.fleet import Fleet, node_hello
from shardwise.launch.options import LaunchOptions
from shardwise.processes.node_link import NodeLink
from shardwise.processes.node_server import NodeServer
from shardwise.processes.protocol import (
    Heartbeat,
    KillProcess,
    NodeWelcome,
    ProcessEnded,
    SignalProcesses,
    StartProcess,
)

LIMIT = 300  # seconds, which no test waits for if it passes


class LocalProcesses:
    """The processes of node 0, without any process, and their output."""

    def __init__(self):
        self.running, self.stopped, self.calls = [], {}, []
        self.start_time = time.monotonic()

    def start(self, number):
        self.running.append(number)

    def poll(self):
        return []

    def kill(self, number):
        self.calls.append(("kill", number))

    def signal(self, number):
        self.calls.append(("signal", number))

    def error_lines(self, number):
        return [f"of process {number}"]


@pytest.fixture
def job(monkeypatch):
    """The fleet of two nodes with two processes and a spare each, and the means to play the launcher of node 1."""
    monkeypatch.setenv("SHARDWISE_COORDINATOR_TOKEN", "the secret of the job")
    options = LaunchOptions(["true"], 2, nodes=2, coordinator="127.0.0.1:1", spares=1)
    server = NodeServer("127.0.0.1", 0, node_hello(options), NodeWelcome("roster:1", "token"))
    yield Job(options, server)
    server.stop()


class Job:
    def __init__(self, options, server):
        self._hello, self._server = replace(node_hello(options), node=1), server
        self.local, self.reports = LocalProcesses(), []
        self.fleet = Fleet(self.local, self.local, self.local.start, server, options, self.reports.append)

    def connect(self):
        """Let the launcher of node 1 take part, and start its processes."""
        link = NodeLink(self._server.address, self._hello)
        self.wait_until(lambda: self.fleet.nodes == [0, 1])
        assert self.fleet.take_new_nodes() == [1] and self.fleet.take_new_nodes() == []
        numbers = [self.fleet.start(1) for _ in range(3)]
        assert self.receive(link, 3) == [StartProcess(number) for number in numbers]
        return link, numbers

    def wait_until(self, condition):
        """Wait until a condition is true, and return the processes that have ended meanwhile."""
        exits, deadline = [], time.monotonic() + LIMIT
        while not condition():
            exits += self.fleet.poll()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return exits

    def receive(self, link, count):
        commands, deadline = [], time.monotonic() + LIMIT
        while len(commands) < count:
            commands += link.receive()
            assert time.monotonic() < deadline and not link.lost
            time.sleep(0.005)
        return commands


def test_processes_have_numbers_by_node_and_then_by_start(job):
    assert [job.fleet.start(0) for _ in range(3)] == [0, 1, 4]
    link, numbers = job.connect()
    assert numbers == [2, 3, 5]
    assert job.fleet.running == [0, 1, 4, 2, 3, 5]
    assert [job.fleet.node_of(number) for number in range(6)] == [0, 0, 1, 1, 0, 1]
    assert [job.fleet.count(node) for node in (0, 1)] == [3, 3]
    assert job.fleet.start(1) == 6 and job.fleet.start(0) == 7
    link.close()


def test_commands_go_to_the_node_of_the_process(job):
    job.fleet.start(0)
    link, _ = job.connect()
    job.fleet.kill(0)
    job.fleet.kill(3)
    job.fleet.signal(signal.SIGTERM)
    assert job.local.calls == [("kill", 0), ("signal", signal.SIGTERM)]
    assert job.receive(link, 2) == [KillProcess(3), SignalProcesses(signal.SIGTERM)]
    assert job.fleet.killed == {0, 3}
    link.close()


def test_a_launcher_reports_the_ends_and_stops_of_its_processes(job):
    link, _ = job.connect()
    link.send(Heartbeat("3,77"))  # the second one is not its own
    job.wait_until(lambda: job.fleet.stopped)
    assert list(job.fleet.stopped) == [3] and job.fleet.stopped[3] >= 0
    link.send(ProcessEnded(3, 4242, -11, False, "one\ntwo"))
    (exit,) = job.wait_until(lambda: 3 not in job.fleet.running)
    assert (exit.rank, exit.pid, exit.code, exit.describe()) == (3, 4242, -11, "killed by SIGSEGV")
    assert job.fleet.exits == [exit] and not job.fleet.stopped
    assert job.fleet.error_lines(3) == ["one", "two"] and job.fleet.error_lines(0) == ["of process 0"]
    link.close()


def test_a_lost_node_takes_its_processes_with_it(job):
    link, numbers = job.connect()
    link.close()
    exits = job.wait_until(lambda: job.fleet.nodes == [0])
    assert [exit.rank for exit in exits] == numbers
    assert {exit.describe() for exit in exits} == {"lost with node 1"}
    assert job.reports == ["node 1 is lost: the connection of its launcher closed"]
    link, numbers = job.connect()
    assert numbers == [6, 7, 8], "they are new processes"
    link.close()


@pytest.mark.parametrize("message", [ProcessEnded(99, 1, 0, False, ""), Heartbeat("9" * 5000), Heartbeat("x,,-1")])
def test_what_a_launcher_reports_of_other_processes_changes_nothing(job, message):
    link, numbers = job.connect()
    link.send(message)
    link.send(ProcessEnded(numbers[0], 1, 0, False, ""))
    (exit,) = job.wait_until(lambda: numbers[0] not in job.fleet.running)
    assert exit.rank == numbers[0] and job.fleet.running == numbers[1:]
    link.close()


def test_an_exit_code_that_does_not_exist_ends_the_connection(job):
    link, numbers = job.connect()
    link.send(ProcessEnded(numbers[0], 1, 10**9, False, ""))
    exits = job.wait_until(lambda: job.fleet.nodes == [0])
    assert [exit.rank for exit in exits] == numbers
    assert job.reports == ["node 1 is lost: its launcher has reported exit code 1000000000 of process 2"]
    link.close()
