"""The line of the user's code that is running: the innermost frame of the call stack outside of this package."""

import sys
import warnings
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).resolve().parent) + "/"


def user_frame() -> FrameType | None:
    """Return the innermost frame that is outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the user's line; by Python's default filters, it is shown once per line."""
    frame = user_frame()
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, module, registry)
