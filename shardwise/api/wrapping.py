"""wraps: give a transformed function the name, signature and docstring of the function."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_Wrapper = TypeVar("_Wrapper", bound=Callable[..., Any])

_TEXTS = ("__name__", "__qualname__")


def wraps(function: Callable[..., Any]) -> Callable[[_Wrapper], _Wrapper]:
    """Return `functools.wraps(function)`, also for callable objects whose `__name__` is not a text.

    An Equinox module has such names inside loops: `tree.unflatten` creates it with placeholders.
    """
    assigned = [
        name
        for name in functools.WRAPPER_ASSIGNMENTS
        if name not in _TEXTS or isinstance(getattr(function, name, None), str)
    ]
    return functools.wraps(function, assigned)  # type: ignore[return-value]
