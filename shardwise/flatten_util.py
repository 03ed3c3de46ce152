"""ravel_pytree: a pytree of arrays as one vector, and back."""

from collections.abc import Callable
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array, astype, reshape
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.types import ArrayType
from shardwise.numpy.creation import zeros
from shardwise.numpy.dtypes import result_type
from shardwise.numpy.joining import concatenate
from shardwise.typing import ArrayLike


def ravel_pytree(pytree: object) -> tuple[Array, Callable[[Any], Any]]:
    """Concatenate the elements of a pytree of arrays to one vector.

    Args:
        pytree: a pytree of arrays and numbers.

    Returns:
        A vector of the dtype that the arrays promote to, and a function that converts a vector of this size to a pytree
        like `pytree`. If all arrays have one dtype, the function keeps the dtype of its argument; else it restores the
        dtype of each array, and its argument must have the dtype of the vector.

    Raises:
        TypeError: if a leaf is not an array or a number; from the function, if the vector has another shape, or another
            dtype where the arrays differ in dtype.

    Example:
        >>> vector, unravel = jax.flatten_util.ravel_pytree({"a": jnp.ones(2), "b": 3.0})
        >>> vector
        Array([1., 1., 3.], dtype=float32)
        >>> unravel(2 * vector)
        {'a': Array([2., 2.], dtype=float32), 'b': Array(6., dtype=float32)}
    """
    leaves, structure = tree.flatten(pytree)
    types = tuple(type_of(leaf, "ravel_pytree") for leaf in leaves)
    if not leaves:
        return zeros(0), _Unravel(structure, types, np.dtype(np.float32))
    dtype = result_type(*leaves)
    vector = concatenate([reshape(astype(as_operand(leaf), dtype=dtype), shape=-1) for leaf in leaves])
    return vector, _Unravel(structure, types, dtype)


@final
class _Unravel:
    """The function from a vector to a pytree of arrays; equal for equal structures and types."""

    def __init__(self, structure: tree.Structure, types: tuple[ArrayType, ...], dtype: DType):
        self._key = (structure, types, dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unravel) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, vector: ArrayLike) -> Any:
        structure, types, dtype = self._key
        x = as_operand(vector, "ravel_pytree")
        size = sum(type.size for type in types)
        if x.type.shape != (size,):
            raise TypeError(f"the function that ravel_pytree returned needs a vector of {size} elements, not {x.type}")
        is_uniform = all(type.dtype == dtype for type in types)
        if not is_uniform and x.type.dtype != dtype:
            raise TypeError(
                f"the function that ravel_pytree returned needs a vector of {dtype}, not {x.type}, because the arrays "
                "of the pytree differ in dtype"
            )
        leaves, start = [], 0
        for type in types:
            part = reshape(x[start : start + type.size], shape=type.shape)
            leaves.append(part if is_uniform else astype(part, dtype=type.dtype))
            start += type.size
        return structure.unflatten(leaves)


publish(__name__)
