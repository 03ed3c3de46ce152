"""Fleet: the processes of a program on all nodes, which the launcher of node 0 starts and ends.

Those of node 0 are its children. For the others, it sends commands to the launchers of their nodes, which report the
ends (`processes/node_server.py`). A node that is lost takes all of its processes with it. Processes have numbers: the
first ones of all nodes, then the first spares, then those that are started later.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import final

from shardwise.launch.options import LaunchOptions
from shardwise.launch.output import Output
from shardwise.launch.workers import Exit, Workers
from shardwise.processes import environment
from shardwise.processes.node_server import HEARTBEAT_INTERVAL, NodeEvent, NodeLost, NodeServer
from shardwise.processes.protocol import (
    PROTOCOL_VERSION,
    Heartbeat,
    KillProcess,
    NodeHello,
    SignalProcesses,
    StartProcess,
)

_MOST_CODE = 255  # of an exit, or of the signal that has killed a process
LOCAL = 0  # the node of the launcher that leads


@final
class _RemoteNode:
    """The processes of a node with a launcher of its own, as far as it has reported."""

    def __init__(self) -> None:
        self.running: dict[int, None] = {}
        self.stopped: dict[int, float] = {}  # process → the time of the first heartbeat that lists it


@final
class Fleet:
    """The processes of all nodes.

    Args:
        workers: the processes of this node.
        output: copies their output.
        start: starts a process of this node, under a number.
        server: the server for the launchers of the other nodes; None if there are none.
        options: the options of the launch.
        report: prints a line of the launcher.

    Attributes:
        exits: the processes that have ended, in order of their ends.
        killed: the processes that `kill` was called with.
    """

    def __init__(
        self,
        workers: Workers,
        output: Output,
        start: Callable[[int], None],
        server: NodeServer | None,
        options: LaunchOptions,
        report: Callable[[str], None],
    ):
        self.exits: list[Exit] = []
        self.killed: set[int] = set()
        self._workers, self._output, self._start, self._server, self._report = workers, output, start, server, report
        self._remote: dict[int, _RemoteNode] = {}
        self._errors: dict[int, list[str]] = {}  # the last lines of processes of other nodes that have ended
        self._nodes: dict[int, int] = {}  # process → its node
        self._starts: dict[int, float] = {}  # process → the time of its start
        nodes, processes, spares = options.nodes, options.processes, options.spares or 0
        self._first_numbers: dict[int, deque[int]] = {}  # of each node, as long as it has not used them
        for node in range(nodes):
            members = range(node * processes, (node + 1) * processes)
            first_spare = nodes * processes + node * spares
            self._first_numbers[node] = deque([*members, *range(first_spare, first_spare + spares)])
        self._next_number = nodes * (processes + spares)
        self._heartbeat = 0.0  # when the last one was sent
        self._new_nodes: list[int] = []

    @property
    def nodes(self) -> list[int]:
        """The nodes whose launchers are connected, with this one."""
        return [LOCAL, *sorted(self._remote)]

    @property
    def running(self) -> list[int]:
        """The processes that run."""
        return [*self._workers.running, *(number for node in self._remote.values() for number in node.running)]

    def running_for(self, seconds: float) -> set[int]:
        """Return the processes that run, and were started so many seconds ago or earlier."""
        latest = time.monotonic() - seconds
        return {number for number in self.running if self._starts[number] <= latest}

    @property
    def stopped(self) -> dict[int, float]:
        """The seconds for which each process has been stopped, such as by SIGSTOP."""
        now = time.monotonic()
        remote = {number: now - since for node in self._remote.values() for number, since in node.stopped.items()}
        return {**self._workers.stopped, **remote}

    def take_new_nodes(self) -> list[int]:
        """Return the nodes whose launchers have connected since the last call."""
        nodes, self._new_nodes = self._new_nodes, []
        return nodes

    def count(self, node: int) -> int:
        """Return the number of processes of a node that run."""
        return len(self._workers.running) if node == LOCAL else len(self._remote[node].running)

    def node_of(self, number: int) -> int:
        """Return the node of a process."""
        return self._nodes[number]

    def error_lines(self, number: int) -> list[str]:
        """Return the last lines of a process's standard error."""
        return self._errors[number] if number in self._errors else self._output.error_lines(number)

    def start(self, node: int) -> int:
        """Start a process on a node whose launcher is connected, and return its number.

        Raises:
            OSError: if it is this node, and the command cannot be executed.
        """
        first = self._first_numbers[node]
        if first:
            number = first.popleft()
        else:
            number, self._next_number = self._next_number, self._next_number + 1
        self._nodes[number], self._starts[number] = node, time.monotonic()
        if node == LOCAL:
            self._start(number)
        else:
            assert self._server is not None
            self._remote[node].running[number] = None
            self._server.send(node, StartProcess(number))
        return number

    def kill(self, number: int) -> None:
        """Kill a process, if it runs."""
        self.killed.add(number)
        node = self._nodes[number]
        if node == LOCAL:
            self._workers.kill(number)
        elif self._server is not None:
            self._server.send(node, KillProcess(number))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes that run."""
        self._workers.signal(number)
        for node in self._remote:
            assert self._server is not None
            self._server.send(node, SignalProcesses(number))

    def poll(self) -> list[Exit]:
        """Return the processes that have ended since the last call. It also sends heartbeats to the other launchers."""
        exits = self._workers.poll()
        if self._server is not None:
            now = time.monotonic()
            if now - self._heartbeat > HEARTBEAT_INTERVAL:
                self._heartbeat = now
                for node in self._remote:
                    self._server.send(node, Heartbeat())
            for node, event in self._server.poll():
                exits += self._handle(node, event)
        self.exits += exits
        return exits

    def _handle(self, node: int, event: NodeEvent) -> list[Exit]:
        """Return the processes that have ended according to an event of a node."""
        assert self._server is not None
        if isinstance(event, NodeHello):
            self._remote[node] = _RemoteNode()
            self._new_nodes.append(node)
            return []
        if (remote := self._remote.get(node)) is None:
            return []  # it was lost before this message was read
        if isinstance(event, NodeLost):
            del self._remote[node]
            self._new_nodes = [each for each in self._new_nodes if each != node]
            self._report(f"node {node} is lost: {event.reason}")
            return [self._exit(number, -1, -signal.SIGKILL, lost_node=node) for number in remote.running]
        if isinstance(event, Heartbeat):
            stopped = event.stopped.split(",")
            now = time.monotonic()
            remote.stopped = {
                number: remote.stopped.get(number, now) for number in remote.running if str(number) in stopped
            }
            return []
        if event.process not in remote.running:
            return []  # it was started by a command that came after the loss of its node
        if abs(event.code) > _MOST_CODE:
            self._server.drop(node, f"its launcher has reported exit code {event.code} of process {event.process}")
            return []
        del remote.running[event.process]
        remote.stopped.pop(event.process, None)
        self._errors[event.process] = event.errors.splitlines()
        return [self._exit(event.process, event.pid, event.code, by_launcher=event.by_launcher)]

    def _exit(self, number: int, pid: int, code: int, by_launcher: bool = False, lost_node: int | None = None) -> Exit:
        return Exit(number, pid, code, time.monotonic() - self._workers.start_time, by_launcher, lost_node)


def node_hello(options: LaunchOptions) -> NodeHello:
    """Return the description of a launcher, of which all but the node must be equal on all nodes."""
    return NodeHello(
        os.environ.get(environment.TOKEN, ""),
        PROTOCOL_VERSION,
        options.node_rank,
        options.nodes,
        options.common,
    )
