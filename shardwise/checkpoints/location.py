"""Location: a folder of a file system or a prefix of an object store, through TensorStore.

A checkpoint is written to a separate location and then committed: on a file system by a rename, on an object store by a
marker that is written last. Before that, no reader sees it. A lease (`lease.py`) protects the files of a save that is
not committed.
"""

import logging
import os
import re
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final
from urllib.parse import unquote

from shardwise.base.object_store import DRIVERS, ObjectStore, ObjectStoreError, ts
from shardwise.base.regular_file import NotRegularFileError, check_regular_mode, open_regular_file, read_regular_file
from shardwise.checkpoints.delete_tree import delete_tree
from shardwise.checkpoints.lease import (
    FileLease,
    Lease,
    ObjectLease,
    has_file_lease_ended,
    has_object_lease_ended,
)
from shardwise.errors import CheckpointError, CheckpointExists, CorruptCheckpoint

MANIFEST = "manifest.json"
MARKER = "committed"
_TOKEN = re.compile("[0-9a-f]{16}")  # the name of the prefix that holds the files of a checkpoint
_PARTIAL = ".partial-"  # prefix of the folders of checkpoints that are not committed
_LEASE = ".lease"  # suffix of the names of leases, after the name of the partial folder or the token
_SET_ASIDE = "set-aside-"  # prefix of the markers of checkpoints on object stores that were set aside

_log = logging.getLogger("shardwise")


def location_of(path: str | os.PathLike[str]) -> "Location":
    """Return the location of a path or a URL.

    Raises:
        CheckpointError: if TensorStore is not installed, or if the URL is not supported.
    """
    check_tensorstore()
    text = os.fspath(path)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Folder(Path(text).absolute())
    if scheme == "file":
        if not rest.startswith("/"):
            raise CheckpointError(f"{text!r} names a host or a relative path: write file:///path")
        return Folder(Path(unquote(rest)))
    if scheme not in DRIVERS:
        stores = " or ".join(f"{known}://" for known in DRIVERS)
        raise CheckpointError(f"{text!r}: checkpoints are on file systems, {stores}, not on {scheme}://")
    try:
        return ObjectPrefix(ObjectStore.from_url(text))
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def check_tensorstore() -> None:
    """Raise an error with installation instructions if TensorStore is not installed."""
    try:
        _ = ts.open
    except ImportError:
        raise CheckpointError(
            'checkpoints need TensorStore, which is not installed: pip install "shardwise[checkpoint]"'
        ) from None


class FolderSize(NamedTuple):
    """The number of files in a folder, their bytes, and the bytes of the largest file that is not a manifest."""

    files: int
    nbytes: int
    largest: int


class Location(ABC):
    """The location of a checkpoint, or of a folder of checkpoints.

    Attributes:
        read_bytes: the bytes that one read of an array requests. More bytes hide the latency of a store, but use
            memory.
        chunk_bytes: the largest chunk, in bytes. Each chunk has a checksum, which is read again after it is written.
    """

    read_bytes: int
    chunk_bytes: int

    @abstractmethod
    def __str__(self) -> str:
        """Return the path or URL."""

    @abstractmethod
    def child(self, name: str) -> "Location":
        """Return the location with this name inside this one."""

    @abstractmethod
    def kvstore(self) -> dict[str, Any]:
        """Return TensorStore's description of this location."""

    @abstractmethod
    def read(self, name: str, limit: int = 1 << 30) -> bytes | None:
        """Return a file's contents; None if there is no such file. Raises CorruptCheckpoint above `limit` bytes."""

    @abstractmethod
    def read_at(self, name: str, offsets: Sequence[int], size: int) -> bytes:
        """Return the concatenation of `size` bytes of a file from each of the offsets.

        Raises:
            CorruptCheckpoint: if there is no such file, or if it is too short.
        """

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file, and wait until it is on the disk or in the store."""

    @abstractmethod
    def children(self) -> list[str]:
        """Return the names of committed checkpoints directly inside this location, sorted."""

    @abstractmethod
    def data(self) -> "Location | None":
        """Return the location of the committed checkpoint's files; None if there is no checkpoint."""

    @abstractmethod
    def size(self) -> "FolderSize | None":
        """Return the number and the bytes of all files in it; None if unknown.

        Raises:
            CorruptCheckpoint: if it contains anything but files and folders, such as a FIFO, which would block.
        """

    @abstractmethod
    def check_free(self) -> None:
        """Raise CheckpointExists if no checkpoint can be committed here, because the path is occupied."""

    @abstractmethod
    def has_remains(self) -> bool:
        """Return whether there are files without a manifest, which remain of a partly deleted checkpoint."""

    @abstractmethod
    def begin(self, token: str) -> "Location":
        """Return the location to which a new checkpoint is written; `commit` moves it here."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the folder to write files into. Raises CheckpointError if that fails."""

    @abstractmethod
    def check_writable(self) -> None:
        """Write a file and delete it. Raises CheckpointError if that fails."""

    @abstractmethod
    def commit(self, partial: "Location") -> None:
        """Make a completely written checkpoint visible here. Raises CheckpointExists if there is one already."""

    @abstractmethod
    def lease(self, token: str) -> Lease:
        """Return the lease of the save that writes to `begin(token)`. It is taken before anything is written."""

    @abstractmethod
    def set_aside(self, reason: str) -> str:
        """Hide the checkpoint without deleting its files, and return their new location.

        `reason` is one word, which becomes a part of the new name. Raises CheckpointError if that fails.
        """

    @abstractmethod
    def delete(self) -> None:
        """Delete everything in it. A reader never sees a checkpoint that is partly deleted.

        Raises CheckpointError if files cannot be deleted.
        """

    @abstractmethod
    def clean(self) -> list[str]:
        """Delete the remains of interrupted saves directly inside this location, and return their names.

        The files of a save whose lease has not ended stay.
        """


