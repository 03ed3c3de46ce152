"""jax._src.state.indexing: slices of references."""

from shardwise.base.missing_names import report_missing
from shardwise.experimental import pallas

__all__ = ["Slice"]  # Haliax asks whether an index is one

Slice: type = vars(pallas)["Slice"]  # a placeholder, which type checkers do not find

report_missing(__name__, __all__)
