"""describe_referrers: the objects that keep a leaked tracer alive, for its error message."""

import gc
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

_MAX_LENGTH = 8  # the longest chain of referrers


def describe_referrers(x: object) -> str:
    """Return one line for each object in a chain of referrers, from `x` to a module or an object without referrers."""
    lines = []
    seen = {id(x)}
    for _ in range(_MAX_LENGTH):
        referrer = _referrer(x, seen)
        if referrer is None or isinstance(referrer, ModuleType):
            break
        lines.append(f"  <{_name(x)}> is referred to by <{_name(referrer)}>{_place(referrer, x)}\n")
        seen.add(id(referrer))
        x = referrer
    return "".join(lines)


def _referrer(x: object, seen: set[int]) -> Any:
    """Return an object of the user's program that refers to `x`: neither a stack frame nor an object in `seen`."""
    referrers = gc.get_referrers(x)
    return next((y for y in referrers if not isinstance(y, FrameType) and id(y) not in seen), None)


def _name(x: object) -> str:
    if isinstance(x, FunctionType):
        return f"function {x.__qualname__}"
    return type(x).__name__


def _place(referrer: object, x: object) -> str:
    """Return where `referrer` holds `x`: an index, a key, or a variable of a closure."""
    if isinstance(referrer, (list, tuple)):
        return f"[{next((index for index, item in enumerate(referrer) if item is x), '')}]"
    if isinstance(referrer, dict):
        return f"[{next((repr(key) for key, item in referrer.items() if item is x), '')}]"
    if isinstance(referrer, FunctionType) and isinstance(x, tuple):
        names = referrer.__code__.co_freevars
        return f" by its variables {', '.join(names)}" if names else ""
    if isinstance(referrer, CellType):
        return ", a variable of a closure"
    return ""
