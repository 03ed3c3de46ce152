"""scipy.sparse: iterative solvers of linear systems."""

from shardwise.base.lazy import set_public_names
from shardwise.scipy.sparse import linalg

__all__ = ["linalg"]

set_public_names(__name__, __all__)
