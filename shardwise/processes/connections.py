"""Connections: the TCP server of the control channel, which exchanges lines with strangers and members.

Any client that can reach the port can connect and send bytes. The server therefore limits the unauthenticated
connections in number, in time and in bytes, and reserves descriptors for members. An error of one connection does not
end the server: it drops the connection, and logs the reason.
"""

import errno
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, final

from shardwise.base.lazy import lazy_module
from shardwise.processes.protocol import (
    HELLO_LIMIT,
    LINE_LIMIT,
    LineBuffer,
    Message,
    ProtocolError,
    Refused,
    decode,
    encode,
    join_address,
)

resource: Any = lazy_module("resource")  # Windows does not have it

TICK = 0.2  # seconds between two checks of deadlines
_HELLO_TIME = 10.0  # seconds for the first line of a connection, and for a refused peer to read the reason
_UNSENT_LIMIT = 2 * LINE_LIMIT  # the most bytes to buffer for a member that does not read
# Unauthenticated connections: the most, and the fewest to allow if descriptors are scarce.
_MOST_STRANGERS, _FEWEST_STRANGERS = 256, 4
# Descriptors per member: its connection, its connection to XLA's service, and pipes and log files of the launcher.
_DESCRIPTORS_PER_MEMBER = 8
_SPARE_DESCRIPTORS = 32
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG_PERIOD, _LOGS_PER_PERIOD = 60.0, 20  # seconds, and the most dropped connections to log in this time

_log = logging.getLogger("shardwise")


class Connection:
    """One TCP connection. It belongs to a stranger until `authenticate`."""

    def __init__(self, connection: socket.socket, peer: str):
        self.socket = connection
        self.peer = peer
        self.lines = LineBuffer(HELLO_LIMIT)
        self.unsent = bytearray()
        self.opened = self.last_seen = time.monotonic()
        self.is_authenticated = False
        self.closing = False  # close when everything is sent

    def authenticate(self) -> None:
        """Record that the peer has sent the token, so that it may send longer lines and stay."""
        self.is_authenticated = True
        self.lines.limit = LINE_LIMIT


C = TypeVar("C", bound=Connection)


