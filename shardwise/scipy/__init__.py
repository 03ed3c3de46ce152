"""Functions of scipy on sharded arrays: linear algebra, special functions, statistics, transforms and optimization."""

from shardwise.base.lazy import set_public_names
from shardwise.scipy import (
    cluster,
    fft,
    integrate,
    interpolate,
    linalg,
    ndimage,
    optimize,
    signal,
    sparse,
    spatial,
    special,
    stats,
)

__all__ = [
    "cluster",
    "fft",
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "sparse",
    "spatial",
    "special",
    "stats",
]


set_public_names(__name__, __all__)
