"""Stages of ahead-of-time compilation: the results of `jit(f).trace(…)`, `.lower(…)` and `.compile()`."""

from shardwise.api.aot import ArgInfo, Compiled, Lowered, Traced
from shardwise.api.jit import Jitted as Wrapped

__all__ = ["ArgInfo", "Compiled", "Lowered", "Traced", "Wrapped"]
