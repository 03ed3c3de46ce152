"""Lists with None for absent entries, such as zero tangents, and masks of the present entries."""

from collections.abc import Sequence
from typing import Any


def present_mask(values: Sequence[Any]) -> tuple[bool, ...]:
    """Return, for each value, whether it is not None."""
    return tuple(value is not None for value in values)


def drop_none(values: Sequence[Any]) -> list[Any]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def insert_none(values: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """Put the values, in order, where `mask` is true, and None elsewhere. This is the inverse of `drop_none`."""
    rest = iter(values)
    return [next(rest) if present else None for present in mask]
