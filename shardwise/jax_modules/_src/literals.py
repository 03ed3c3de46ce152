"""jax._src.literals: Python scalars with a dtype, which JAX creates from numpy scalars and Shardwise does not."""

from typing import Any, Self, final

import numpy as np

from shardwise.base.missing_names import report_missing
from shardwise.typing import DTypeLike

__all__ = ["TypedComplex", "TypedFloat", "TypedInt"]  # quax


class _Typed:
    """A Python scalar with a dtype. A class that derives from it and from a class of scalars has the constructor."""

    dtype: np.dtype[Any]

    def __new__(cls, value: complex, dtype: DTypeLike) -> Self:
        scalar = super().__new__(cls, value)  # type: ignore[call-arg]
        scalar.dtype = np.dtype(dtype)
        return scalar

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()}, dtype={self.dtype.name})"


@final
class TypedInt(_Typed, int):
    """An int with a dtype."""


@final
class TypedFloat(_Typed, float):
    """A float with a dtype."""


@final
class TypedComplex(_Typed, complex):
    """A complex number with a dtype."""


report_missing(__name__, __all__)
