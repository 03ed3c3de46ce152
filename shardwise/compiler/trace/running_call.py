"""The call in the user's code that is currently running, found from its source code, for error messages.

A conversion such as `__array__` has no access to the function that called it. The bytecode position of the user's frame
covers the call expression. Without source code, as in `python -c`, the call is unknown.
"""

import ast
import builtins
import linecache
import sys
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from shardwise.base.call_site import PACKAGE

_LIBRARIES = (PACKAGE, f"{Path(np.__file__).parent}/")


def running_call() -> Any:
    """Return the function that the innermost frame outside this package and numpy is calling; None if unknown."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return None
    expression = _running_expression(frame)
    return _lookup(expression.func, frame) if isinstance(expression, ast.Call) else None


def _running_expression(frame: FrameType) -> ast.expr | None:
    """Return the expression that a frame is evaluating, from its source code."""
    positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    first, last, start, end = positions
    if first is None or last is None or start is None or end is None:
        return None
    lines = [line.encode() for line in linecache.getlines(frame.f_code.co_filename, frame.f_globals)[first - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        return ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _lookup(expression: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name, or of an attribute of a module; None for other expressions."""
    if isinstance(expression, ast.Name):
        for namespace in (frame.f_locals, frame.f_globals, vars(builtins)):
            if expression.id in namespace:
                return namespace[expression.id]
    if isinstance(expression, ast.Attribute):
        module = _lookup(expression.value, frame)
        return getattr(module, expression.attr, None) if isinstance(module, ModuleType) else None
    return None


def shared_numpy_name(function: object, namespace: object) -> str:
    """Return the name of a numpy function if `namespace` has it too, such as `linalg.norm`; "" otherwise.

    `namespace` is `shardwise.numpy`.
    """
    module = "numpy" if isinstance(function, np.ufunc) else str(getattr(function, "__module__", ""))
    package, *parts = [*module.split("."), str(getattr(function, "__name__", ""))]
    found = namespace if package == "numpy" else None
    for part in parts:
        found = getattr(found, part, None)
    return "" if found is None else ".".join(parts)
