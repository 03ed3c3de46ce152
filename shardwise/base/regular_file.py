"""Open regular files only, for files that another party may have replaced.

`open` waits for ever on a FIFO without a writer, and a device such as /dev/zero has no end.
"""

import os
import stat
from io import FileIO

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Windows has neither FIFOs nor this flag, and translates line ends without O_BINARY.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class NotRegularFileError(OSError):
    """A path names a directory, a FIFO, a socket or a device where a file is expected."""


def check_regular_mode(mode: int, path: str | os.PathLike[str]) -> None:
    """Raise NotRegularFileError if `mode`, of the result of `os.stat`, is not of a regular file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")
        raise NotRegularFileError(f"{os.fspath(path)} cannot be read: Is {kind}, not a regular file")


def open_regular_file(path: str | os.PathLike[str]) -> FileIO:
    """Open a file to read bytes, without a buffer.

    Raises:
        NotRegularFileError: if it is not a regular file.
        OSError: if it cannot be opened.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        check_regular_mode(os.fstat(descriptor).st_mode, path)
        return FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular_file(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a file.

    Raises:
        NotRegularFileError: if it is not a regular file.
        ValueError: if it has more than `limit` bytes. Nothing is allocated then.
        OSError: if it cannot be read.
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"{os.fspath(path)} has more than {limit:,} bytes")
        parts = []
        while size > 0 and (part := file.read(size)):  # a file that shrinks meanwhile has fewer bytes
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
