"""CompilerEffortLevel: the effort that XLA spends on fast programs, and on programs that need little memory.

The settings `optimization_level` and `memory_fitting_level` select it for all programs, and the compiler options of the
same names for one.
"""

from enum import Enum
from typing import final

from shardwise.base._jaxlib import EFFORT_OPTIONS, CompilerOptions
from shardwise.base.config import config


@final
class CompilerEffortLevel(Enum):
    """The effort of XLA's compiler, as https://openxla.org/xla/effort_levels describes it. `UNKNOWN` is XLA's default.

    `CompilerEffortLevel("O1")` is `CompilerEffortLevel.O1`.

    Example:
        >>> options = {"optimization_level": jax.CompilerEffortLevel.O1}
        >>> jax.jit(lambda x: x + 1, compiler_options=options)(1)
        Array(2, dtype=int32, weak_type=True)
    """

    UNKNOWN = 0
    O0 = 9
    O1 = 19
    O2 = 29
    O3 = 39

    @classmethod
    def _missing_(cls, value: object) -> "CompilerEffortLevel | None":
        return cls.__members__.get(value) if isinstance(value, str) else None


def effort_options() -> CompilerOptions:
    """Return the compiler options of the settings, without those that leave the choice to XLA."""
    levels = [(name, CompilerEffortLevel(getattr(config, name))) for name in EFFORT_OPTIONS]
    return [(name, level.value) for name, level in levels if level is not CompilerEffortLevel.UNKNOWN]
