"""Types for annotations: what functions take where they say that they take arrays and dtypes."""

from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from shardwise.compiler.ops.methods import ArrayMethods
from shardwise.errors import not_here

__all__ = ["ArrayLike", "DTypeLike"]


class SupportsDType(Protocol):
    """Has a dtype, as arrays do."""

    @property
    def dtype(self) -> np.dtype[Any]: ...


# Without parameters, so that `isinstance` takes it too.
ArrayLike: TypeAlias = ArrayMethods | np.ndarray | np.bool_ | np.number | bool | int | float | complex
DTypeLike: TypeAlias = str | type[Any] | np.dtype[Any] | SupportsDType


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.typing", name, __all__)
