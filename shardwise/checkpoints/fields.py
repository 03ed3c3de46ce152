"""Fields: typed access to the fields of a JSON object that may have been forged."""

from reprlib import Repr
from typing import Any, final

from shardwise.errors import CorruptCheckpoint

_LARGEST = 1 << 62
_REPR = Repr()
_REPR.maxlist = _REPR.maxdict = 40
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 80


@final
class Fields:
    """A JSON object whose fields are checked when they are read.

    Args:
        value: the parsed JSON.
        where: the name of the object, for errors.
    """

    def __init__(self, value: object, where: str):
        self.where = where
        if not isinstance(value, dict):
            raise CorruptCheckpoint(f"{where} must be an object, not {_short(value)}")
        self._value = value

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def __getitem__(self, name: str) -> Any:
        if name not in self._value:
            raise CorruptCheckpoint(f"{self.where} has no {name!r}")
        return self._value[name]

    def error(self, name: str, problem: str) -> CorruptCheckpoint:
        """Return the error for a field. `problem` follows the field's name and value in the message."""
        return CorruptCheckpoint(f"{self.where}: {name} {_short(self[name])} {problem}")

    def text(self, name: str) -> str:
        value = self[name]
        if not isinstance(value, str):
            raise self.error(name, "is not a string")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self[name] is None else self.text(name)

    def flag(self, name: str) -> bool:
        value = self[name]
        if not isinstance(value, bool):
            raise self.error(name, "is neither true nor false")
        return value

    def size(self, name: str) -> int:
        """Return a field that is a nonnegative integer."""
        return self._check_size(name, self[name])

    def sizes(self, name: str) -> list[int]:
        """Return a field that is a list of nonnegative integers."""
        return [self._check_size(name, value) for value in self.list(name)]

    def list(self, name: str) -> list[Any]:
        value = self[name]
        if not isinstance(value, list):
            raise self.error(name, "is not a list")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self[name]
        if not isinstance(value, dict):
            raise self.error(name, "is not an object")
        return value

    def texts(self, name: str) -> dict[str, str]:
        mapping = self.mapping(name)
        if not all(isinstance(value, str) for value in mapping.values()):
            raise self.error(name, "has a value that is not a string")
        return mapping

    def _check_size(self, name: str, value: object) -> int:
        if type(value) is not int or not 0 <= value < _LARGEST:
            raise self.error(name, "is not a size")
        return value


def _short(value: object) -> str:
    text = _REPR.repr(value)  # bounded, because a forged value may have many megabytes
    return text if len(text) <= 80 else f"{text[:77]}..."
