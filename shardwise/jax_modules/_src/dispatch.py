"""jax._src.dispatch."""

from shardwise.api.environment import effects_barrier as wait_for_tokens
from shardwise.base.missing_names import report_missing

__all__ = ["wait_for_tokens"]  # Equinox

report_missing(__name__, __all__)
