"""Products of matrices and vectors with the signatures of the array API standard, matrix_power and multi_dot."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.base.docstrings import Parameter, documented
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.ops.linalg.batched import identity
from shardwise.lax.precision import PrecisionLike
from shardwise.numpy import products, shapes, triangles
from shardwise.numpy.families import ARRAYS, NOT_AN_ARRAY, PRODUCT
from shardwise.numpy.linalg.linear_systems import inv
from shardwise.typing import ArrayLike, DTypeLike, OutSharding

_MATRICES = ARRAYS.extended(
    {"x": Parameter("the matrices.", NOT_AN_ARRAY)}, raises=["ValueError: if `x` has a rank below 2."]
)
_CONTRACTION = PRODUCT.extended(
    {"x1, x2": "the operands. Dims other than `axis` broadcast.", "axis": "the axis that holds the vectors."}
)


@documented(PRODUCT, returns="The product, without the dim of an operand that is a vector.")
def matmul(
    x1: ArrayLike, x2: ArrayLike, /, *, precision: PrecisionLike = None, preferred_element_type: DTypeLike | None = None
) -> Array:
    """Multiply matrices, which are in the last two dims.

    Args:
        x1, x2: the operands, of rank 1 or more. An operand of rank 1 is a vector; dims before the last two broadcast.

    Raises:
        TypeError: if the shapes do not match.

    Example:
        >>> jnp.linalg.matmul(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
    """
    return products.matmul(x1, x2, precision=precision, preferred_element_type=preferred_element_type)


@documented(_CONTRACTION, returns="The dot products, without `axis`.")
def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Compute the dot product of vectors along an axis; the first operand is conjugated.

    Raises:
        TypeError: if the sizes along `axis` differ, or if the other dims do not broadcast.
        ValueError: if an operand has rank 0, or if `axis` or `precision` does not exist.

    Example:
        >>> jnp.linalg.vecdot(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
    """
    return products.vecdot(x1, x2, axis=axis, precision=precision, preferred_element_type=preferred_element_type)


@documented(PRODUCT, returns="The result, with the remaining dims of `x1` before those of `x2`.")
def tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axes: int | Sequence[int | Sequence[int]] = 2,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Contract dims of two arrays.

    Args:
        x1, x2: the operands.
        axes: the number n of dims to contract, the last n of `x1` with the first n of `x2`; or a pair of sequences, the
            axes of `x1` and those of `x2`.

    Raises:
        TypeError: if the numbers or the sizes of the contracted dims differ.
        ValueError: if `axes` is not a number or a pair, or if an axis or `precision` does not exist.

    Example:
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


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Compute the outer product of two vectors.

    Args:
        x1, x2: the vectors.

    Returns:
        A matrix with the element `x1[i] * x2[j]` in row i and column j.

    Raises:
        TypeError: if an argument is not an array or a number.
        ValueError: if an argument is not of rank 1.

    Example:
        >>> jnp.linalg.outer(jnp.array([1, 2]), jnp.array([10, 1]))
        Array([[10,  1],
               [20,  2]], dtype=int32)
    """
    types = type_of(x1, "outer"), type_of(x2, "outer")
    if any(each.ndim != 1 for each in types):
        raise ValueError(
            f"outer: x1 and x2 must be vectors, not {types[0]} and {types[1]}; `jnp.outer` flattens arrays"
        )
    return products.outer(x1, x2)


@documented(_CONTRACTION, returns="The cross products, along the same axis.")
def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Array:
    """Compute the cross product of vectors with three elements.

    Raises:
        TypeError: if the other dims do not broadcast, or `axis` is not an integer.
        ValueError: if the size along `axis` is not 3, or `axis` does not exist.

    Example:
        >>> jnp.linalg.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
        Array([0, 0, 1], dtype=int32)
    """
    types = type_of(x1, "cross"), type_of(x2, "cross")
    if any(each.shape[canonical_axis("cross", axis, each.ndim)] != 3 for each in types):
        raise ValueError(f"cross: the size along axis {axis} must be 3, not that of {types[0]} and {types[1]}")
    return products.cross(x1, x2, axis=axis)


@documented(_MATRICES, returns="The sums of the diagonals.")
def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Array:
    """Compute the trace of matrices, which are in the last two dims.

    Args:
        offset: the diagonal to sum: 0 is the main one, positive numbers are above it, negative ones below.
        dtype: the dtype of the result. None is the dtype that `sum` uses.

    Example:
        >>> jnp.linalg.trace(jnp.array([[1, 2], [3, 4]]))
        Array(5, dtype=int32)
    """
    return triangles.trace(x, offset=offset, axis1=-2, axis2=-1, dtype=dtype)


@documented(_MATRICES, returns="The diagonals, along the last dim.")
def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """Return a diagonal of matrices, which are in the last two dims.

    Args:
        offset: the diagonal: 0 is the main one, positive numbers are above it, negative ones below.

    Example:
        >>> jnp.linalg.diagonal(jnp.array([[1, 2], [3, 4]]))
        Array([1, 4], dtype=int32)
    """
    return triangles.diagonal(x, offset=offset, axis1=-2, axis2=-1)


@documented(_MATRICES, returns="The array with its last two dims exchanged.")
def matrix_transpose(x: ArrayLike, /) -> Array:
    """Transpose matrices, which are in the last two dims.

    Example:
        >>> jnp.linalg.matrix_transpose(jnp.array([[1, 2], [3, 4]]))
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    return shapes.matrix_transpose(x)


def matrix_power(a: ArrayLike, n: int) -> Array:
    """Raise square matrices to an integer power.

    Args:
        a: the matrices, in the last two dims.
        n: the exponent. A negative one raises the inverse.

    Returns:
        The powers.

    Raises:
        TypeError: if `a` does not hold square matrices, or if `n` is not an integer.

    Example:
        >>> jnp.linalg.matrix_power(jnp.array([[1, 1], [0, 1]]), 5)
        Array([[1, 5],
               [0, 1]], dtype=int32)
    """
    a_type = type_of(a, "matrix_power")
    if a_type.ndim < 2 or a_type.shape[-1] != a_type.shape[-2]:
        raise TypeError(f"matrix_power: a must hold square matrices, not {a_type}")
    try:
        exponent = operator.index(n)
    except TypeError:
        raise TypeError(f"matrix_power: the exponent must be an integer, not {n!r}") from None
    return _matrix_power(inv(a) if exponent < 0 else a, n=abs(exponent))


@compiled_function
def _matrix_power(a: ArrayLike, *, n: int) -> Any:
    """Compute a non-negative power by repeated squaring."""
    square = as_operand(a, "matrix_power")
    if not n:
        return identity(square.type.shape, square.type.dtype)
    result: Array | None = None
    while True:
        if n % 2:
            result = square if result is None else result @ square
        n //= 2
        if not n:
            return result
        square = square @ square


@documented(PRODUCT, returns="The product.")
def multi_dot(arrays: Sequence[ArrayLike], *, precision: PrecisionLike = None) -> Array:
    """Multiply two or more matrices in the order that needs the fewest multiplications.

    Args:
        arrays: the matrices. The first and the last may be vectors.

    Raises:
        TypeError: if the shapes of neighbours do not match.
        ValueError: if there are fewer than two arrays, or if an array has another rank.

    Example:
        >>> jnp.linalg.multi_dot([jnp.array([[1, 2]]), jnp.array([[3], [4]]), jnp.array([[5, 6]])])
        Array([[55, 66]], dtype=int32)
    """
    types = [type_of(x, "multi_dot") for x in arrays]
    inner = types[1:-1]
    if len(types) < 2 or any(each.ndim != 2 for each in inner) or any(each.ndim not in (1, 2) for each in types):
        shown = ", ".join(map(str, types))
        raise ValueError(
            f"multi_dot: arrays must be two or more matrices, of which the first and last may be vectors, not {shown}"
        )
    sizes = [1 if types[0].ndim == 1 else types[0].shape[0], *(each.shape[0] for each in types[1:])]
    sizes.append(1 if types[-1].ndim == 1 else types[-1].shape[1])

    def chain_product(first: int, last: int) -> Any:
        if first == last:
            return arrays[first]
        split = splits[first, last]
        return products.matmul(chain_product(first, split), chain_product(split + 1, last), precision=precision)

    splits = _optimal_splits(sizes)
    return chain_product(0, len(types) - 1)


def _optimal_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Solve the matrix chain problem: for each (first, last), the matrix after which to split the product.

    Matrix i has shape (sizes[i], sizes[i + 1]).
    """
    count = len(sizes) - 1
    cost = {(index, index): 0 for index in range(count)}
    splits: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            costs = {
                split: cost[first, split] + cost[split + 1, last] + sizes[first] * sizes[split + 1] * sizes[last + 1]
                for split in range(first, last)
            }
            splits[first, last] = min(costs, key=costs.__getitem__)
            cost[first, last] = costs[splits[first, last]]
    return splits
