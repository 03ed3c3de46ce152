"""jax._src.state.indexing: slices of references."""

from shardwise.base.missing_names import report_missing
from shardwise.experimental.pallas import Slice

__all__ = ["Slice"]  # Haliax asks whether an index is one

report_missing(__name__, __all__)
