"""jax._src.flatten_util."""

from shardwise.base.missing_names import report_missing
from shardwise.flatten_util import ravel_pytree

__all__ = ["ravel_pytree"]  # BlackJAX

report_missing(__name__, __all__)
