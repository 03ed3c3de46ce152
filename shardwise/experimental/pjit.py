"""pjit, the former name of jit."""

from shardwise.api.jit import jit as pjit

__all__ = ["pjit"]
