"""Read the types of HLO: `bf16[8,512]{1,0}`, or a tuple of types."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([^\]]*)\]")


class HloArray(NamedTuple):
    """The type of an array: the name of its dtype, and its shape. A dynamic dim has its bound."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.ceil(_bits(self.dtype) * math.prod(self.shape) / 8)


def arrays_of(type: str) -> Iterator[HloArray]:
    """Yield the arrays of a type: one, or those of a tuple and the tuples in it."""
    for dtype, dims in _ARRAY.findall(type):
        yield HloArray(dtype, tuple(int(size.strip().removeprefix("<=")) for size in dims.split(",") if size))


def bytes_of(type: str) -> int:
    """Return the bytes of all arrays of a type."""
    return sum(array.nbytes for array in arrays_of(type))


def _bits(dtype: str) -> int:
    """Return the width of a dtype: the number after the first letters. For complex dtypes it is that of the pair."""
    if dtype == "pred":
        return 8
    if dtype in ("token", "opaque"):
        return 0
    width = re.match(r"[a-z]+(\d+)", dtype)
    if width is None:
        raise ValueError(f"unknown dtype {dtype!r}")
    return int(width[1])
