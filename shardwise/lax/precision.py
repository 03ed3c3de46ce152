"""Precision: how exactly products of f32 are made on devices that have faster ways with fewer bits."""

from enum import Enum
from typing import Any, final


@final
class Precision(Enum):
    """DEFAULT is the fastest, HIGHEST is exact to the last bits of f32; CPUs make no difference."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


_SPELLINGS = {
    **{level.name.lower(): level for level in Precision},
    **dict.fromkeys(("fastest", "bfloat16"), Precision.DEFAULT),
    **dict.fromkeys(("bfloat16_3x", "tensorfloat32"), Precision.HIGH),
    "float32": Precision.HIGHEST,
}


def precisions(name: str, precision: Any) -> tuple[str, str]:
    """The names of the precisions of two operands: of one for both, or of a pair; None is the default."""
    pair = precision if isinstance(precision, (tuple, list)) else (precision, precision)
    found = [_precision(name, one) for one in pair]
    if len(found) != 2:
        raise ValueError(f"{name}: precision is one for both operands or a pair, not {precision!r}")
    return found[0].name, found[1].name


def _precision(name: str, precision: Any) -> Precision:
    if precision is None:
        return Precision.DEFAULT
    found = _SPELLINGS.get(precision) if isinstance(precision, str) else precision
    if not isinstance(found, Precision):
        raise ValueError(f"{name}: {precision!r} is not a precision; these are: {', '.join(_SPELLINGS)}")
    return found
