"""Traceback filtering: errors in the user's code show the user's frames, not this package's.

A traceback through a transformation alternates between the user's frames and this package's. Every public function that
calls the user's code removes the package's frames, unless the setting `traceback_filtering` is `off`.
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
    """Decorate a function so that its errors come without this package's frames, except that of the wrapper."""

    @wraps(function, updated=())
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:
            raise without_package_frames(error)  # noqa: B904 - the same error

    return call  # type: ignore[return-value]


def without_package_frames(error: Exception) -> Exception:
    """Remove this package's frames from the traceback of an error."""
    if config.traceback_filtering == "off":
        return error
    if _NOTE not in getattr(error, "__notes__", ()):
        error.add_note(_NOTE)
    kept = []
    entry = error.__traceback__
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            kept.append(entry)
        entry = entry.tb_next
    rebuilt: types.TracebackType | None = None
    for entry in reversed(kept):
        rebuilt = types.TracebackType(rebuilt, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(rebuilt)
