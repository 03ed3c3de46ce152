"""jax.interpreters: the tables of rules of primitives."""

from shardwise.base.missing_names import report_missing
from shardwise.jax_modules.interpreters import ad, batching, mlir, partial_eval, pxla, xla

__all__ = ["ad", "batching", "mlir", "partial_eval", "pxla", "xla"]

report_missing(__name__, __all__)
