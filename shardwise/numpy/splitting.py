"""Arrays taken apart along a dim."""

import operator
from typing import Any

import numpy as np

from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import as_operand, type_of
from shardwise.lax import shape as lax_shape
from shardwise.numpy.joining import split


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """As `split`, but parts need not be equal: where the size does not divide, the first are longer by one.

    >>> [part.tolist() for part in jnp.array_split(jnp.arange(5), 3)]
    [[0, 1], [2, 3], [4]]
    """
    kind = type_of(ary, "array_split")
    if np.ndim(indices_or_sections):
        return split(ary, indices_or_sections, axis)
    count, size = operator.index(indices_or_sections), kind.shape[dim_of("array_split", axis, kind.ndim)]
    if count < 1:
        raise ValueError(f"array_split: {kind} does not fall into {count} parts")
    each, more = divmod(size, count)
    return split(ary, [each * number + min(number, more) for number in range(1, count)], axis)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along dim 0.

    >>> [part.shape for part in jnp.vsplit(jnp.ones((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    return split(ary, indices_or_sections, 0)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along dim 1; of a row, along its only dim.

    >>> [part.shape for part in jnp.hsplit(jnp.ones((4, 2)), 2)]
    [(4, 1), (4, 1)]
    """
    return split(ary, indices_or_sections, min(1, max(0, type_of(ary, "hsplit").ndim - 1)))


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along dim 2.

    >>> [part.shape for part in jnp.dsplit(jnp.ones((4, 2, 6)), 3)]
    [(4, 2, 2), (4, 2, 2), (4, 2, 2)]
    """
    return split(ary, indices_or_sections, 2)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The slices along `axis`, each without that dim.

    >>> jnp.unstack(jnp.array([[1, 2], [3, 4]]), axis=1)
    (Array([1, 3], dtype=int32), Array([2, 4], dtype=int32))
    """
    if not type_of(x, "unstack").ndim:
        raise ValueError("unstack: a 0-d array has no dim to be taken apart along")
    return lax_shape.unstack(as_operand(x), axis)
