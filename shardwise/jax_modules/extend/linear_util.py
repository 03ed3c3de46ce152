"""jax.extend.linear_util: functions with positional arguments that other functions wrap."""

from collections.abc import Callable
from typing import Any, final

from shardwise.jax_modules.missing import report_missing

__all__ = ["WrappedFun", "wrap_init"]  # Flax, Haiku, NumPyro


@final
class WrappedFun:
    """A function, and what is stored while it runs."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.__name__ = getattr(function, "__name__", "function")

    def call_wrapped(self, *args: Any, **keywords: Any) -> Any:
        """Call the function."""
        return self.function(*args, **keywords)


def wrap_init(function: Callable[..., Any], params: Any = None, *, debug_info: Any = None) -> WrappedFun:
    """Wrap a function, with keyword parameters bound."""
    if not params:
        return WrappedFun(function)
    return WrappedFun(lambda *args: function(*args, **params))


report_missing(__name__, __all__)
