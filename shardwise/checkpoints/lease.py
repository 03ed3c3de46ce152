"""Lease: marks a save in flight, so that other programs do not delete its files as the remains of a dead save.

The first process of a save renews the lease until the save ends. On a file system, the lease is a locked file: the
system releases the lock when the process dies, so that a program on the same machine detects at once that the lease has
ended. Locks do not work across machines on all file systems, and object stores have none; there, a lease ends by its
age.
"""

import logging
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from shardwise.base.lazy import lazy_module
from shardwise.errors import CheckpointError

fcntl: Any = lazy_module("fcntl")  # Windows does not have it

_RENEWAL = 10.0  # seconds between two renewals
_FILE_AGE = 600.0  # seconds without renewal after which a lease on a file system has ended, by its server's clock
_OBJECT_AGE = 3600.0  # by the clocks of two machines, which differ by less than 15 minutes, as S3 requires
_ATTEMPTS = 10  # to create a lease
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger("shardwise")


class Lease(ABC):
    """A lease of this process; a context in which it is renewed."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stop, name=f"renew {self}", daemon=True)

    def __enter__(self) -> Self:
        self._take()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._release()

    def _renew_until_stop(self) -> None:
        while not self._stop.wait(_RENEWAL):
            try:
                self._renew()
            except (OSError, CheckpointError) as error:  # the next renewal may succeed
                _log.warning("%s cannot be renewed: %s", self, error)

    def check(self) -> None:
        """Raise an error if the lease has ended.

        Raises:
            CheckpointError: if another program has ended it and may have deleted files of this save.
        """
        if not self._is_held():
            raise CheckpointError(
                f"{self} is gone: another program found that it was not renewed for too long, and deleted the files of "
                "this save. Earlier checkpoints are unchanged."
            )

    @abstractmethod
    def __str__(self) -> str:
        """Return the path or URL of the lease."""

    @abstractmethod
    def _take(self) -> None:
        """Create the lease. Raises CheckpointError if that fails."""

    @abstractmethod
    def _renew(self) -> None:
        """Renew the lease."""

    @abstractmethod
    def _is_held(self) -> bool:
        """Return whether the lease still exists."""

    @abstractmethod
    def _release(self) -> None:
        """Delete the lease."""


@final
class FileLease(Lease):
    """A lease on a file system: a file that this process locks."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = None  # the locked file
        super().__init__()

    def __str__(self) -> str:
        return str(self.path)

    def _take(self) -> None:
        for _ in range(_ATTEMPTS):
            try:
                self._create()
                return
            except FileNotFoundError as error:  # another manager has just deleted the new file
                failure: OSError = error
            except OSError as error:
                failure = error
                break
        raise CheckpointError(
            f"{self.path} cannot be created: {failure.strerror}. Choose a folder that this user may write to."
        ) from failure

    def _create(self) -> None:
        """Create the file, which appears with its lock and its contents."""
        new = self.path.with_name(f"{self.path.name}.new")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            is_locked = _try_lock(descriptor)
            os.write(descriptor, _machine())
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            new.unlink(missing_ok=True)
            raise
        if is_locked:
            self._descriptor = descriptor
        else:
            os.close(descriptor)  # Windows cannot rename open files
        try:
            os.rename(new, self.path)
        except OSError:
            self._unlock()
            new.unlink(missing_ok=True)
            raise

    def _renew(self) -> None:
        os.utime(self.path)

    def _is_held(self) -> bool:
        return self.path.exists()  # its name is unique

    def _release(self) -> None:
        with suppress(OSError):
            self.path.unlink()
        self._unlock()

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def has_file_lease_ended(path: Path, now: float) -> bool:
    """Return whether no process holds the lease at `path`. `now` is the time on the file system's clock."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:  # it is another user's
        return False
    try:
        if now - os.fstat(descriptor).st_mtime > _FILE_AGE:
            return True
        return os.read(descriptor, 1 << 10) == _machine() and _try_lock(descriptor) is True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool | None:
    """Try to lock a file. Return whether that succeeded; None if locks are not supported."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except (OSError, ImportError):  # some file systems have none
        return None


@final
class ObjectLease(Lease):
    """A lease on an object store: an object with the time of its last renewal.

    Args:
        name: its URL.
        read: returns its contents; None if it does not exist.
        write: writes its contents, or deletes it for None.
    """

    def __init__(self, name: str, read: Callable[[], bytes | None], write: Callable[[bytes | None], None]):
        self._name = name
        self._read = read
        self._write = write
        super().__init__()

    def __str__(self) -> str:
        return self._name

    def _take(self) -> None:
        self._write(str(time.time()).encode())

    def _renew(self) -> None:
        if self._is_held():
            self._take()

    def _is_held(self) -> bool:
        return self._read() is not None

    def _release(self) -> None:
        with suppress(CheckpointError):  # it ends by its age
            self._write(None)


def has_object_lease_ended(content: bytes | None) -> bool:
    """Return whether a listed lease has ended. Its content is None if its writer has just deleted it."""
    if content is None:  # perhaps after a commit
        return False
    try:
        return time.time() - float(content) > _OBJECT_AGE
    except ValueError:
        return True


def _machine() -> bytes:
    """Return an identifier of this machine. Processes on one machine see each other's locks."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:  # not Linux
        return socket.gethostname().encode()
