"""Roster: the processes of a program that recovers from failures, and their places in its generations.

A generation is a set of processes with a coordinator of its own. When one of its processes fails, all others leave it
and ask the launcher's roster for a place in the next one. Spare processes have asked before. The launcher decides who
gets which rank (`launch/elastic_attempt.py`).
"""

import logging
import secrets
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TypeVar, final

from shardwise.errors import RendezvousError
from shardwise.processes.connections import Connection, Connections
from shardwise.processes.coordinator import listen
from shardwise.processes.protocol import (
    LINE_LIMIT,
    PROTOCOL_VERSION,
    Assignment,
    LineBuffer,
    Message,
    ProtocolError,
    Refused,
    RoomQuery,
    RoomReply,
    Waiting,
    decode,
    encode,
    join_address,
    split_address,
    tokens_match,
)

_RETRY_INTERVAL = 0.1  # seconds between two attempts to reach the roster
_RETRY_TIME = 60.0  # seconds until a process without a connection to the roster gives up
_ROOM_TIME = 5.0  # seconds for the answer to a RoomQuery, for which the next snapshot would wait

_log = logging.getLogger("shardwise")

_Reply = TypeVar("_Reply", Assignment, RoomReply)


class RosterError(RendezvousError, section="several-processes"):
    """The roster cannot be reached, or refuses this process, which can then have no place in any generation."""


@final
class _Connection(Connection):
    """One TCP connection, of a process that waits or asks."""

    def __init__(self, connection: socket.socket, peer: str):
        super().__init__(connection, peer)
        self.waiting: Waiting | None = None


@final
class Roster:
    """The server in the launcher, in a thread.

    Args:
        processes: the number of processes for which to reserve descriptors.
        host: the address to listen on.

    Attributes:
        address: the `host:port` that it listens on.
        token: the secret that processes must send.
        has_room: whether more processes could take part than in the current generation.

    Raises:
        OSError: if the limit on open files is too low, or the host is not an address of this machine.
        ValueError: if the host cannot be resolved.
    """

    def __init__(self, processes: int, host: str = "127.0.0.1"):
        self.token = secrets.token_hex(16)
        self.has_room = False
        self._waiting: dict[int, _Connection] = {}  # number of the process → its connection
        self._answers: deque[tuple[_Connection, Assignment | Refused]] = deque()
        self._lock = threading.Lock()
        self._is_stopping = False
        listener = listen(host, 0, is_option=True)
        self.address = join_address(*listener.getsockname()[:2])
        self._connections: Connections[_Connection] = Connections(
            listener, processes, _Connection, self._receive, lambda *_: None, self._forget
        )
        self._thread = threading.Thread(target=self._serve, name="shardwise roster", daemon=True)
        self._thread.start()

    def waiting(self) -> dict[int, Waiting]:
        """Return the last messages of the processes that wait, by number."""
        with self._lock:
            return {number: each.waiting for number, each in self._waiting.items() if each.waiting is not None}

    def assign(self, number: int, assignment: Assignment) -> None:
        """Send a process that waits its place."""
        self._answer(number, assignment)

    def refuse(self, number: int, reason: str) -> None:
        """Tell a process that waits that it gets no place."""
        self._answer(number, Refused("RendezvousError", reason))

    def _answer(self, number: int, answer: Assignment | Refused) -> None:
        with self._lock:
            if (connection := self._waiting.pop(number, None)) is not None:
                self._answers.append((connection, answer))
        self._connections.wake()

    def stop(self) -> None:
        """Close all connections."""
        self._is_stopping = True
        self._connections.wake()
        self._thread.join()

    def _serve(self) -> None:
        while not self._is_stopping:
            self._connections.serve_once()
            self._send_answers()
        self._connections.close_all()

    def _send_answers(self) -> None:
        while self._answers:
            connection, answer = self._answers.popleft()
            if connection not in self._connections:
                continue
            if isinstance(answer, Refused):
                self._connections.refuse(connection, answer)
            else:
                self._connections.send(connection, answer)

    def _receive(self, connection: _Connection, message: Message) -> None:
        if not isinstance(message, (Waiting, RoomQuery)):
            raise ProtocolError(f"{type(message).__name__} instead of Waiting")
        if not tokens_match(message.token, self.token):
            self._refuse(connection, "the token is not that of the launcher: start the process with `shardwise launch`")
            return
        if message.protocol != PROTOCOL_VERSION:
            versions = f"{message.protocol} and {PROTOCOL_VERSION}"
            self._refuse(connection, f"the versions of Shardwise differ (control channel {versions})")
            return
        connection.authenticate()
        if isinstance(message, RoomQuery):
            self._connections.send(connection, RoomReply(self.has_room))
            return
        connection.waiting = message
        with self._lock:
            self._waiting[message.process] = connection

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self._connections.refuse(connection, Refused("RendezvousError", reason))

    def _forget(self, connection: _Connection) -> None:
        """Drop a process that has closed its connection."""
        number = -1 if connection.waiting is None else connection.waiting.process
        with self._lock:
            if self._waiting.get(number) is connection:
                del self._waiting[number]


def wait_for_place(address: str, message: Waiting) -> Assignment:
    """Ask the roster for a place, and wait for it, however long it takes.

    Raises:
        RosterError: if the roster cannot be reached, or refuses the process.
    """
    if (place := _ask(address, message, Assignment, _RETRY_TIME, None)) is None:
        raise RosterError(f"the launcher's roster at {address} cannot be reached: has the launcher ended?")
    return place


def has_room(address: str, message: RoomQuery) -> bool:
    """Return whether the generation should end at the next snapshot, so that more processes can join.

    Without an answer, as from a stopped launcher, the generation continues: the next snapshot asks again.

    Raises:
        RosterError: if the roster refuses the process.
    """
    if (reply := _ask(address, message, RoomReply, _ROOM_TIME, _ROOM_TIME)) is None:
        _log.warning("the launcher's roster at %s has not answered within %.0f s", address, _ROOM_TIME)
        return False
    return reply.has_room


def _ask(
    address: str, message: Waiting | RoomQuery, reply_type: type[_Reply], retry_time: float, reply_time: float | None
) -> _Reply | None:
    """Send a message, and return the reply. If the connection breaks, ask again.

    Args:
        address: the address of the roster.
        message: the message.
        reply_type: the type of the reply.
        retry_time: the seconds in which to try again; if the reply has no limit, since the last message was sent.
        reply_time: the seconds to wait for the reply; None for no limit.

    Returns:
        The reply; None if there is none in time.

    Raises:
        RosterError: if the roster refuses the process.
    """
    deadline = time.monotonic() + retry_time
    while True:
        with suppress(OSError, ProtocolError):
            target = split_address(address, "the address of the roster")
            with socket.create_connection(target, timeout=reply_time) as connection:
                connection.sendall(encode(message))
                if reply_time is None:
                    deadline = time.monotonic() + retry_time
                reply = decode(_receive_line(connection))
            if isinstance(reply, reply_type):
                return reply
            if isinstance(reply, Refused) and reply.error != "busy":
                raise RosterError(f"the launcher's roster at {address} refuses this process: {reply.reason}")
        if time.monotonic() > deadline:
            return None
        time.sleep(_RETRY_INTERVAL)


def _receive_line(connection: socket.socket) -> bytes:
    lines: list[bytes] = []
    buffer = LineBuffer(LINE_LIMIT)
    while not lines:
        data = connection.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the roster has closed the connection")
        lines = buffer.add(data)
    return lines[0]
