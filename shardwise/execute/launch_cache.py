"""LaunchCache: compiled programs, by a key that holds the signatures of their arguments."""

from typing import Any, TypeVar, final

from shardwise.execute.lru import LruCache
from shardwise.runtime.array import ArraySignature

_T = TypeVar("_T")


@final
class LaunchCache(LruCache):
    """An LruCache in which signatures that differ only in trailing Nones of their specs share one entry.

    An entry is added under the canonical signatures. A key with other signatures gets the same entry at its first use;
    later uses are plain dict lookups.
    """

    def promote(self, key: Any) -> Any:
        value = super().promote(key)
        if value is None and (canonical := _canonical(key)) is not None:
            value = self.get(canonical)
            value = super().promote(canonical) if value is None else value
            if value is not None:
                self.insert(key, value)
        return value

    def add(self, key: tuple[Any, ...], value: _T) -> _T:
        """Add a new entry, and return its value."""
        canonical = _canonical(key)
        return self.insert(key if canonical is None else canonical, value)


def _canonical(key: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the key with canonical signatures; None if it is canonical."""
    if all(x.canonical is x for x in key if x.__class__ is ArraySignature):
        return None
    return tuple(x.canonical if x.__class__ is ArraySignature else x for x in key)
