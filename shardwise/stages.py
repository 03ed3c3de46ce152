"""Stages of ahead-of-time compilation: the results of `jit(f).trace(…)`, `.lower(…)` and `.compile()`."""

from shardwise.api.ahead_of_time.aot import ArgInfo, Compiled, Lowered, Traced
from shardwise.api.jit import Jitted as Wrapped
from shardwise.base.lazy import set_public_names

__all__ = ["ArgInfo", "Compiled", "Lowered", "Traced", "Wrapped"]

set_public_names(__name__, __all__)
