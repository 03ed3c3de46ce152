"""memoized: an LRU cache for transformations of programs.

User-defined rules may read the settings and the axis names that are bound where a transformation runs. Both are part of
the cache key.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from shardwise.compiler.ir.dispatch import bound_axes, tracked_axes
from shardwise.config import cached_by_settings

_Function = TypeVar("_Function", bound=Callable[..., Any])


def memoized(maxsize: int) -> Callable[[_Function], _Function]:
    """Decorate a function with an LRU cache whose key includes the current settings and the bound axis names."""

    def decorate(function: _Function) -> _Function:
        @cached_by_settings(maxsize)
        def cached_call(axes: Any, *args: Any, **keywords: Any) -> Any:
            return function(*args, **keywords)

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            return cached_call((tuple(bound_axes().items()), tracked_axes()), *args, **keywords)

        return call  # type: ignore[return-value]

    return decorate
