"""Pause the garbage collector in code that allocates much and has few reference cycles."""

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def pauses_garbage_collection(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate a function that pauses the garbage collector.

    A full collection visits every object of the process. While a program is planned, most new objects stay, so
    collections take time and free nothing. If several threads plan, the first one to end resumes the collector.
    """

    # Not a context manager of `contextlib`, whose frame would be taken for the user's line.
    @wraps(function)
    def call(*args: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **keywords)
        finally:
            if was_enabled:
                gc.enable()

    return call
