"""Stages of ahead-of-time compilation: the results of `jit(f).trace(…)`, `.lower(…)` and `.compile()`."""

from shardwise.api.aot import Compiled, Lowered, Traced
from shardwise.api.jit import Jitted as Wrapped

__all__ = ["Compiled", "Lowered", "Traced", "Wrapped"]
