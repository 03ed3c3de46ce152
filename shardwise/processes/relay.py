"""Relay: passes bytes between XLA's client in this process and XLA's coordination service.

XLA aborts a process at once when its connection to the service closes. The relay keeps the client's connection open
when the service is lost, so that Python can raise an exception, and can disconnect the client in an orderly way. The
client reaches it by a Unix socket in a folder that only this user can open.
"""

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import final


@final
class Relay:
    """A Unix socket at `address`, whose one connection is relayed to a TCP address.

    Args:
        host: the host of XLA's coordination service.
        port: its port.
        on_loss: called in a thread of the relay if the connection to the service ends before `close`.

    Raises:
        OSError: if the service cannot be reached.
    """

    def __init__(self, host: str, port: int, on_loss: Callable[[], None]):
        self._on_loss = on_loss
        self._closed = False
        self._service = socket.create_connection((host, port))
        self._service.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._folder = Path(tempfile.mkdtemp(prefix="shardwise-"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._client: socket.socket | None = None
        path = str(self._folder / "xla")
        self._listener.bind(path)
        self._listener.listen(1)
        self.address = f"unix:{path}"
        threading.Thread(target=self._serve, name="shardwise relay", daemon=True).start()

    def _serve(self) -> None:
        try:
            self._client, _ = self._listener.accept()
        except OSError:
            return  # closed before XLA connected
        finally:
            self._listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        threading.Thread(target=self._receive, args=(self._client,), name="shardwise relay", daemon=True).start()
        _copy(self._client, self._service)
        with suppress(OSError):
            self._service.shutdown(socket.SHUT_WR)

    def _receive(self, client: socket.socket) -> None:
        _copy(self._service, client)
        if not self._closed:
            self._on_loss()

    def close(self) -> None:
        """Close both connections: calls of XLA's client fail from now on. A connected client aborts the process."""
        self._closed = True
        for each in (self._listener, self._service, self._client):
            if each is not None:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # ends the threads, which close nothing

    def abandon(self) -> None:
        """Close the descriptors of a forked child, which leaves the connections of its parent open."""
        for each in (self._listener, self._service, self._client):
            if each is not None:
                with suppress(OSError):
                    os.close(each.detach())


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one of the connections ends."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
