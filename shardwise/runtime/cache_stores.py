"""CacheStore: where the persistent compilation cache keeps its entries, a folder or a prefix of an object store."""

import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar, final
from uuid import uuid4

from shardwise.base.object_store import ObjectStore, ObjectStoreError
from shardwise.base.regular_file import read_regular_file

SUFFIX = ".executable"
_LARGEST_ENTRY = 1 << 32  # bytes
_USES = "uses/"  # prefix of the empty objects that record the size and the last use of entries
_USE = re.compile(r"uses/([0-9a-f]{64})\.(\d{1,15})\.(\d{1,12})")
_DAY = 86_400  # seconds: how exactly an object store records the last use
_T = TypeVar("_T")
_log = logging.getLogger("shardwise")


@final
class _Use(NamedTuple):
    """The recorded last use of an entry of an object store. Uses are ordered by time."""

    seconds: int
    size: int
    key: str

    @property
    def name(self) -> str:
        """The name of the empty object that records it."""
        return f"{_USES}{self.key}.{self.size}.{self.seconds}"


class CacheStore(ABC):
    """Entries by their keys.

    Attributes:
        is_shared: whether all processes of a program have the same entries.
    """

    is_shared: bool

    @abstractmethod
    def location(self, key: str) -> str:
        """Return the path or the URL of an entry."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return an entry, or None if there is none. Raises OSError or ValueError if it cannot be read."""

    @abstractmethod
    def write(self, key: str, content: bytes) -> bool:
        """Write an entry, which readers see completely or not at all.

        Returns:
            Whether the entry was written: False if the store is not used any more.

        Raises:
            OSError: if the entry cannot be written.
        """

    @abstractmethod
    def record_use(self, key: str) -> None:
        """Record that an entry is used now."""

    @abstractmethod
    def evict(self, limit: int) -> None:
        """Delete the least recently used entries until the others have at most `limit` bytes."""


@cache
def cache_store(name: str, has_key: bool) -> CacheStore | None:
    """Return the store of a folder or URL. If it cannot be used, log the reason and return None.

    Args:
        name: the setting `compilation_cache_dir`.
        has_key: whether entries have keyed digests, so that other users may write to the store.
    """
    if "://" not in name:
        return _folder(Path(name).expanduser(), has_key)
    try:
        store = ObjectStore.from_url(name)
    except ValueError as error:
        _log.warning("compilation_cache_dir cannot be used: %s", error)
        return None
    if not has_key:
        _log.warning(
            "compilation_cache_dir %s is not used: others may be able to write to an object store, and its contents "
            "are executed. Set compilation_cache_key to a secret that all readers and writers share",
            name,
        )
        return None
    return Bucket(store)


def _folder(path: Path, has_key: bool) -> "Folder | None":
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.stat()
    except OSError as error:
        _log.warning("compilation_cache_dir %s cannot be used: %s", path, error)
        return None
    # On Windows, permissions are access-control lists, which `stat` does not return.
    if not has_key and hasattr(os, "getuid") and (state.st_uid != os.getuid() or state.st_mode & 0o022):
        _log.warning(
            "compilation_cache_dir %s is not used: other users may write to it, and its contents are executed. "
            "Restrict it to yourself, or set compilation_cache_key: chmod 700 %s",
            path,
            path,
        )
        return None
    return Folder(path)


@final
class Folder(CacheStore):
    """A folder of a file system, with one file per entry."""

    is_shared = False  # processes on other hosts may have a folder of the same name

    def __init__(self, path: Path):
        self._path = path

    def location(self, key: str) -> str:
        return str(self._file(key))

    def _file(self, key: str) -> Path:
        return self._path / f"{key}{SUFFIX}"

    def read(self, key: str) -> bytes | None:
        try:
            return read_regular_file(self._file(key), _LARGEST_ENTRY)
        except FileNotFoundError:
            return None

    def write(self, key: str, content: bytes) -> bool:
        path = self._file(key)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return True

    def record_use(self, key: str) -> None:
        try:
            os.utime(self._file(key))
        except OSError:
            _log.debug("entry %s was removed meanwhile", key)

    def evict(self, limit: int) -> None:
        entries = []
        for path in self._path.glob(f"*{SUFFIX}"):
            try:
                state = path.stat()
            except FileNotFoundError:  # another process deleted it
                continue
            entries.append((state.st_mtime, state.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= limit:
                return
            path.unlink(missing_ok=True)
            total -= size


@final
class Bucket(CacheStore):
    """A prefix of an object store, with one object per entry.

    Listing an object store returns names only. So each entry has a second, empty object, whose name contains the size
    of the entry and the day of its last use. After a failed request, the store is not used any more: retries take half
    a minute, and every program would wait for them.
    """

    is_shared = True

    def __init__(self, store: ObjectStore):
        self._store = store
        self._is_lost = False

    def location(self, key: str) -> str:
        return f"{self._store}/{key}{SUFFIX}"

    def read(self, key: str) -> bytes | None:
        return self._request(lambda: self._store.read(f"{key}{SUFFIX}"), None)

    def write(self, key: str, content: bytes) -> bool:
        return self._request(lambda: self._write(key, content), False)

    def record_use(self, key: str) -> None:
        self._request(lambda: self._record_today(key), None)

    def evict(self, limit: int) -> None:
        self._request(lambda: self._evict(limit), None)

    def _write(self, key: str, content: bytes) -> bool:
        self._record(key, len(content), self._uses(key))  # first: an entry without a record would never be evicted
        self._store.write(f"{key}{SUFFIX}", content)
        return True

    def _record_today(self, key: str) -> None:
        uses = self._uses(key)
        if uses and max(uses).seconds < time.time() - _DAY:
            self._record(key, max(uses).size, uses)

    def _evict(self, limit: int) -> None:
        uses = self._uses()
        latest = {use.key: use for use in sorted(uses)}
        total = sum(use.size for use in latest.values())
        for last in sorted(latest.values()):
            if total <= limit:
                return
            self._store.write(f"{last.key}{SUFFIX}", None)
            for use in uses:
                if use.key == last.key:
                    self._store.write(use.name, None)
            total -= last.size

    def _uses(self, key: str = "") -> list[_Use]:
        """Return the recorded uses of an entry, or of all entries."""
        matches = (_USE.fullmatch(name) for name in self._store.keys(f"{_USES}{key}"))
        return [_Use(int(match[3]), int(match[2]), match[1]) for match in matches if match]

    def _record(self, key: str, size: int, earlier: list[_Use]) -> None:
        """Record a use of an entry, and delete the records of earlier uses."""
        now = _Use(int(time.time()), size, key)
        self._store.write(now.name, b"")
        for use in earlier:
            if use != now:
                self._store.write(use.name, None)

    def _request(self, request: Callable[[], _T], default: _T) -> _T:
        """Return the result of requests, or `default` if one of them or an earlier one has failed."""
        if self._is_lost:
            return default
        try:
            return request()
        except (ObjectStoreError, ImportError) as error:
            self._is_lost = True
            _log.warning("the compilation cache is not used any more, and programs are compiled: %s", error)
            return default
