"""LruCache: a two-generation LRU cache whose hits are plain dict lookups."""

from collections.abc import Hashable
from typing import Any, TypeVar

_T = TypeVar("_T")


class LruCache(dict[Any, Any]):
    """An LRU cache of at most `bound` entries, which keeps at least the `bound / 2` most recently used ones.

    The dict itself is the young generation, so that `get` is a dict's method. After a miss of `get`, `promote` looks in
    the old generation and moves an entry to the young one. When the young generation has `bound / 2` entries, it
    becomes the old one, and the previous old generation is dropped.
    """

    def __init__(self, bound: int):
        super().__init__()
        self._half = bound // 2
        self._old: dict[Any, Any] = {}

    def promote(self, key: Hashable) -> Any:
        """Move an entry of the old generation to the young one and return it; None if there is none."""
        value = self._old.get(key)
        return None if value is None else self.insert(key, value)

    def insert(self, key: Hashable, value: _T) -> _T:
        """Add an entry, and return its value."""
        if len(self) >= self._half:
            self._old = self.copy()
            super().clear()
        self[key] = value
        return value

    @property
    def count(self) -> int:
        """The number of entries in both generations."""
        return len(self.keys() | self._old.keys())

    def clear(self) -> None:
        """Remove all entries."""
        super().clear()
        self._old = {}
