"""Writer: writes text to a stream in a thread, so that a full pipe does not block the launcher."""

import os
import select
import threading
from contextlib import suppress
from typing import TextIO, final

# The characters that may wait to be written. The launcher reads no output of processes while there are more, so
# that processes that print faster than somebody reads wait, as they would without the launcher.
MAX_PENDING = 2**20
_RETRY_INTERVAL = 0.1  # seconds between two attempts to write to a stream that another process made non-blocking


@final
class Writer:
    """Writes text to a stream, in order and in a thread.

    Args:
        stream: the stream.
    """

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.error: OSError | None = None  # why the stream cannot be written any more
        self._pending: list[str] = []
        self._size = 0  # of the pending text and of the text that the thread writes now
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="shardwise writer", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether so much text waits that no more should be added now."""
        return self._size > MAX_PENDING

    def write(self, text: str) -> None:
        """Add text, without waiting."""
        with self._changed:
            if self.error is None:
                self._pending.append(text)
                self._size += len(text)
                self._changed.notify_all()

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until it is not full. Return False if `timeout` seconds pass before."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.is_full, timeout)

    def flush(self, timeout: float) -> bool:
        """Wait until all text is written, or cannot be. Return False if `timeout` seconds pass before."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._size, timeout)

    def close(self) -> None:
        """End the thread when it has written all text. Do not wait for it."""
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
        # Without the stream, whose lock would be held while the pipe is full.
        data = memoryview(text.encode(self.stream.encoding, "backslashreplace"))
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [], _RETRY_INTERVAL)
