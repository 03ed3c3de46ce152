"""Errors of traced functions: tracebacks with the user's frames only, and explanations of type marks in messages.

A traceback through a transformation alternates between the user's frames and this package's. Every public function that
calls the user's code removes the package's frames, unless the setting `traceback_filtering` is `off`. If an error of
this package prints a type with a mark, such as `f32[]~`, a sentence that explains the mark is appended to the message.
"""

import contextlib
import types
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from shardwise.base.call_site import PACKAGE
from shardwise.base.config import config
from shardwise.compiler.ir.types import explain_marks

_NOTE = "(Frames inside shardwise are hidden; config.update('traceback_filtering', 'off') shows them.)"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def filter_traceback(function: _Function) -> _Function:
    """Decorate a function so that its errors explain type marks and omit this package's other frames."""

    @wraps(function, updated=())
    def call(*args: object, **keywords: object) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:
            raise explained(error)  # noqa: B904 - the same error

    return call  # type: ignore[return-value]


def explained(error: Exception) -> Exception:
    """Return an error with the marks of types explained, and without this package's frames, to raise it again."""
    _explain_types(error)
    return without_package_frames(error)


def _explain_types(error: Exception) -> None:
    """Append explanations of type marks to the message of an error that this package raised."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    if entry is None or not entry.tb_frame.f_code.co_filename.startswith(PACKAGE):
        return
    if len(error.args) == 1 and isinstance(text := error.args[0], str):
        explanation = explain_marks(text)
        if explanation and explanation not in text:
            error.args = (text + explanation,)


def without_package_frames(error: Exception) -> Exception:
    """Remove this package's frames from the traceback of an error."""
    if config.traceback_filtering == "off":
        return error
    if _NOTE not in getattr(error, "__notes__", ()):
        error.add_note(_NOTE)
    kept = []
    entry = error.__traceback__
    is_inside = False  # whether the frame before is one of this package
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename
        is_inside = file.startswith(PACKAGE) or (is_inside and file == contextlib.__file__)
        if not is_inside:
            kept.append(entry)
        entry = entry.tb_next
    rebuilt: types.TracebackType | None = None
    for entry in reversed(kept):
        rebuilt = types.TracebackType(rebuilt, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(rebuilt)
