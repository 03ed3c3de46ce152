"""Errors for parameters of primitives that Shardwise does not honor."""

from typing import Any

from shardwise.compiler.trace.provenance import provenance
from shardwise.errors import UnsupportedError


def unsupported_parameter(primitive: str, parameter: str, value: object) -> UnsupportedError:
    """Return the error for a parameter of the equation that is being read."""
    return UnsupportedError(
        f"the primitive {primitive!r} of JAX at {provenance.source} has {parameter}={value!r}, which Shardwise does "
        "not support. Compute this part outside of the function, with `jax.jit`."
    )


def require(primitive: str, **parameters: tuple[Any, Any]) -> None:
    """Check parameters that have one supported value.

    Args:
        primitive: the name of the primitive.
        **parameters: for each parameter, its value and the supported one.
    """
    for name, (value, supported) in parameters.items():
        if value != supported:
            raise unsupported_parameter(primitive, name, value)
