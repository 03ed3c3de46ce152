"""cached: what is made of programs, once. A user's rule may look at the axes that have a name where it is asked: what
was made is found again only where these are the same."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from shardwise.compiler.ir.dispatch import bound_axes, tracked_axes
from shardwise.config import cached_by_settings

_Function = TypeVar("_Function", bound=Callable[..., Any])


def memoized(maxsize: int) -> Callable[[_Function], _Function]:
    """`lru_cache`, by the settings in force and the axes with a name too."""

    def decorate(function: _Function) -> _Function:
        @cached_by_settings(maxsize)
        def made(axes: Any, *args: Any, **keywords: Any) -> Any:
            return function(*args, **keywords)

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            return made((tuple(bound_axes().items()), tracked_axes()), *args, **keywords)

        return call  # type: ignore[return-value]

    return decorate
