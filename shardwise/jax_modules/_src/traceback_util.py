"""jax._src.traceback_util: which frames errors show."""

from collections.abc import Callable
from types import FrameType
from typing import Any

from shardwise.base.call_site import is_user_file, library_folders, skip_folder
from shardwise.base.missing_names import report_missing

register_exclusion = skip_folder  # Equinox, Flax, jaxtyping
_exclude_paths = library_folders  # Flax adds a path for the time of a call


def api_boundary(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
    """Return the function: frames of libraries stay in tracebacks. Flax."""
    return function


def include_frame(frame: FrameType) -> bool:
    """Return whether a frame of a traceback is the user's. Equinox."""
    return is_user_file(frame.f_code.co_filename)


report_missing(__name__, ["api_boundary", "include_frame", "register_exclusion"])
