"""jax.interpreters: the tables of rules of primitives."""

from shardwise.jax_modules.interpreters import ad, batching, mlir, partial_eval, pxla, xla
from shardwise.jax_modules.missing import report_missing

__all__ = ["ad", "batching", "mlir", "partial_eval", "pxla", "xla"]

report_missing(__name__, __all__)