@final
class Folder(Location):
    """A folder of a file system."""

    read_bytes = 1 << 21
    chunk_bytes = 1 << 19  # a read chunk is still in the CPU cache when its checksum is computed

    def __init__(self, path: Path):
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def child(self, name: str) -> "Folder":
        return Folder(self.path / name)

    def kvstore(self) -> dict[str, Any]:
        return {"driver": "file", "path": f"{self.path}/"}

    def read(self, name: str, limit: int = 1 << 30) -> bytes | None:
        try:
            return read_regular_file(self.path / name, limit)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (NotRegularFileError, ValueError) as error:
            raise CorruptCheckpoint(str(error)) from None
        except OSError as error:
            raise CheckpointError(f"{self.path / name} cannot be read: {error.strerror}") from error

    def read_at(self, name: str, offsets: Sequence[int], size: int) -> bytes:
        parts = []
        try:
            with open_regular_file(self.path / name) as file:
                for offset in offsets:
                    file.seek(offset)
                    parts.append(file.read(size))
        except NotRegularFileError as error:
            raise CorruptCheckpoint(str(error)) from None
        except OSError as error:
            raise CorruptCheckpoint(f"{self.path / name} cannot be read: {error.strerror}") from error
        if any(len(part) < size for part in parts):
            raise CorruptCheckpoint(f"{self.path / name} is too short: it was truncated")
        return b"".join(parts)

    def write(self, name: str, data: bytes) -> None:
        try:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            with open(self.path / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"{self.path / name} ({len(data):,} bytes) cannot be written: {error.strerror}"
            ) from error

    def children(self) -> list[str]:
        try:
            entries = sorted(entry.name for entry in self.path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be listed: {error.strerror}") from error
        return [name for name in entries if not name.startswith(".") and self._has_manifest(self.path / name)]

    def data(self) -> Location | None:
        return self if self._has_manifest(self.path) else None

    @staticmethod
    def _has_manifest(path: Path) -> bool:
        try:
            return (path / MANIFEST).is_file()
        except OSError as error:
            raise CheckpointError(f"{path / MANIFEST} cannot be read: {error.strerror}") from error

    def size(self) -> FolderSize | None:
        return folder_size(self.path)

    def _files(self) -> Iterator[Path]:
        return (path for path in self.path.rglob("*") if path.is_file())

    def check_free(self) -> None:
        if not os.path.lexists(self.path) or (not self.path.is_symlink() and _is_empty_folder(self.path)):
            return
        kind = "" if self.data() is not None else ", and it is not an empty folder"
        raise CheckpointExists(f"{self} exists{kind}: choose another name, or delete it first")

    def has_remains(self) -> bool:
        is_folder = self.path.is_dir() and not self.path.is_symlink()
        return is_folder and self.data() is None and not _is_empty_folder(self.path)

    def begin(self, token: str) -> "Folder":
        return Folder(self.path.parent / f"{_PARTIAL}{self.path.name}-{token}")

    def prepare(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be created: {error.strerror}. Choose a folder that this user may write to."
            ) from error

    def check_writable(self) -> None:
        self._clock()

    def commit(self, partial: Location) -> None:
        assert isinstance(partial, Folder)
        for folder in {partial.path, *(path.parent for path in partial._files())}:
            _sync_folder(folder)
        try:
            os.rename(partial.path, self.path)  # fails if a checkpoint is there
        except OSError as error:
            if self.path.exists():
                raise CheckpointExists(
                    f"{self.path} exists: another writer saved it. That checkpoint is unchanged."
                ) from error
            raise CheckpointError(f"{partial.path} cannot be renamed to {self.path}: {error.strerror}") from error
        _sync_folder(self.path.parent)

    def lease(self, token: str) -> FileLease:
        partial = self.begin(token).path
        return FileLease(partial.with_name(f"{partial.name}{_LEASE}"))

    def set_aside(self, reason: str) -> str:
        aside = self.path.with_name(f"{reason}-{self.path.name}-{secrets.token_hex(4)}")
        try:
            os.rename(self.path, aside)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be renamed to {aside}: {error.strerror}") from error
        _sync_folder(self.path.parent)
        return str(aside)

    def delete(self) -> None:
        if not os.path.lexists(self.path):
            return
        doomed = self.path
        try:
            if not self.path.name.startswith(_PARTIAL):  # so that it disappears at once
                doomed = self.path.with_name(f"{_PARTIAL}{self.path.name}-{secrets.token_hex(4)}")
                os.rename(self.path, doomed)
            delete_tree(doomed)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be deleted: {error.strerror} ({error.filename})") from error

    def clean(self) -> list[str]:
        if not self.path.is_dir():
            return []
        now = self._clock()
        names = {entry.name for entry in self.path.iterdir() if entry.name.startswith(_PARTIAL)}
        left = []
        for name in sorted(name.removesuffix(_LEASE) for name in names):
            lease = self.path / f"{name}{_LEASE}"
            if name in left or not has_file_lease_ended(lease, now):
                continue
            try:
                self._delete_partial(name, lease)
                left.append(name)
            except OSError as error:
                _log.warning("%s was left by an interrupted save and cannot be deleted: %s", self.path / name, error)
        return left

    def _delete_partial(self, name: str, lease: Path) -> None:
        """Delete a partial folder whose lease has ended.

        Its writer may only have been suspended. The writer checks the lease and then renames the folder. So the lease
        is deleted first, and the folder is renamed before its files are deleted: a folder with missing files is never
        committed.
        """
        lease.unlink(missing_ok=True)
        doomed = self.path / f"{_PARTIAL}{secrets.token_hex(8)}"
        try:
            os.rename(self.path / name, doomed)
        except FileNotFoundError:
            return
        delete_tree(doomed)

    def _clock(self) -> float:
        """Return the time on the clock that stamps files here, which may be a server's clock."""
        probe = self.path / f"{_PARTIAL}probe-{secrets.token_hex(4)}"
        try:
            with open(probe, "wb") as file:
                seconds = os.fstat(file.fileno()).st_mtime
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error
        return seconds


@final
class ObjectPrefix(Location):
    """A prefix of an object store.

    The files of a checkpoint are under a separate prefix inside it, which is recorded in the marker.

    Args:
        store: the objects under the prefix.
    """

    read_bytes = 1 << 25
    chunk_bytes = 1 << 23  # reading a checksum is a request

    def __init__(self, store: ObjectStore):
        self.store = store

    def __str__(self) -> str:
        return str(self.store)

    def child(self, name: str) -> "ObjectPrefix":
        return ObjectPrefix(self.store.child(name))

    def data(self) -> Location | None:
        marker = self.read(MARKER)
        if marker is None:
            return None
        token = marker.decode(errors="replace")
        if not _TOKEN.fullmatch(token):
            raise CorruptCheckpoint(f"{self}/{MARKER} does not name the files of a checkpoint")
        return self.child(token)

    def kvstore(self) -> dict[str, Any]:
        return self.store.kvstore()

    def _keys(self) -> list[str]:
        with _checkpoint_errors():
            return self.store.keys()

    def read(self, name: str, limit: int = 1 << 30) -> bytes | None:
        with _checkpoint_errors():
            content = self.store.read(name)
        if content is not None and len(content) > limit:
            raise CorruptCheckpoint(f"{self}/{name} has more than {limit:,} bytes")
        return content

    def read_at(self, name: str, offsets: Sequence[int], size: int) -> bytes:
        def read(store: Any) -> list[Any]:
            reads = [store.read(name, byte_range=slice(offset, offset + size)) for offset in offsets]
            return [read.result() for read in reads]

        try:
            results = read(self.store.open())
        except Exception as error:
            raise CorruptCheckpoint(f"{self}/{name} cannot be read: {error}") from error
        if any(result.state == "missing" for result in results):
            raise CorruptCheckpoint(f"{self}/{name} is missing")
        return b"".join(result.value for result in results)

    def write(self, name: str, data: bytes) -> None:
        self._put(name, data)

    def children(self) -> list[str]:
        names = (key.partition("/") for key in self._keys())
        return sorted(child for child, _, name in names if name == MARKER)

    def size(self) -> FolderSize | None:
        return None

    def check_free(self) -> None:
        if self.data() is not None:
            raise CheckpointExists(f"{self} exists: choose another name, or delete it first")

    def has_remains(self) -> bool:
        return False  # the next checkpoint has another prefix

    def begin(self, token: str) -> "ObjectPrefix":
        return self.child(token)

    def prepare(self) -> None:
        """There are no folders to create."""

    def check_writable(self) -> None:
        probe = f"probe-{secrets.token_hex(4)}"
        self._put(probe, b"")
        self._put(probe, None)

    def commit(self, partial: Location) -> None:
        with _checkpoint_errors():
            is_committed = self.store.create(MARKER, str(partial).rsplit("/", 1)[1].encode())
        if not is_committed:
            raise CheckpointExists(f"{self} exists: another writer saved it. That checkpoint is unchanged.")

    def lease(self, token: str) -> ObjectLease:
        name = f"{token}{_LEASE}"
        return ObjectLease(f"{self}/{name}", lambda: self.read(name), lambda content: self._put(name, content))

    def _put(self, name: str, content: bytes | None) -> None:
        """Write an object, or delete it for None."""
        with _checkpoint_errors():
            self.store.write(name, content)

    def set_aside(self, reason: str) -> str:
        # Objects cannot be renamed. They stay, and another marker refers to them.
        marker = self.read(MARKER)
        if marker is None:
            raise CheckpointError(f"{self} cannot be set aside: there is no checkpoint")
        name = f"{_SET_ASIDE}{reason}-{secrets.token_hex(4)}"
        self.write(name, marker)
        self._put(MARKER, None)
        return f"{self}/{name}"

    def delete(self) -> None:
        # Delete the marker first: without it, no reader sees the rest.
        marker = self.read(MARKER)
        self._put(MARKER, None)
        target = self.store
        if any(key.startswith(_SET_ASIDE) for key in self._keys()):  # keep the files of checkpoints that were set aside
            token = b"" if marker is None else marker
            if not _TOKEN.fullmatch(token.decode(errors="replace")):
                return
            target = self.store.child(token.decode())
        with _checkpoint_errors():
            target.delete_all()

    def clean(self) -> list[str]:
        keys = self._keys()
        kept = {key.split("/", 1)[0] for key in keys if _is_marker_of_child(key)}
        leases = [key for key in keys if key.count("/") == 1 and key.endswith(_LEASE)]
        kept |= {key.split("/", 1)[0] for key in leases if not has_object_lease_ended(self.read(key))}
        left = []
        for name in sorted({key.split("/", 1)[0] for key in keys if "/" in key} - kept):
            child = self.child(name)
            if child.read(MARKER) is None:  # not committed since the keys were listed
                child.delete()
                left.append(name)
        return left


@contextmanager
def _checkpoint_errors() -> Iterator[None]:
    """Raise CheckpointError for a failed request to an object store."""
    try:
        yield
    except ObjectStoreError as error:
        raise CheckpointError(str(error)) from error


def folder_size(folder: Path) -> FolderSize:
    """Return the number and the bytes of all files in a folder.

    Raises:
        CorruptCheckpoint: if anything in it is neither a folder nor a regular file. TensorStore would wait for a FIFO,
            and read a device without end.
    """
    files = nbytes = largest = 0
    for path in folder.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:  # a dangling symbolic link is a missing file, which is an error when it is read
            continue
        except OSError as error:  # such as a loop of symbolic links
            raise CorruptCheckpoint(f"{path} cannot be read: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            try:
                check_regular_mode(status.st_mode, path)
            except NotRegularFileError as error:
                raise CorruptCheckpoint(str(error)) from None
            files += 1
            nbytes += status.st_size
            largest = max(largest, 0 if path.name == MANIFEST else status.st_size)
    return FolderSize(files, nbytes, largest)


def _is_marker_of_child(key: str) -> bool:
    """Return whether a key is the marker of a child that is committed or set aside."""
    _, _, name = key.partition("/")
    return name == MARKER or name.startswith(_SET_ASIDE)


def _is_empty_folder(path: Path) -> bool:
    try:
        return next(path.iterdir(), None) is None
    except OSError:
        return False


def _sync_folder(path: Path) -> None:
    """Wait until the names in a folder are durable. Some file systems cannot do this; their renames are ordered."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
