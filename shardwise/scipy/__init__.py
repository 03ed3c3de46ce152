"""Functions of scipy on sharded arrays: linear algebra, special functions, statistics, transforms and optimization."""

from shardwise.lazy import set_public_names
from shardwise.scipy import fft, linalg, optimize, sparse, special, stats

__all__ = ["fft", "linalg", "optimize", "sparse", "special", "stats"]


set_public_names(__name__, __all__)
