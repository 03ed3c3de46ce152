"""The line of the user's code that is running: the innermost frame outside of this package and of libraries."""

import dis
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, final

from shardwise.base.notebook import cell_name

PACKAGE = str(Path(__file__).parents[1]) + os.sep
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]  # the instruction of `from module import name`


# Code in these folders is not the user's: a model made with Flax is cited where the user calls it.
library_folders = [
    "<frozen ",
    os.path.join(sys.prefix, "Scripts" if os.name == "nt" else "bin", ""),  # programs that packages install
    *(path + os.sep for path in sys.path if path.endswith(("site-packages", "dist-packages"))),
]

# Files of libraries that are cited nevertheless: those of a model that a library such as transformers defines.
cited_files: set[str] = set()


def cite_file(path: str) -> None:
    """Cite lines of a file though it is part of a library."""
    cited_files.add(path)


def skip_folder(path: str) -> None:
    """Never cite lines of files in a folder as the user's."""
    library_folders.append(path)


def is_user_file(path: str) -> bool:
    """Return whether a file is outside of this package and of libraries."""
    return path in cited_files or not path.startswith((PACKAGE, *library_folders))


def user_frame() -> FrameType | None:
    """Return the innermost frame that is outside of this package and of libraries.

    If there is none, because the user's code is an installed library too, return the innermost one that is outside of
    this package.
    """
    outside = _outside_frame()
    frame, libraries = outside, tuple(library_folders)
    while frame is not None and _is_skipped(frame.f_code.co_filename, libraries):
        frame = frame.f_back
        while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
    return outside if frame is None else frame


def _is_skipped(file: str, libraries: tuple[str, ...]) -> bool:
    return file.startswith(libraries) and file not in cited_files


def _outside_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame


def format_line(file: str, line: int) -> str:
    """Return `train.py:41` for a line of a file, and `Cell In[3], line 2` for a line of a notebook."""
    cell = cell_name(file)
    return f"{file.rpartition('/')[2]}:{line}" if cell is None else f"{cell}, line {line}"


class CallSite(NamedTuple):
    """A call in the code outside of this package. Its line is looked up only when it is printed, which takes longer."""

    code: CodeType
    instruction: int  # the offset in the code

    def __str__(self) -> str:
        """Return the line as `format_line` does."""
        lines = (line for start, end, line in self.code.co_lines() if start <= self.instruction < end)
        return format_line(self.code.co_filename, next(lines, None) or self.code.co_firstlineno)


def call_site() -> CallSite | None:
    """Return the innermost call on the stack that is outside of this package."""
    frame = _outside_frame()
    return None if frame is None else CallSite(frame.f_code, frame.f_lasti)


def calling_package() -> str:
    """Return the top-level package whose code is running, as the user imports it; empty for a script."""
    frame = _outside_frame()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("importlib"):
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return "" if name == "__main__" else name.partition(".")[0]


def calling_library() -> str:
    """Return the installed library whose code is running; empty for code of the user."""
    frame = _outside_frame()
    return "" if frame is None or is_user_file(frame.f_code.co_filename) else calling_package()


def missing_name_error(message: str, name: str) -> AttributeError | ImportError:
    """Return the error for a name that a module lacks.

    `from module import name` would replace an AttributeError by one without this message, so it gets an ImportError.
    """
    frame = _outside_frame()
    if frame is not None and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM:
        return ImportError(message, name=name)
    return AttributeError(message, name=name)


@final
@dataclass(frozen=True)
class UserLine:
    """A line of the user's code, at which a warning may be issued later."""

    file: str
    line: int
    module: str
    registry: dict[Any, Any]  # the warnings that Python has shown for the module

    @staticmethod
    def current() -> "UserLine":
        """Return the line that is running."""
        frame = user_frame()
        if frame is None:
            return UserLine("<unknown>", 0, "<unknown>", {})
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        return UserLine(
            frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "<unknown>"), registry
        )

    def warn(self, text: str, category: type[Warning] = UserWarning) -> None:
        """Issue a warning; by Python's default filters, it is shown once per line."""
        warnings.warn_explicit(text, category, cell_name(self.file) or self.file, self.line, self.module, self.registry)


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the user's line."""
    UserLine.current().warn(text, category)
