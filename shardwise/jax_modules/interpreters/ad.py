"""jax.interpreters.ad: derivative rules of primitives."""

from typing import final

from shardwise.api.jaxprs.primitive import Zero, instantiate_zeros, primitive_jvps, primitive_transposes
from shardwise.base.missing_names import report_missing
from shardwise.compiler.ir.op import UndefinedPrimal
from shardwise.compiler.transforms.linearize import DualFrame
from shardwise.experimental.hijax import is_undefined_primal

__all__ = [
    "JVPTracer",  # Equinox asks which results of a function have a tangent
    "UndefinedPrimal",  # Equinox, lineax
    "Zero",  # Equinox
    "instantiate_zeros",  # Equinox
    "is_undefined_primal",  # Equinox
    "primitive_jvps",  # Equinox
    "primitive_transposes",  # Equinox, lineax
]


class _DualTracers(type):
    """The class of `JVPTracer`, whose instances are tracers of a jvp with a tangent that may not be zero."""

    def __instancecheck__(cls, instance: object) -> bool:
        frame = getattr(instance, "frame", None)
        return isinstance(frame, DualFrame) and frame.has_tangent(instance)  # type: ignore[arg-type]


@final
class JVPTracer(metaclass=_DualTracers):
    """A value with a tangent, in a function that is being differentiated in forward mode."""


report_missing(__name__, __all__)
