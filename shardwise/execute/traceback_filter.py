"""The boundary between the user's code and ours: errors that cross it show the user's lines, not ours.

A traceback through a transformation alternates between the user's frames and this package's. At every public function
that calls the user's code, the package's frames are taken out of it; `traceback_filtering` set to `off` keeps them.
"""

import types
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from shardwise.config import config

_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"
_NOTE = "(Frames inside shardwise are hidden; config.update('traceback_filtering', 'off') shows them.)"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def filter_traceback(function: _Function) -> _Function:
    """`function`, whose errors come without this package's frames (save its own)."""

    @wraps(function, updated=())
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:
            raise without_package_frames(error)  # noqa: B904 - the same error

    return call  # type: ignore[return-value]


def without_package_frames(error: Exception) -> Exception:
    """The error with this package's frames left out of its traceback."""
    if config.traceback_filtering == "off":
        return error
    if _NOTE not in getattr(error, "__notes__", ()):
        error.add_note(_NOTE)
    kept = []
    step = error.__traceback__
    while step is not None:
        if not step.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            kept.append(step)
        step = step.tb_next
    rebuilt: types.TracebackType | None = None
    for step in reversed(kept):
        rebuilt = types.TracebackType(rebuilt, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return error.with_traceback(rebuilt)
