"""Types for annotations of functions that accept arrays, dtypes, shapes, axes and shardings.

`ArrayLike` and `DTypeLike` are public, as in `jax.typing`. The other aliases are for the functions of this package.
"""

from collections.abc import Sequence
from types import EllipsisType
from typing import Protocol, SupportsIndex, TypeAlias

import numpy as np

from shardwise.base import _jaxlib
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import DTypeLike, SupportsDType
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.runtime.sharding import NamedSharding, Sharding

__all__ = ["ArrayLike", "DTypeLike"]


class SupportsShape(SupportsDType, Protocol):
    """An object with a `shape` and a `dtype`, such as an array or a `ShapeDtypeStruct`."""

    @property
    def shape(self) -> tuple[int, ...]: ...


# Without type parameters, so that it can be used with `isinstance`.
ArrayLike: TypeAlias = Array | np.ndarray | np.bool_ | np.number | bool | int | float | complex

# A number, an array, or nested sequences of these, which `array` converts.
NestedArrays: TypeAlias = ArrayLike | Sequence["NestedArrays"]
# The operands of functions that join arrays. The elements of an array are its rows.
Arrays: TypeAlias = Sequence[ArrayLike] | Array | np.ndarray
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
Axes: TypeAlias = int | Sequence[int] | None
# The axes of reductions, which also accept names of axes that `vmap` or `shard_map` maps.
NamedAxes: TypeAlias = int | str | Sequence[int | str] | None
# The number of equal sections, or the indices at which to split.
Sections: TypeAlias = SupportsIndex | Sequence[int] | Array | np.ndarray
# An index of an array, as in `x[index]`.
_OneIndex: TypeAlias = ArrayLike | slice | Sequence[int] | EllipsisType | None
Index: TypeAlias = _OneIndex | tuple[_OneIndex, ...]
Placement: TypeAlias = _jaxlib.Device | Sharding | None
OutSharding: TypeAlias = NamedSharding | PartitionSpec | None


set_public_names(__name__, __all__)
