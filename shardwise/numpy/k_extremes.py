"""top_k: the largest or smallest elements along an axis."""

import operator
from typing import Any

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_list_function, type_of
from shardwise.compiler.ops.shape.slicing import slice_along
from shardwise.lax import sorting
from shardwise.numpy.families import ARRAYS
from shardwise.numpy.indexing import take_along_axis
from shardwise.numpy.ordering import argsort
from shardwise.typing import ArrayLike


@documented(ARRAYS)
def top_k(
    a: ArrayLike, k: int, /, *, axis: int = -1, mode: str = "largest", sorted: bool = True
) -> tuple[Array, Array]:
    """Return the `k` largest or smallest elements along an axis and their indices.

    NaN counts as larger than any number. Of equal elements the first ones are returned.

    Args:
        a: the array of real numbers or booleans.
        k: the number of elements.
        axis: the axis to search along.
        mode: "largest" for the largest elements in descending order, "smallest" for the smallest in ascending order.
        sorted: not used, as the elements are always sorted.

    Returns:
        The elements, and their indices along `axis`.

    Raises:
        ValueError: if `k` exceeds the size of the axis, if `axis` is out of bounds, if `mode` is unknown, or if the
            numbers are complex.

    Example:
        >>> jnp.top_k(jnp.array([30, 10, 20]), 2, mode="smallest")
        (Array([10, 20], dtype=int32), Array([1, 2], dtype=int32))
    """
    type = type_of(a, "top_k")
    if type.dtype.kind == "c":
        raise ValueError(f"top_k: complex numbers have no order, and the array is {type}")
    if mode not in ("largest", "smallest"):
        raise ValueError(f"top_k: mode must be 'largest' or 'smallest', not {mode!r}")
    dim = canonical_axis("top_k", axis, type.ndim)
    if not 0 <= operator.index(k) <= type.shape[dim]:
        raise ValueError(f"top_k: k must be 0 to {type.shape[dim]}, the size of axis {axis} of {type}, not {k}")
    values, indices = sorting.top_k(a, k, axis=dim) if mode == "largest" else _smallest(a, k=k, dim=dim)
    return values, indices


@compiled_list_function
def _smallest(a: ArrayLike, *, k: int, dim: int) -> list[Any]:
    indices = slice_along(argsort(a, dim), dim, 0, k)
    return [take_along_axis(a, indices, dim), indices]
