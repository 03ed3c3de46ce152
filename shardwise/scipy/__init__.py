"""Functions of scipy on sharded arrays: linear algebra, special functions and statistics."""

from typing import NoReturn

from shardwise.errors import not_here
from shardwise.scipy import linalg, special, stats

__all__ = ["linalg", "special", "stats"]


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.scipy", name, __all__)
