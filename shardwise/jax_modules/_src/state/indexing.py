"""jax._src.state.indexing: slices with a dynamic start."""

from shardwise.base.missing_names import report_missing
from shardwise.compiler.arrays.dynamic_index import Slice

__all__ = ["Slice"]  # Haliax asks whether an index is one

report_missing(__name__, __all__)
