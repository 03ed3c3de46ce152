"""jax.interpreters.ad: derivative rules of primitives."""

from shardwise.api.primitive import Zero, instantiate_zeros, primitive_jvps, primitive_transposes
from shardwise.compiler.ir.op import UndefinedPrimal
from shardwise.experimental.hijax import is_undefined_primal
from shardwise.jax_modules.missing import report_missing

__all__ = [
    "UndefinedPrimal",  # Equinox, lineax
    "Zero",  # Equinox
    "instantiate_zeros",  # Equinox
    "is_undefined_primal",  # Equinox
    "primitive_jvps",  # Equinox
    "primitive_transposes",  # Equinox, lineax
]

report_missing(__name__, __all__)
