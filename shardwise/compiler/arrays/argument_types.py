"""Types of the arguments of functions and methods of arrays, for annotations.

The modules that `methods` imports refer to them in quotes, and import them for type checkers only.
"""

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from shardwise.compiler.arrays.dynamic_index import Slice
from shardwise.compiler.arrays.methods import Array

# Without type parameters, so that it can be used with `isinstance`.
ArrayLike: TypeAlias = Array | np.ndarray | np.bool_ | np.number | bool | int | float | complex
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
Axes: TypeAlias = int | Sequence[int] | None
# The axes of reductions, which also accept names of axes that `vmap` or `shard_map` maps.
NamedAxes: TypeAlias = int | str | Sequence[int | str] | None
# An index of an array, as in `x[index]`.
IndexEntry: TypeAlias = ArrayLike | SupportsIndex | slice | Slice | list[Any] | tuple[Any, ...] | EllipsisType | None
Index: TypeAlias = IndexEntry | tuple[IndexEntry, ...]
