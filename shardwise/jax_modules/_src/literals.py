"""jax._src.literals: scalars and numpy arrays with a dtype, which JAX creates and Shardwise does not."""

from typing import Any, Self, final

import numpy as np

from shardwise.base.missing_names import report_missing
from shardwise.typing import DTypeLike

__all__ = ["TypedComplex", "TypedFloat", "TypedInt", "TypedNdArray"]  # quax; Equinox asks whether a value is an array


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


@final
class TypedNdArray:
    """A numpy array, and whether its dtype is weak."""

    def __init__(self, val: np.ndarray[tuple[int, ...], np.dtype[Any]], weak_type: bool):
        self.val, self.weak_type = val, weak_type

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        return self.val.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.val.shape

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
        return np.array(self.val, dtype=dtype, copy=copy) if copy else np.asarray(self.val, dtype=dtype)


report_missing(__name__, __all__)
