"""memoized: an LRU cache for transformations of programs.

User-defined rules may read the settings and axis names that are active where a transformation runs, so both are part of
the cache key. Source lines are part of the key too: equality of programs ignores them, but the result contains them.
"""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

from shardwise.base.config import cached_by_settings
from shardwise.compiler.ir.dispatch import bound_axes, tracked_axes
from shardwise.compiler.ir.program import Program

_Function = TypeVar("_Function", bound=Callable[..., Any])


def memoized(maxsize: int) -> Callable[[_Function], _Function]:
    """Decorate a function with an LRU cache whose key includes settings, bound axis names and source lines."""

    def decorate(function: _Function) -> _Function:
        @cached_by_settings(maxsize)
        def cached_call(context: Hashable, *args: Any, **keywords: Any) -> Any:
            return function(*args, **keywords)

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            sources = tuple(arg.sources for arg in args if isinstance(arg, Program))
            return cached_call((tuple(bound_axes().items()), tracked_axes(), sources), *args, **keywords)

        return call  # type: ignore[return-value]

    return decorate
