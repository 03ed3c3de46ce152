"""jax.interpreters.mlir: lowering rules of primitives, as functions that are traced."""

from collections.abc import Callable
from typing import Any, final

from shardwise.api.primitive import Primitive, lowerings
from shardwise.jax_modules.missing import report_missing

__all__ = ["lower_fun", "register_lowering"]  # Equinox


@final
class _TracedLowering:
    """The result of `lower_fun`: a lowering that is a function of arrays."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function


def lower_fun(function: Callable[..., Any], multiple_results: bool = True) -> _TracedLowering:
    """Return a function of arrays as a lowering rule."""
    return _TracedLowering(function)


def register_lowering(primitive: Primitive, rule: Any, platform: str | None = None, **_: Any) -> Any:
    """Register the lowering of a primitive, which `lower_fun` has made.

    A rule that builds MLIR is not supported: the primitive then has no lowering, and compiling it is an error.
    """
    if isinstance(rule, _TracedLowering):
        lowerings[primitive] = rule.function
    return rule


report_missing(__name__, __all__)
