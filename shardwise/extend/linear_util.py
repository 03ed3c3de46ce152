"""jax.extend.linear_util: functions with positional arguments that other functions wrap."""

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import wraps
from typing import Any, final

from shardwise.base.missing_names import report_missing

__all__ = [
    "WrappedFun",  # Flax, Haiku, NumPyro
    "transformation",  # Haiku
    "transformation_with_aux",  # quax
    "wrap_init",  # Flax, Haiku, NumPyro
]


@final
class WrappedFun:
    """A function, and what is stored while it runs."""

    def __init__(self, function: Callable[..., Any]):
        self.f = function
        self.__name__ = getattr(function, "__name__", "function")

    def call_wrapped(self, *args: object, **keywords: object) -> Any:
        """Call the function."""
        return self.f(*args, **keywords)


def wrap_init(
    f: Callable[..., Any], params: Mapping[str, Any] | None = None, *, debug_info: object = None
) -> WrappedFun:
    """Wrap a function, with keyword parameters bound."""
    if not params:
        return WrappedFun(f)
    return WrappedFun(lambda *args: f(*args, **params))


def transformation(generator: Callable[..., Any]) -> Callable[..., WrappedFun]:
    """Return a function that wraps a function, whose arguments and results a generator changes.

    The generator receives what is bound, and then the arguments. It first yields the arguments of the wrapped function,
    a sequence and keywords, receives the result of the call, and then yields the new result.
    """

    def wrap(function: WrappedFun, *bound: object) -> WrappedFun:
        return WrappedFun(_change_call(generator, function, bound))

    return wrap


def transformation_with_aux(generator: Callable[..., Any]) -> Callable[..., tuple[WrappedFun, Callable[[], Any]]]:
    """Return a function like that of `transformation`, for a generator that yields the new result and a second value.

    The function returns the wrapped function, and a function that returns the second value of its last call.
    """

    def wrap(function: WrappedFun, *bound: object) -> tuple[WrappedFun, Callable[[], Any]]:
        call = _change_call(generator, function, bound)
        stored: list[Any] = []

        @wraps(call)
        def store_aux(*args: object, **keywords: object) -> Any:
            result, aux = call(*args, **keywords)
            stored[:] = [aux]
            return result

        return WrappedFun(store_aux), lambda: stored[0]

    return wrap


def _change_call(generator: Callable[..., Any], function: WrappedFun, bound: tuple[object, ...]) -> Callable[..., Any]:
    """Return a function that calls `function` with the arguments and the result that a generator changes."""

    @wraps(function.f)
    def call(*args: object, **keywords: object) -> Any:
        with closing(generator(*bound, *args, **keywords)) as steps:  # also if the function fails
            inner_args, inner_keywords = next(steps)
            return steps.send(function.call_wrapped(*inner_args, **inner_keywords))

    return call


report_missing(__name__, __all__)
