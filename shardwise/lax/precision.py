"""How exactly products are made on devices that have faster ways with fewer bits, and functions on each element."""

from enum import Enum, auto
from typing import Any, NamedTuple, final

from shardwise.compiler.ops.contract.dot import default_precision
from shardwise.config import PRECISIONS


@final
class Precision(Enum):
    """DEFAULT is the fastest, HIGHEST is exact to the last bits of f32; CPUs make no difference."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


@final
class DotAlgorithm(NamedTuple):
    """How a device is told to make a product: what operands are rounded to, and what sums are made in.

    Functions here take a `Precision`, and of the presets those that mean the same.
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
    """Known algorithms: the types of both operands, and of the sums."""

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
_SAME = {
    DotAlgorithmPreset.DEFAULT: Precision.DEFAULT,
    DotAlgorithmPreset.F32_F32_F32: Precision.HIGHEST,
    DotAlgorithmPreset.F64_F64_F64: Precision.HIGHEST,
}


def precisions(name: str, precision: Any) -> tuple[str, str]:
    """The names of the precisions of two operands: of one for both, or of a pair; None is as the settings say."""
    if precision is None:
        return default_precision()
    if isinstance(precision, str) and precision in DotAlgorithmPreset.__members__:
        precision = DotAlgorithmPreset[precision]
    if isinstance(precision, (DotAlgorithm, DotAlgorithmPreset)):
        if precision not in _SAME:
            raise NotImplementedError(
                f"{name}: the algorithm {precision} is not here yet; Precision.DEFAULT, HIGH and HIGHEST are, and "
                f"{', '.join(preset.name for preset in _SAME)}"
            )
        precision = _SAME[precision]
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


@final
class AccuracyMode(Enum):
    """How exact a function on each element is to be: as it is here, or as exact as a device can."""

    HIGHEST = 1
    DEFAULT = 2


@final
class Tolerance(NamedTuple):
    """How far a function on each element may be off."""

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0


def check_accuracy(name: str, accuracy: Any) -> None:
    """Refuse what nobody would see to."""
    if accuracy not in (None, AccuracyMode.DEFAULT):
        raise NotImplementedError(f"{name}: accuracy {accuracy} is not here yet: leave it out, or AccuracyMode.DEFAULT")
