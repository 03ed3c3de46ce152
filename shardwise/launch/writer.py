"""Writer: writes strings to a stream in a thread, so that a full pipe does not block the launcher."""

import os
import select
import threading
from contextlib import suppress
from typing import TextIO, final

# The most characters to buffer. While there are more, the launcher does not read the output of processes, so that
# processes that print faster than the output is read block, as they would without the launcher.
MAX_PENDING = 2**20
_RETRY_INTERVAL = 0.1  # seconds between two attempts to write to a stream that another process made non-blocking


@final
class Writer:
    """Writes strings to a stream, in order and in a thread.

    Args:
        stream: the stream.
    """

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.error: OSError | None = None  # the error after which the stream cannot be written
        self._pending: list[str] = []
        self._size = 0  # the characters that are pending or being written
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="shardwise writer", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full, so that no more should be added."""
        return self._size > MAX_PENDING

    def write(self, text: str) -> None:
        """Add a string, without waiting."""
        with self._changed:
            if self.error is None:
                self._pending.append(text)
                self._size += len(text)
                self._changed.notify_all()

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until the buffer is not full. Return False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.is_full, timeout)

    def flush(self, timeout: float) -> bool:
        """Wait until everything is written, or cannot be. Return False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._size, timeout)

    def close(self) -> None:
        """Let the thread end when it has written everything. Do not wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                text, self._pending = "".join(self._pending), []
            try:
                self._put(text)
            except OSError as error:
                self.error = error
            except ValueError as error:  # the stream is closed
                self.error = OSError(str(error))
            with self._changed:
                if self.error is not None:
                    self._pending, self._size = [], len(text)
                self._size -= len(text)
                self._changed.notify_all()

    def _put(self, text: str) -> None:
        descriptor = None
        with suppress(OSError):  # a stream in memory has none
            descriptor = self.stream.fileno()
        if descriptor is None:
            self.stream.write(text)
            self.stream.flush()
            return
        # Bypass the stream object, whose lock would be held while the pipe is full.
        data = memoryview(text.encode(self.stream.encoding, "backslashreplace"))
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [], _RETRY_INTERVAL)
