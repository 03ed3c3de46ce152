"""Relay: a proxy between XLA's client in this process and XLA's coordination service.

XLA aborts a process at once when its connection to the service closes. The relay keeps the client's connection open
when the service is lost, so that Python can raise an exception and disconnect the client in an orderly way. It is a
separate process (`relay_process.py`), because some calls of XLA wait for the service while they hold the GIL, so a
thread could not serve them. The client connects to it by a Unix socket in a folder that only this user can open.
"""

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import final

from shardwise.processes import relay_process

_END_TIME = 5.0  # seconds for the process to end


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
        self._folder = Path(tempfile.mkdtemp(prefix="shardwise-"))
        path = str(self._folder / "xla")
        # A separate session, so that Ctrl-C in a terminal does not end it before this process.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", relay_process.__file__, host, str(port), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer != "ready":
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise OSError(f"XLA's coordination service at {host}:{port} cannot be reached: {answer or 'no answer'}")
        self.address = f"unix:{path}"
        threading.Thread(target=self._watch, name="shardwise relay", daemon=True).start()

    def _watch(self) -> None:
        """Wait until the connection to the service ends."""
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            self._process.stdout.readline()
        if not self._closed:
            self._on_loss()

    def close(self) -> None:
        """Close both connections, so that calls of XLA's client fail. A connected client aborts the process."""
        self._closed = True
        self.abandon()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIME)
        shutil.rmtree(self._folder, ignore_errors=True)

    def abandon(self) -> None:
        """Close the standard input of the relay's process; in a forked child, the child's copy of it."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
