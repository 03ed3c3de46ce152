"""Types for annotations of functions that accept arrays and dtypes."""

from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from shardwise.compiler.arrays.methods import ArrayMethods
from shardwise.lazy import missing_attribute_error

__all__ = ["ArrayLike", "DTypeLike"]


class SupportsDType(Protocol):
    """An object with a `dtype`, such as an array."""

    @property
    def dtype(self) -> np.dtype[Any]: ...


# Without type parameters, so that it can be used with `isinstance`.
ArrayLike: TypeAlias = ArrayMethods | np.ndarray | np.bool_ | np.number | bool | int | float | complex
DTypeLike: TypeAlias = str | type[Any] | np.dtype[Any] | SupportsDType


def __getattr__(name: str) -> NoReturn:
    raise missing_attribute_error("shardwise.typing", name, __all__)
