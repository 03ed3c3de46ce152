"""The stages of a jitted function: what `jit(f).trace(…)`, `.lower(…)` and `.compile()` return."""

from shardwise.api.aot import Compiled, Lowered, Traced
from shardwise.api.jit import Jitted as Wrapped

__all__ = ["Compiled", "Lowered", "Traced", "Wrapped"]
