"""Functions that split an array along a dim: array_split, vsplit, hsplit, dsplit, unstack."""

import operator

import numpy as np

from shardwise.base.docstrings import Parameter, documented
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.lax import shape as lax_shape
from shardwise.numpy.families import ARRAYS, NOT_AN_ARRAY
from shardwise.numpy.joining import split
from shardwise.typing import ArrayLike, Sections

_SPLIT = ARRAYS.extended(
    {
        "ary": Parameter("the array, with at least 1 dim.", NOT_AN_ARRAY),
        "indices_or_sections": "the number of equal sections, or the indices at which to split.",
        "axis": "the axis to split along.",
    },
    "A list of arrays.",
    [
        "ValueError: if `ary` has no dims, its size is not a multiple of the number of sections, or the indices do\n"
        "not ascend."
    ],
)


@documented(_SPLIT)
def array_split(ary: ArrayLike, indices_or_sections: Sections, axis: int = 0) -> list[Array]:
    """Split an array into sections that may differ in size.

    Unlike `split`, the number of sections need not divide the size: the first sections are then longer by one.

    Args:
        ary: the array.
        indices_or_sections: the number of sections, or the indices at which to split.

    Raises:
        ValueError: if the number of sections is less than 1, the indices do not ascend, or `axis` does not exist.

    Example:
        >>> [part.tolist() for part in jnp.array_split(jnp.arange(5), 3)]
        [[0, 1], [2, 3], [4]]
    """
    array_type = type_of(ary, "array_split")
    points = np.asarray(indices_or_sections)
    if points.ndim:
        return split(ary, points, axis)
    count, size = operator.index(points[()]), array_type.shape[canonical_axis("array_split", axis, array_type.ndim)]
    if count < 1:
        raise ValueError(f"array_split: cannot split {array_type} into {count} sections; the minimum is 1")
    section_size, remainder = divmod(size, count)
    return split(ary, [section_size * index + min(index, remainder) for index in range(1, count)], axis)


@documented(_SPLIT)
def vsplit(ary: ArrayLike, indices_or_sections: Sections) -> list[Array]:
    """Split an array along dim 0, as `split` does.

    Example:
        >>> [part.shape for part in jnp.vsplit(jnp.ones((4, 2)), 2)]
        [(2, 2), (2, 2)]
    """
    return split(ary, indices_or_sections, 0)


@documented(_SPLIT)
def hsplit(ary: ArrayLike, indices_or_sections: Sections) -> list[Array]:
    """Split an array along dim 1, or along dim 0 if it has rank 1.

    Example:
        >>> [part.shape for part in jnp.hsplit(jnp.ones((4, 2)), 2)]
        [(4, 1), (4, 1)]
    """
    return split(ary, indices_or_sections, min(1, max(0, type_of(ary, "hsplit").ndim - 1)))


@documented(_SPLIT)
def dsplit(ary: ArrayLike, indices_or_sections: Sections) -> list[Array]:
    """Split an array along dim 2, as `split` does.

    Args:
        ary: the array, with at least 3 dims.

    Raises:
        ValueError: if `ary` has fewer than 3 dims, its size is not a multiple of the number of sections, or the indices
            do not ascend.

    Example:
        >>> [part.shape for part in jnp.dsplit(jnp.ones((4, 2, 6)), 3)]
        [(4, 2, 2), (4, 2, 2), (4, 2, 2)]
    """
    return split(ary, indices_or_sections, 2)


@documented(_SPLIT, returns="A tuple with one array per index along `axis`.")
def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Split an array into its slices along an axis and remove that axis from each.

    Args:
        x: the array, with at least 1 dim.

    Raises:
        ValueError: if `x` has no dims, or `axis` does not exist.

    Example:
        >>> jnp.unstack(jnp.array([[1, 2], [3, 4]]), axis=1)
        (Array([1, 3], dtype=int32), Array([2, 4], dtype=int32))
    """
    if not type_of(x, "unstack").ndim:
        raise ValueError("unstack: needs an array of 1 or more dims, not a 0-d array")
    return lax_shape.unstack(as_operand(x), axis)
