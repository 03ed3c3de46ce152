"""The tracers that Python functions close over."""

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from shardwise import tree
from shardwise.compiler.ir.dispatch import current_value, open_frames
from shardwise.compiler.trace.tracer import Tracer


def closure_tracers(*functions: Callable[..., Any]) -> list[Tracer]:
    """Return the live tracers in the closures of functions, each once.

    A closure holds them itself, in a pytree, or in the closure of another function, a bound method or a `partial`.
    """
    pending: list[Any] = list(functions)
    seen: dict[int, Any] = {}  # keeps the objects alive, so that their ids are not reused
    tracers: dict[int, Tracer] = {}
    while pending:
        x = pending.pop()
        if id(x) in seen:
            continue
        seen[id(x)] = x
        value = current_value(x)
        if isinstance(value, Tracer):
            if value.frame in open_frames():
                tracers[id(value)] = value
        else:
            pending += _contents(x)
    return list(tracers.values())


def _contents(x: object) -> Iterator[Any]:
    """Yield the objects that a function refers to, or the leaves of a pytree."""
    if isinstance(x, FunctionType):
        for cell in x.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
    elif isinstance(x, MethodType):
        yield x.__func__
        yield x.__self__
    elif isinstance(x, partial):
        yield from (x.func, *x.args, *x.keywords.values())
    elif isinstance(x, (tuple, list, dict)):
        yield from tree.leaves(x)
