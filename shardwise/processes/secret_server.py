"""SecretServer: a TCP server that serves each connection in a thread, if it starts with the server's secret."""

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
_MOST_CONNECTIONS = 256
_PAUSE = 0.2  # seconds until the next attempt to accept a connection, if this process has too many open files

_log = logging.getLogger("shardwise")


@final
class SecretServer:
    """A server for processes that know its secret.

    Args:
        host: the address to listen on.
        port: the port; 0 for any.
        silence: the seconds without a byte after which a connection is closed.
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
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
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
            self._connections.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                self._connections.release()
                if self._is_closed:
                    return
                if not has_warned:
                    _log.warning("the server of %ss cannot accept a connection, and tries again: %s", self._name, error)
                has_warned = True
                time.sleep(_PAUSE)
                continue
            threading.Thread(target=self._verify, args=(connection,), name=self._name, daemon=True).start()

    def _verify(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(self._silence)
                if hmac.compare_digest(receive(connection, _SECRET_BYTES), self.secret):
                    self._serve(connection)
        finally:
            self._connections.release()


def receive(connection: socket.socket, nbytes: int) -> bytearray:
    """Return this many received bytes."""
    data = bytearray(nbytes)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError("the other process has closed the connection")
        view = view[count:]
    return data