@final
class Connections(Generic[C]):
    """A TCP server that receives and sends messages, in the thread that calls `serve_once`.

    Args:
        listener: a socket that listens.
        members: the number of members for which to reserve descriptors.
        create: creates the object of a new connection.
        receive: called with each received message. An exception drops the connection.
        on_drop: called with a dropped connection and the reason, before it is closed.
        on_close: called after a connection is closed.

    Raises:
        OSError: if the limit on descriptors is too low for the members.
    """

    def __init__(
        self,
        listener: socket.socket,
        members: int,
        create: Callable[[socket.socket, str], C],
        receive: Callable[[C, Message], None],
        on_drop: Callable[[C, str], None],
        on_close: Callable[[C], None],
    ):
        self._listener = listener
        self._most_strangers = _reserve_descriptors(members)
        self._create, self._receive, self._on_drop, self._on_close = create, receive, on_drop, on_close
        self._all: set[C] = set()
        self._strangers: dict[C, None] = {}  # in order of arrival
        self._drop_log = _DropLog()
        self._pause_end = 0.0  # until then, no connection is accepted
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._waker = socket.socketpair()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def __contains__(self, connection: C | None) -> bool:
        return connection in self._all

    @property
    def have_unsent(self) -> bool:
        """Whether there are unsent bytes."""
        return any(connection.unsent for connection in self._all)

    def wake(self) -> None:
        """Wake `serve_once` in another thread, so that it returns."""
        with suppress(OSError):
            self._waker.send(b"x")

    def serve_once(self) -> None:
        """Exchange bytes with the connections that are ready. Wait briefly if none is."""
        if self._pause_end and time.monotonic() > self._pause_end:
            self._pause_end = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        has_newcomer = False
        for key, mask in self._selector.select(TICK):
            if key.fileobj is self._listener:
                has_newcomer = True
            elif key.fileobj is self._wakeup:
                self._wakeup.recv(1 << 10)  # otherwise it would stay readable, and the loop would spin
            else:
                self._exchange(key.data, mask)
        if has_newcomer:  # last, so that a stranger whose first line has arrived is not dropped for a newcomer
            self._accept()
        self._drop_late_strangers()

    def send(self, connection: C, message: Message) -> None:
        """Send a message to a connection that is open."""
        connection.unsent += encode(message)
        if len(connection.unsent) > _UNSENT_LIMIT:
            self.drop(connection, f"it does not read: {len(connection.unsent)} bytes are not sent")
            return
        self._flush(connection)

    def refuse(self, connection: C, refusal: Refused) -> None:
        """Send a refusal, and close the connection."""
        self._drop_log.warn(f"The coordinator refused a process from {connection.peer}: {refusal.reason}")
        connection.closing = True
        self.send(connection, refusal)

    def drop(self, connection: C, reason: str) -> None:
        """Close a connection that does not follow the protocol."""
        if connection in self._all:
            self._drop_log.warn(f"The coordinator dropped a connection from {connection.peer}: {reason}")
            self._on_drop(connection, reason)
            self.close(connection)

    def close(self, connection: C) -> None:
        """Close a connection, if it is open."""
        if connection not in self._all:
            return
        self._all.discard(connection)
        self._strangers.pop(connection, None)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._on_close(connection)

    def close_all(self) -> None:
        """Close the listener and all connections, without a message to the peers."""
        self._selector.close()
        connections = [connection.socket for connection in self._all]
        for opened in (*connections, self._listener, self._wakeup, self._waker):
            opened.close()

    def _accept(self) -> None:
        try:
            accepted, peer = self._listener.accept()
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                self._free_descriptors(error)
            return
        with suppress(OSError):  # the peer may be gone
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setblocking(False)
        connection = self._create(accepted, join_address(*peer[:2]))
        self._all.add(connection)
        self._strangers[connection] = None
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        self._exchange(connection, selectors.EVENT_READ)  # a member sends its first line at once
        while len(self._strangers) > self._most_strangers:
            self._turn_away(next(iter(self._strangers)), "too many connections that have not sent a first line")

    def _turn_away(self, stranger: C, reason: str) -> None:
        """Drop a stranger to make room for others. If it is a slow member, it tries again."""
        with suppress(OSError):
            stranger.socket.send(encode(Refused("busy", reason)))
        self.drop(stranger, reason)

    def _free_descriptors(self, error: OSError) -> None:
        """Drop strangers and pause accepting, because the listener stays readable and the loop would spin."""
        self._drop_log.warn(f"The coordinator cannot accept a connection: {error.strerror}")
        for stranger in list(self._strangers)[: len(self._strangers) // 2 + 1]:
            self._turn_away(stranger, "this process has too many open files")
        self._selector.unregister(self._listener)
        self._pause_end = time.monotonic() + TICK

    def _drop_late_strangers(self) -> None:
        latest = time.monotonic() - _HELLO_TIME
        for connection in [stranger for stranger in self._strangers if stranger.opened < latest]:
            missing = "it did not read its refusal" if connection.closing else "no message"
            self.drop(connection, f"{missing} within {_HELLO_TIME:.0f} s")

    def _exchange(self, connection: C, mask: int) -> None:
        """Read from a connection and write to it, as far as it is ready."""
        try:
            if mask & selectors.EVENT_WRITE and connection in self._all:
                self._flush(connection)
            if mask & selectors.EVENT_READ and connection in self._all:
                self._read(connection)
        except ProtocolError as error:
            self.drop(connection, str(error))
        except Exception as error:  # an error of one connection must not end the others
            _log.exception("The coordinator cannot handle a message from %s", connection.peer)
            self.drop(connection, f"a message that the coordinator cannot handle: {error!r}")

    def _read(self, connection: C) -> None:
        try:
            data = connection.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close(connection)
            return
        connection.last_seen = time.monotonic()
        for line in connection.lines.add(data):
            if connection not in self._all or connection.closing:
                return
            self._receive(connection, decode(line))
            if connection.is_authenticated:
                self._strangers.pop(connection, None)

    def _flush(self, connection: C) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
            del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            connection.unsent.clear()  # the receive path detects the end of the connection
        if connection.closing and not connection.unsent:
            self.close(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, events, connection)


@final
class _DropLog:
    """Logs only the first warnings of each minute, because a flood of connections must not fill a disk."""

    def __init__(self) -> None:
        self._start = -_LOG_PERIOD
        self._count = 0

    def warn(self, text: str) -> None:
        now = time.monotonic()
        if now - self._start >= _LOG_PERIOD:
            if self._count > _LOGS_PER_PERIOD:
                _log.warning("The coordinator dropped %d other connections", self._count - _LOGS_PER_PERIOD)
            self._start, self._count = now, 0
        self._count += 1
        if self._count <= _LOGS_PER_PERIOD:
            _log.warning("%s", text)
            if self._count == _LOGS_PER_PERIOD:
                _log.warning("The coordinator logs no more dropped connections for %.0f s", _LOG_PERIOD)


def _reserve_descriptors(members: int) -> int:
    """Raise the limit on open files if the members need it, and return how many strangers fit in the rest.

    Raises:
        OSError: if the limit cannot be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit, highest = (float("inf") if each == resource.RLIM_INFINITY else each for each in (soft, hard))
    needed = _open_descriptors() + members * _DESCRIPTORS_PER_MEMBER
    if needed + _SPARE_DESCRIPTORS > limit:
        limit = min(highest, needed + _SPARE_DESCRIPTORS + _MOST_STRANGERS)
        if limit < needed + _FEWEST_STRANGERS:
            raise OSError(
                errno.EMFILE,
                f"the coordinator of {members} processes needs {needed + _FEWEST_STRANGERS} open files, and the limit "
                f"is {highest}: raise it, with `ulimit -Hn`",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), hard))
    return int(min(_MOST_STRANGERS, max(_FEWEST_STRANGERS, limit - needed - _SPARE_DESCRIPTORS)))


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return _SPARE_DESCRIPTORS
