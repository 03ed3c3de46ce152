"""Log file: the output of one process, up to the first write error."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, final


@final
class LogFile:
    """A log file. A write error does not fail the job: after the first error, nothing more is written.

    Args:
        path: the file; its folder is created.
        warn: called with a message if the file cannot be written.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]):
        self._path, self._warn = path, warn
        self._file: BinaryIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            self._stop(error)

    def write(self, data: bytes) -> None:
        """Append data, if the file can be written."""
        rest = memoryview(data)
        while self._file is not None and rest:
            try:
                rest = rest[self._file.write(rest) :]  # a part of it, if the disk is almost full
            except OSError as error:
                self._stop(error)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None

    def _stop(self, error: OSError) -> None:
        self.close()
        self._warn(f"the log file {self._path} cannot be written ({error.strerror}): the job continues without it")
