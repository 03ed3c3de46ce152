"""scipy.spatial: rotations in three dimensions."""

from shardwise.base.lazy import set_public_names
from shardwise.scipy.spatial import transform

__all__ = ["transform"]

set_public_names(__name__, __all__)
