"""Precision of matrix products and accuracy of elementwise functions."""

from enum import Enum, auto
from typing import Any, NamedTuple, final

from shardwise.base.config import PRECISIONS
from shardwise.compiler.ops.contract.dot import default_precision


@final
class Precision(Enum):
    """The precision of matrix products: DEFAULT is the fastest, HIGHEST has full f32 precision. CPUs ignore it."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


@final
class DotAlgorithm(NamedTuple):
    """A dot algorithm: the dtypes to which the operands are rounded, and the accumulation dtype.

    No custom algorithm is supported. Functions accept a `Precision`, and presets that are equivalent to one.
    """

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


@final
class DotAlgorithmPreset(Enum):
    """Predefined dot algorithms, named by the dtypes of both operands and of the accumulation."""

    DEFAULT = auto()
    ANY_F8_ANY_F8_F32 = auto()
    ANY_F8_ANY_F8_F32_FAST_ACCUM = auto()
    ANY_F8_ANY_F8_ANY = auto()
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = auto()
    F16_F16_F16 = auto()
    F16_F16_F32 = auto()
    BF16_BF16_BF16 = auto()
    BF16_BF16_F32 = auto()
    BF16_BF16_F32_X3 = auto()
    BF16_BF16_F32_X6 = auto()
    BF16_BF16_F32_X9 = auto()
    TF32_TF32_F32 = auto()
    TF32_TF32_F32_X3 = auto()
    F32_F32_F32 = auto()
    F64_F64_F64 = auto()


PrecisionLike = (
    None | str | Precision | tuple[str, str] | tuple[Precision, Precision] | DotAlgorithm | DotAlgorithmPreset
)

_SPELLINGS = {spelling: Precision[level] for spelling, level in PRECISIONS.items()}
_EQUIVALENT = {
    DotAlgorithmPreset.DEFAULT: Precision.DEFAULT,
    DotAlgorithmPreset.F32_F32_F32: Precision.HIGHEST,
    DotAlgorithmPreset.F64_F64_F64: Precision.HIGHEST,
}


def precisions(name: str, precision: Any) -> tuple[str, str]:
    """Return the names of the precisions of both operands. None means the configured default."""
    if precision is None:
        return default_precision()
    if isinstance(precision, str) and precision in DotAlgorithmPreset.__members__:
        precision = DotAlgorithmPreset[precision]
    if isinstance(precision, (DotAlgorithm, DotAlgorithmPreset)):
        if precision not in _EQUIVALENT:
            raise NotImplementedError(
                f"{name}: the algorithm {precision} is not supported; use Precision.DEFAULT, HIGH or HIGHEST, or one "
                f"of the presets {', '.join(preset.name for preset in _EQUIVALENT)}"
            )
        precision = _EQUIVALENT[precision]
    pair = precision if isinstance(precision, (tuple, list)) else (precision, precision)
    levels = [_precision(name, level) for level in pair]
    if len(levels) != 2:
        raise ValueError(f"{name}: precision must be one precision or a pair, one for each operand, not {precision!r}")
    return levels[0].name, levels[1].name


def _precision(name: str, precision: Any) -> Precision:
    if precision is None:
        return Precision.DEFAULT
    level = _SPELLINGS.get(precision) if isinstance(precision, str) else precision
    if not isinstance(level, Precision):
        raise ValueError(f"{name}: {precision!r} is not a precision; use one of {', '.join(_SPELLINGS)}")
    return level


@final
class AccuracyMode(Enum):
    """The accuracy of elementwise functions. Only DEFAULT is supported."""

    HIGHEST = 1
    DEFAULT = 2


@final
class Tolerance(NamedTuple):
    """The maximal error of an elementwise function. It is not supported."""

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0


def check_accuracy(name: str, accuracy: Any) -> None:
    """Raise NotImplementedError for any accuracy but the default."""
    if accuracy not in (None, AccuracyMode.DEFAULT):
        raise NotImplementedError(f"{name}: accuracy={accuracy} is not supported; use None or AccuracyMode.DEFAULT")
