"""Read the types of HLO: `bf16[8,512]{1,0}`, or a tuple of types."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from shardwise.compiler.dtypes import SHORT_NAMES, DType

_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([^\]]*)\]")


_DTYPES = {
    {"bool": "pred"}.get(name, re.sub(r"^i(?=\d)", "s", name).replace("_", "")): dtype
    for name, dtype in SHORT_NAMES.items()
}


class HloArray(NamedTuple):
    """The type of an array: the name of its dtype, and its shape. A dynamic dim has its bound."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.ceil(_bits(self.dtype) * math.prod(self.shape) / 8)


def dtype_of(name: str) -> DType:
    """Return the dtype with a name in HLO, such as `bf16`, `s32` or `pred`.

    Raises:
        ValueError: if there is none.
    """
    if name not in _DTYPES:
        raise ValueError(f"unknown dtype {name!r}")
    return _DTYPES[name]


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
