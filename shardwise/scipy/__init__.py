"""Functions of scipy on sharded arrays: linear algebra, special functions and statistics."""

from typing import NoReturn

from shardwise.lazy import missing_attribute_error
from shardwise.scipy import linalg, special, stats

__all__ = ["linalg", "special", "stats"]


def __getattr__(name: str) -> NoReturn:
    raise missing_attribute_error("shardwise.scipy", name, __all__)
