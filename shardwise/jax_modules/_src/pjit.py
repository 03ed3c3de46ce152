"""jax._src.pjit: the primitive of calls."""

from shardwise.base.missing_names import report_missing
from shardwise.extend.core.primitives import jit_p

__all__ = ["jit_p"]  # quax

report_missing(__name__, __all__)
