"""Types for annotations of functions that accept arrays, dtypes, shapes, axes and shardings.

`ArrayLike` and `DTypeLike` are public, as in `jax.typing`. The other aliases are for the functions of this package.
"""

from collections.abc import Sequence
from typing import Protocol, SupportsIndex, TypeAlias

import numpy as np

from shardwise.base import _jaxlib
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays import argument_types
from shardwise.compiler.arrays.argument_types import ArrayLike
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import DTypeLike, SupportsDType
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec

__all__ = ["ArrayLike", "DTypeLike"]


class SupportsShape(SupportsDType, Protocol):
    """An object with a `shape` and a `dtype`, such as an array or a `ShapeDtypeStruct`."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Shape: TypeAlias = argument_types.Shape
Axes: TypeAlias = argument_types.Axes
NamedAxes: TypeAlias = argument_types.NamedAxes
Index: TypeAlias = argument_types.Index
# A number, an array, or nested sequences of these, which `array` converts.
NestedArrays: TypeAlias = ArrayLike | Sequence["NestedArrays"]
# The operands of functions that join arrays. The elements of an array are its rows.
Arrays: TypeAlias = Sequence[ArrayLike] | Array | np.ndarray
# The number of equal sections, or the indices at which to split.
Sections: TypeAlias = SupportsIndex | Sequence[int] | Array | np.ndarray
Placement: TypeAlias = _jaxlib.Device | Sharding | None
OutSharding: TypeAlias = NamedSharding | PartitionSpec | None


set_public_names(__name__, __all__)
