"""NodeLink: the connection of a node's launcher to the launcher of node 0, which leads the job (`node_server.py`)."""

import select
import socket
import time
from typing import final

from shardwise.errors import RendezvousError
from shardwise.processes.node_server import HEARTBEAT_INTERVAL, SILENCE, SUSPENDED_TIME
from shardwise.processes.protocol import (
    LINE_LIMIT,
    Heartbeat,
    JobEnded,
    KillProcess,
    LineBuffer,
    Message,
    NodeHello,
    NodeWelcome,
    ProtocolError,
    Refused,
    SignalProcesses,
    StartProcess,
    decode,
    encode,
    split_address,
)

_CONNECTION_TIME = 2.0  # seconds to connect, after which the caller tries again
_WELCOME_TIME = 5.0  # seconds for the answer to the hello
_SEND_TIME = 10.0  # seconds for a message to be sent

Command = StartProcess | KillProcess | SignalProcesses | JobEnded


@final
class NodeBusy(ConnectionError):
    """The launcher of node 0 refuses this one for now, as while another launcher of this node is connected."""


@final
class NodeLink:
    """A connection to the launcher of node 0, without a thread: `receive` returns what has arrived.

    Args:
        address: the `host:port` of the launcher of node 0.
        hello: the description of this launcher.

    Attributes:
        welcome: the answer.
        lost: why the connection has ended; "" while it is open.

    Raises:
        NodeBusy: if the launcher refuses this one for now: try again.
        OSError: if the launcher cannot be reached, or something else answers: try again.
        RendezvousError: if the launcher refuses this one.
    """

    def __init__(self, address: str, hello: NodeHello):
        self.lost = ""
        self._buffer = LineBuffer(LINE_LIMIT)
        self._messages: list[Message] = []
        self._socket = socket.create_connection(split_address(address, "--coordinator"), timeout=_CONNECTION_TIME)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(encode(hello))
            self.welcome = self._read_welcome(address)
        except ProtocolError as error:
            self._socket.close()
            raise ConnectionAbortedError(f"what listens on {address} is no launcher: {error}") from None
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(_SEND_TIME)
        self._poll = select.poll()  # `select.select` accepts no descriptor above 1023
        self._poll.register(self._socket, select.POLLIN)
        self._last_sent = self._last_received = self._last_check = time.monotonic()
        self._stopped = ""

    def _read_welcome(self, address: str) -> NodeWelcome:
        deadline = time.monotonic() + _WELCOME_TIME
        while not self._messages:
            if (seconds := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"no answer within {_WELCOME_TIME:.0f} s")
            self._socket.settimeout(seconds)
            self._read()
        answer = self._messages.pop(0)
        if isinstance(answer, Refused) and answer.error == "busy":
            raise NodeBusy(f"the launcher of node 0 at {address} refuses this one for now: {answer.reason}")
        if isinstance(answer, Refused):
            raise RendezvousError(f"the launcher of node 0 at {address} refuses this one: {answer.reason}")
        if not isinstance(answer, NodeWelcome):
            raise ProtocolError(f"{type(answer).__name__} instead of NodeWelcome")
        return answer

    def _read(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the launcher of node 0 has closed the connection")
        self._messages += map(decode, self._buffer.add(data))

    def send(self, message: Message) -> None:
        """Send a message. A failure sets `lost`."""
        if self.lost:
            return
        try:
            self._socket.sendall(encode(message))
            self._last_sent = time.monotonic()
        except OSError as error:
            self._lose(f"a message could not be sent ({error})")

    def send_heartbeat(self, stopped: str) -> None:
        """Send the processes that are stopped, if they have changed, or if a heartbeat is due."""
        if stopped != self._stopped or time.monotonic() - self._last_sent > HEARTBEAT_INTERVAL:
            self._stopped = stopped
            self.send(Heartbeat(stopped))

    def receive(self) -> list[Command]:
        """Return the commands that have arrived.

        The end of the connection, or a message that is not valid, sets `lost`. The commands before it are returned.
        """
        try:
            while not self.lost and self._poll.poll(0):
                self._read()
                self._last_received = time.monotonic()
        except (OSError, ProtocolError) as error:
            self._lose(str(error))
        now, last = time.monotonic(), self._last_check
        self._last_check = now
        if now - last > SUSPENDED_TIME:
            self._last_received = now
        elif not self.lost and now - self._last_received > SILENCE:
            self._lose(f"the launcher of node 0 has been silent for {SILENCE:.0f} s")
        messages, self._messages = self._messages, []
        commands: list[Command] = []
        for message in messages:
            if isinstance(message, Command):
                commands.append(message)
            elif not isinstance(message, Heartbeat):
                self._lose(f"the launcher of node 0 sent {type(message).__name__}")
                break
        return commands

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._socket.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
