"""SecretServer: a TCP server that serves each connection in a thread, if it starts with the server's secret.

Any client that can reach the port can connect. A connection without the secret is closed after a deadline, and the
oldest one is closed when there are too many, so that strangers take no place from the processes that know the secret.
"""

import hmac
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

from shardwise.processes.protocol import join_address

_SECRET_BYTES = 16
_SECRET_TIME = 10.0  # seconds from the start of a connection until the secret must be there
_MOST_CONNECTIONS = 256  # served at the same time; others wait
_MOST_STRANGERS = 256  # connections that have not sent the secret; beyond them, the oldest one is closed
_PAUSE = 0.2  # seconds until the next attempt to accept a connection, if this process has too many open files

_log = logging.getLogger("shardwise")


@final
class SecretServer:
    """A server for processes that know its secret.

    Args:
        host: the address to listen on.
        port: the port; 0 for any.
        silence: the seconds without a byte after which a connection that has sent the secret is closed.
        serve: called in a thread with each connection that has sent the secret. An OSError ends the connection.
        name: the name of the threads.

    Attributes:
        address: the `host:port` that it listens on.
        secret: the secret.
    """

    def __init__(self, host: str, port: int, silence: float, serve: Callable[[socket.socket], None], name: str):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self._silence, self._serve, self._name = silence, serve, name
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._strangers: dict[socket.socket, None] = {}  # in order of arrival
        self._lock = threading.Lock()
        self._is_closed = False
        self.address = join_address(*self._listener.getsockname()[:2])
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        threading.Thread(target=self._accept, name=f"{name}s", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._listener.close()

    def _accept(self) -> None:
        has_warned = False
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                if not has_warned:
                    _log.warning("the server of %ss cannot accept a connection, and tries again: %s", self._name, error)
                has_warned = True
                self._drop_strangers(_MOST_STRANGERS // 2)
                time.sleep(_PAUSE)
                continue
            with self._lock:
                self._strangers[connection] = None
            self._drop_strangers(_MOST_STRANGERS)
            threading.Thread(target=self._verify, args=(connection,), name=self._name, daemon=True).start()

    def _drop_strangers(self, most: int) -> None:
        """Close the oldest connections that have not sent the secret, until there are no more than `most`."""
        with self._lock:
            while len(self._strangers) > most:
                stranger = next(iter(self._strangers))
                del self._strangers[stranger]
                with suppress(OSError):
                    stranger.shutdown(socket.SHUT_RDWR)  # ends its thread, which closes it

    def _verify(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            try:
                sent = receive(connection, _SECRET_BYTES, time.monotonic() + _SECRET_TIME)
            finally:
                with self._lock:
                    self._strangers.pop(connection, None)
            if hmac.compare_digest(sent, self.secret):
                with self._places:
                    connection.settimeout(self._silence)
                    self._serve(connection)


def receive(connection: socket.socket, nbytes: int, deadline: float | None = None) -> bytearray:
    """Return this many received bytes.

    Args:
        connection: the connection, whose timeout limits the time between two of them.
        nbytes: the number of bytes.
        deadline: when all of them must be there, by the monotonic clock; None for no limit.

    Raises:
        OSError: if they do not arrive.
    """
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))  # 0 would make it non-blocking
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError("the other process has closed the connection")
        view = view[count:]
    return data
