"""Private modules of jax.numpy that libraries import."""

from shardwise.base.missing_names import report_missing
from shardwise.jax_modules._src.numpy import einsum

__all__ = ["einsum"]

report_missing(__name__, __all__)
