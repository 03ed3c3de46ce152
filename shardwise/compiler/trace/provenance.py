"""Where an equation comes from: the user's line that is running, or the line that a transformation works for.

While a transformation replays equations it sets `working.source`, so that what it emits names the user's line. The
partitioner also sets `working.reason`, which says why it put an equation there.
"""

import sys
import threading
from pathlib import Path

from shardwise.compiler.ir.program import NOWHERE, Source

_PACKAGE = str(Path(__file__).resolve().parents[2]) + "/"


class _Working(threading.local):
    def __init__(self) -> None:
        self.source: Source | None = None
        self.reason = ""


working = _Working()


def current_source() -> Source:
    """The source that an equation emitted now belongs to."""
    return working.source or user_source()


def user_source() -> Source:
    """The innermost running line outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return Source(code.co_filename, frame.f_lineno, code.co_name)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return NOWHERE
