"""Recent: a table that forgets what was not used for long, at no cost for what is found."""

from typing import Any, final


@final
class LruCache(dict[Any, Any]):
    """Keeps at most `bound` entries, and the last `bound / 2` that were used.

    It holds the younger half itself, so that `get` is a dict's. What `get` does not find may still be `older`, and is
    then young again; once the young are half of what is allowed, they become the older, and those before are dropped.
    """

    def __init__(self, bound: int):
        super().__init__()
        self._half = bound // 2
        self._older: dict[Any, Any] = {}

    def promote(self, key: Any) -> Any:
        """An entry that was not used lately, or None."""
        found = self._older.get(key)
        return None if found is None else self.insert(key, found)

    def insert(self, key: Any, value: Any) -> Any:
        """`value`, which is now found by `key`."""
        if len(self) >= self._half:
            self._older = self.copy()
            super().clear()
        self[key] = value
        return value

    @property
    def count(self) -> int:
        """How many entries it has, older ones too."""
        return len(self.keys() | self._older.keys())

    def clear(self) -> None:
        super().clear()
        self._older = {}
