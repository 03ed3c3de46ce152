"""jax._src.flatten_util."""

from shardwise.flatten_util import ravel_pytree
from shardwise.jax_modules.missing import report_missing

__all__ = ["ravel_pytree"]  # BlackJAX

report_missing(__name__, __all__)
