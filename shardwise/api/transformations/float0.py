"""float0: the dtype of tangents and cotangents of integers and booleans. An array of it has a shape, but no elements.

Traced functions accept and return float0 arrays, but no program has a value for them. `flatten_hiding_float0` replaces
each by a pytree node without children, so that it is part of the structure; unflattening returns the array.
"""

from typing import Any, TypeGuard, TypeVar, final

import numpy as np

from shardwise import tree, tree_util

_T = TypeVar("_T")

float0 = np.dtype([("float0", np.void, 0)])


@final
class HiddenFloat0:
    """A float0 array of this shape, as a pytree node without children."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape


def _array(shape: tuple[int, ...], _: object) -> Any:
    return np.zeros(shape, float0)


tree_util.register_pytree_node(HiddenFloat0, lambda node: ((), node.shape), _array)


def is_float0(x: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Return whether `x` is a numpy array of dtype float0."""
    return isinstance(x, np.ndarray) and x.dtype == float0


def is_float0_dtype(dtype: object) -> bool:
    """Return whether a dtype that the user passes is float0; None is not."""
    return isinstance(dtype, np.dtype) and dtype == float0


def hide_float0(x: _T) -> _T:
    """Return a pytree with its float0 arrays replaced by nodes without children."""
    leaves, structure = tree.flatten(x)
    if not any(map(is_float0, leaves)):
        return x
    return structure.unflatten([HiddenFloat0(leaf.shape) if is_float0(leaf) else leaf for leaf in leaves])


def flatten_hiding_float0(x: object) -> tuple[list[Any], tree.Structure]:
    """Return the leaves and the structure of a pytree; float0 arrays belong to the structure."""
    leaves, structure = tree.flatten(x)
    return tree.flatten(hide_float0(x)) if any(map(is_float0, leaves)) else (leaves, structure)
