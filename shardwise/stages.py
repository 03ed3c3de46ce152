"""Stages of ahead-of-time compilation: the results of `jit(f).trace(…)`, `.lower(…)` and `.compile()`."""

from typing import TypeAlias

from shardwise.api.ahead_of_time.aot import ArgInfo, Compiled, Lowered, Traced
from shardwise.api.jit import Jitted as Wrapped
from shardwise.base.lazy import set_public_names
from shardwise.execute.compiler_effort import CompilerEffortLevel

__all__ = ["ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced", "Wrapped"]

CompilerOptions: TypeAlias = dict[str, str | bool | int | float | CompilerEffortLevel]

set_public_names(__name__, __all__)
