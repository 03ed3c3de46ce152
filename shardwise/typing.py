"""Types for annotations of functions that accept arrays and dtypes."""

from typing import Any, Protocol, TypeAlias

import numpy as np

from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array

__all__ = ["ArrayLike", "DTypeLike"]


class SupportsDType(Protocol):
    """An object with a `dtype`, such as an array."""

    @property
    def dtype(self) -> np.dtype[Any]: ...


# Without type parameters, so that it can be used with `isinstance`.
ArrayLike: TypeAlias = Array | np.ndarray | np.bool_ | np.number | bool | int | float | complex
DTypeLike: TypeAlias = str | type[Any] | np.dtype[Any] | SupportsDType


set_public_names(__name__, __all__)
