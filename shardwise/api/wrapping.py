"""wraps: give a transformed function the name, signature and docstring of the function."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_Wrapper = TypeVar("_Wrapper", bound=Callable[..., Any])

# The types that functions require of their attributes.
_TYPES = {"__name__": str, "__qualname__": str, "__annotations__": dict, "__type_params__": tuple}


def wraps(function: Callable[..., Any]) -> Callable[[_Wrapper], _Wrapper]:
    """Return `functools.wraps(function)`, also for callable objects whose `__name__` is not a text, and the like.

    An Equinox module has such attributes inside loops: `tree.unflatten` creates it with placeholders.
    """
    assigned = [
        name
        for name in functools.WRAPPER_ASSIGNMENTS
        if name not in _TYPES or isinstance(getattr(function, name, None), _TYPES[name])
    ]
    return functools.wraps(function, assigned)  # type: ignore[return-value]
