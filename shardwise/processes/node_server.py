"""NodeServer: the server of the launcher that leads a job of several nodes, for the launchers of the other nodes.

The launcher of node 0 decides which processes run and which ranks they have. Each other launcher connects to it with
the secret of the job (`node_link.py`), starts and ends the processes of its node as it is told, and reports their ends.
A node whose connection closes, or which is silent for too long, is lost with all of its processes.
"""

import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import final

from shardwise.processes.connections import Connection, Connections
from shardwise.processes.coordinator import listen
from shardwise.processes.protocol import (
    PROTOCOL_VERSION,
    Heartbeat,
    Message,
    NodeHello,
    NodeWelcome,
    ProcessEnded,
    ProtocolError,
    Refused,
    join_address,
    tokens_match,
)

HEARTBEAT_INTERVAL = 1.0  # seconds between two messages of a launcher
SILENCE = 30.0  # seconds without a message after which the other launcher is lost
# Seconds between two checks of the silence from which this launcher itself was suspended, and not the other one.
SUSPENDED_TIME = 5.0
_END_TIME = 5.0  # seconds for the last messages to be sent


@final
@dataclass(frozen=True)
class NodeLost:
    """The launcher of a node has no connection any more, and why."""

    reason: str


NodeEvent = NodeHello | ProcessEnded | Heartbeat | NodeLost


@final
class _Connection(Connection):
    """One TCP connection, which belongs to a launcher once its `NodeHello` is accepted."""

    def __init__(self, connection: socket.socket, peer: str):
        super().__init__(connection, peer)
        self.node = -1
        self.lost_reason = "the connection of its launcher closed"


@final
class NodeServer:
    """The server in the launcher of node 0, in a thread.

    Args:
        host: the address to listen on.
        port: the port; 0 for any.
        expected: the hello of this launcher. The others must send the same secret and options.
        welcome: the answer to a launcher that takes part.

    Attributes:
        address: the `host:port` that it listens on.

    Raises:
        ValueError: if the host cannot be resolved.
        OSError: if the port is in use, or the limit on open files is too low.
    """

    def __init__(self, host: str, port: int, expected: NodeHello, welcome: NodeWelcome):
        self._expected, self._welcome = expected, welcome
        self._nodes: dict[int, _Connection] = {}
        self._events: deque[tuple[int, NodeEvent]] = deque()
        self._commands: deque[tuple[int, Message | NodeLost]] = deque()
        self._is_stopping = False
        self._last_check = time.monotonic()
        listener = listen(host, port, is_option=True)
        self.address = join_address(*listener.getsockname()[:2])
        self._connections: Connections[_Connection] = Connections(
            listener, expected.nodes, _Connection, self._receive, self._note_reason, self._forget
        )
        self._thread = threading.Thread(target=self._serve, name="shardwise nodes", daemon=True)
        self._thread.start()

    def poll(self) -> list[tuple[int, NodeEvent]]:
        """Return what has happened since the last call, with the rank of the node.

        A `NodeHello` is a node that takes part from now on, and `NodeLost` the end of one.
        """
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def send(self, node: int, message: Message) -> None:
        """Send a message to the launcher of a node, if it is connected."""
        self._commands.append((node, message))
        self._connections.wake()

    def drop(self, node: int, reason: str) -> None:
        """Close the connection of a node, whose launcher does not follow the protocol."""
        self._commands.append((node, NodeLost(reason)))
        self._connections.wake()

    def stop(self) -> None:
        """Close all connections when the messages are sent."""
        self._is_stopping = True
        self._connections.wake()
        self._thread.join()

    def _serve(self) -> None:
        while not self._is_stopping:
            self._connections.serve_once()
            self._execute_commands()
            self._drop_silent()
        self._execute_commands()
        deadline = time.monotonic() + _END_TIME
        while self._connections.have_unsent and time.monotonic() < deadline:
            self._connections.serve_once()
        self._connections.close_all()

    def _execute_commands(self) -> None:
        while self._commands:
            node, command = self._commands.popleft()
            if (connection := self._nodes.get(node)) is None:
                continue
            if isinstance(command, NodeLost):
                self._connections.drop(connection, command.reason)
            else:
                self._connections.send(connection, command)

    def _drop_silent(self) -> None:
        now, last = time.monotonic(), self._last_check
        self._last_check = now
        for connection in list(self._nodes.values()):
            if now - last > SUSPENDED_TIME:
                connection.last_seen = now
            elif now - connection.last_seen > SILENCE:
                self._connections.drop(connection, f"its launcher has been silent for {SILENCE:.0f} s")

    def _receive(self, connection: _Connection, message: Message) -> None:
        if connection.is_authenticated:
            if not isinstance(message, ProcessEnded | Heartbeat):
                raise ProtocolError(f"{type(message).__name__} from the launcher of node {connection.node}")
            self._events.append((connection.node, message))
            return
        if not isinstance(message, NodeHello):
            raise ProtocolError(f"{type(message).__name__} instead of NodeHello")
        if refusal := self._refusal(message):
            self._connections.refuse(connection, refusal)
            return
        connection.authenticate()
        connection.node = message.node
        self._nodes[message.node] = connection
        self._events.append((message.node, message))
        self._connections.send(connection, self._welcome)

    def _refusal(self, hello: NodeHello) -> Refused | None:
        """Return why a launcher cannot take part; None if it can."""
        expected = self._expected
        if not tokens_match(hello.token, expected.token):
            reason = "SHARDWISE_COORDINATOR_TOKEN differs: set the same secret on all nodes"
            return Refused("RendezvousError", reason)
        if hello.protocol != PROTOCOL_VERSION:
            versions = f"{hello.protocol} and {PROTOCOL_VERSION}"
            return Refused("RendezvousError", f"the versions of Shardwise differ (control channel {versions})")
        for option, ours in {"--nodes": str(expected.nodes), **expected.options}.items():
            theirs = str(hello.nodes) if option == "--nodes" else hello.options.get(option, "not set")
            if theirs != ours:
                return Refused("ValueError", f"{option} is {ours} on node 0, and {theirs} on this one")
        if not 0 < hello.node < expected.nodes:
            return Refused("ValueError", f"there is no node {hello.node} of {expected.nodes} nodes besides node 0")
        if hello.node in self._nodes:
            return Refused("busy", f"another launcher of node {hello.node} is connected: give each its own --node-rank")
        return None

    def _note_reason(self, connection: _Connection, reason: str) -> None:
        connection.lost_reason = reason

    def _forget(self, connection: _Connection) -> None:
        if connection.node >= 0 and self._nodes.get(connection.node) is connection:
            del self._nodes[connection.node]
            self._events.append((connection.node, NodeLost(connection.lost_reason)))
