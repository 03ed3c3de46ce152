"""Functions of scipy on sharded arrays: linear algebra, special functions and statistics."""

from shardwise.lazy import set_public_names
from shardwise.scipy import linalg, special, stats

__all__ = ["linalg", "special", "stats"]


set_public_names(__name__, __all__)
