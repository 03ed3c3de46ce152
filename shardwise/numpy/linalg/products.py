"""Products of matrices and vectors as the array API standard has them, powers, and chains of products."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ops.matrix import identity
from shardwise.compiler.ops.operands import composed, type_of
from shardwise.numpy import products, shapes, triangles
from shardwise.numpy.linalg.solving import inv


def matmul(x1: Any, x2: Any, /, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The product of matrices, which are the last two dims; dims before them broadcast.

    >>> jnp.linalg.matmul(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
    Array([12, 34], dtype=int32)
    """
    return products.matmul(x1, x2, precision=precision, preferred_element_type=preferred_element_type)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The products of vectors along `axis`, of which the first is conjugated; other dims broadcast.

    >>> jnp.linalg.vecdot(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
    Array([12, 34], dtype=int32)
    """
    return products.vecdot(x1, x2, axis=axis, precision=precision, preferred_element_type=preferred_element_type)


def tensordot(
    x1: Any,
    x2: Any,
    /,
    *,
    axes: Any = 2,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The product summed over `axes`: so many last dims of `x1` with as many first ones of `x2`, or those of two lists.

    >>> jnp.linalg.tensordot(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]), axes=1)
    Array([12, 34], dtype=int32)
    """
    return products.tensordot(
        x1,
        x2,
        axes,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


def outer(x1: Any, x2: Any, /) -> Any:
    """Each element of one vector times each of another.

    >>> jnp.linalg.outer(jnp.array([1, 2]), jnp.array([10, 1]))
    Array([[10,  1],
           [20,  2]], dtype=int32)
    """
    kinds = type_of(x1, "outer"), type_of(x2, "outer")
    if any(kind.ndim != 1 for kind in kinds):
        raise ValueError(f"outer: needs two vectors, not {kinds[0]} and {kinds[1]}; `jnp.outer` flattens arrays")
    return products.outer(x1, x2)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross products of vectors of three numbers along `axis`.

    >>> jnp.linalg.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
    Array([0, 0, 1], dtype=int32)
    """
    kinds = type_of(x1, "cross"), type_of(x2, "cross")
    if any(kind.shape[axis] != 3 for kind in kinds):
        raise ValueError(f"cross: needs vectors of 3 numbers along axis {axis}, not {kinds[0]} and {kinds[1]}")
    return products.cross(x1, x2, axis=axis)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sums of the diagonals of matrices, which are the last two dims.

    >>> jnp.linalg.trace(jnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    return triangles.trace(x, offset=offset, axis1=-2, axis2=-1, dtype=dtype)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of matrices, which are the last two dims.

    >>> jnp.linalg.diagonal(jnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    return triangles.diagonal(x, offset=offset, axis1=-2, axis2=-1)


def matrix_transpose(x: Any, /) -> Any:
    """The transposes of matrices, which are the last two dims.

    >>> jnp.linalg.matrix_transpose(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    return shapes.matrix_transpose(x)


def matrix_power(a: Any, n: int) -> Any:
    """Square matrices multiplied by themselves `n` times; by their inverses where `n` is negative.

    >>> jnp.linalg.matrix_power(jnp.array([[1, 1], [0, 1]]), 5)
    Array([[1, 5],
           [0, 1]], dtype=int32)
    """
    kind = type_of(a, "matrix_power")
    if kind.ndim < 2 or kind.shape[-1] != kind.shape[-2]:
        raise TypeError(f"matrix_power: needs square matrices, not {kind}")
    try:
        exponent = operator.index(n)
    except TypeError:
        raise TypeError(f"matrix_power: the exponent must be an integer, not {n!r}") from None
    return _power(inv(a) if exponent < 0 else a, n=abs(exponent))


@composed
def _power(a: Any, *, n: int) -> Any:
    """By squares: as many products as the exponent has bits, and one more for each bit that is set."""
    if not n:
        return identity(a.type.shape, a.type.dtype)
    found, square = None, a
    while True:
        if n % 2:
            found = square if found is None else found @ square
        n //= 2
        if not n:
            return found
        square = square @ square


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Any:
    """The product of several matrices, in the order that takes the fewest multiplications; the first and the last may
    be vectors.

    >>> jnp.linalg.multi_dot([jnp.array([[1, 2]]), jnp.array([[3], [4]]), jnp.array([[5, 6]])])
    Array([[55, 66]], dtype=int32)
    """
    kinds = [type_of(x, "multi_dot") for x in arrays]
    inner = kinds[1:-1]
    if len(kinds) < 2 or any(kind.ndim != 2 for kind in inner) or any(kind.ndim not in (1, 2) for kind in kinds):
        shown = ", ".join(map(str, kinds))
        raise ValueError(f"multi_dot: needs two or more matrices, of which the first and last may be vectors: {shown}")
    sizes = [1 if kinds[0].ndim == 1 else kinds[0].shape[0], *(kind.shape[0] for kind in kinds[1:])]
    sizes.append(1 if kinds[-1].ndim == 1 else kinds[-1].shape[1])

    def joined(first: int, last: int) -> Any:
        if first == last:
            return arrays[first]
        at = splits[first, last]
        return products.matmul(joined(first, at), joined(at + 1, last), precision=precision)

    splits = _splits(sizes)
    return joined(0, len(kinds) - 1)


def _splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """For each stretch of a chain of matrices, after which one to cut it so that its products are cheapest."""
    count = len(sizes) - 1
    cost = {(number, number): 0 for number in range(count)}
    found: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            prices = {
                at: cost[first, at] + cost[at + 1, last] + sizes[first] * sizes[at + 1] * sizes[last + 1]
                for at in range(first, last)
            }
            found[first, last] = min(prices, key=prices.__getitem__)
            cost[first, last] = prices[found[first, last]]
    return found
