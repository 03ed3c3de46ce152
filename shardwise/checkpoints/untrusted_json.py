"""Parse JSON that may have been forged, with bounds on its size and without duplicate keys."""

import json
from collections import Counter
from typing import Any

from shardwise.errors import CorruptCheckpoint

_MOST_VALUES = 1 << 26  # the smallest values take about 70 bytes each in memory


def parse_json(data: bytes, where: str) -> Any:
    """Return the value of a JSON document.

    Args:
        data: the document.
        where: the name of its file, for errors.

    Raises:
        CorruptCheckpoint: if it is not JSON, is too large or nested too deeply, or if an object has a duplicate key.
    """
    if has_too_many_values(data):
        raise CorruptCheckpoint(f"{where} has more than {_MOST_VALUES:,} JSON values")
    try:
        return json.loads(data, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{where} is not JSON: {error}") from None


def has_too_many_values(data: bytes) -> bool:
    """Return whether a JSON document has more values than `parse_json` accepts. Commas in strings count too."""
    return sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {name!r} twice")
    return fields
