"""pjit, the former name of jit."""

from shardwise.api.jit import jit as pjit
from shardwise.lazy import set_public_names

__all__ = ["pjit"]

set_public_names(__name__, __all__)
