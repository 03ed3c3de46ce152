"""Functions that join arrays after raising their rank: hstack, vstack, dstack, column_stack, block; and concat."""

from typing import Any

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays import methods
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.numpy.joining import concatenate
from shardwise.numpy.shapes import atleast_1d, atleast_2d, atleast_3d
from shardwise.typing import Arrays, DTypeLike, NestedArrays

_STACK = Family(
    {"dtype": "the dtype of the result. By default, the promoted dtype of the arrays."},
    raises=[
        "TypeError: if an item is not an array or a number, or the shapes do not match.",
        "ValueError: if there are no arrays.",
    ],
)


@documented(_STACK, returns="The joined array, in the promoted dtype of the arrays.")
def concat(arrays: Arrays, /, *, axis: int | None = 0) -> Array:
    """Join arrays along an existing axis: `concatenate` under its name in the array API standard.

    Args:
        arrays: the arrays, which have the same shape except along `axis`.
        axis: the axis to join along. With None, the arrays are flattened first.

    Raises:
        ValueError: if there are no arrays, one of them has no dims, or `axis` does not exist.

    Example:
        >>> jnp.concat([jnp.array([1, 2]), jnp.array([3])])
        Array([1, 2, 3], dtype=int32)
    """
    return concatenate(arrays, axis)


@documented(_STACK, returns="The joined array.")
def hstack(tup: Arrays, dtype: DTypeLike | None = None) -> Array:
    """Join arrays along dim 1, or along dim 0 if they have rank 1.

    Args:
        tup: the arrays. Scalars become arrays of one element.

    Example:
        >>> jnp.hstack([jnp.array([1, 2]), jnp.array([3])])
        Array([1, 2, 3], dtype=int32)
    """
    arrays = [atleast_1d(x) for x in _checked_arrays("hstack", tup)]
    return concatenate(arrays, axis=min(1, arrays[0].type.ndim - 1), dtype=dtype)


@documented(_STACK, returns="The joined array, of rank 2 or more.")
def vstack(tup: Arrays, dtype: DTypeLike | None = None) -> Array:
    """Join arrays along dim 0.

    Args:
        tup: the arrays. Arrays of rank 1 become matrices of one row.

    Example:
        >>> jnp.vstack([jnp.array([1, 2]), jnp.array([3, 4])])
        Array([[1, 2],
               [3, 4]], dtype=int32)
    """
    return concatenate([atleast_2d(x) for x in _checked_arrays("vstack", tup)], axis=0, dtype=dtype)


@documented(_STACK, returns="The joined array, of rank 3 or more.")
def dstack(tup: Arrays, dtype: DTypeLike | None = None) -> Array:
    """Join arrays along dim 2.

    Args:
        tup: the arrays. Those of rank 2 or less are raised to rank 3 as by `atleast_3d`.

    Example:
        >>> jnp.dstack([jnp.array([1, 2]), jnp.array([3, 4])])
        Array([[[1, 3],
                [2, 4]]], dtype=int32)
    """
    return concatenate([atleast_3d(x) for x in _checked_arrays("dstack", tup)], axis=2, dtype=dtype)


@documented(_STACK, returns="The matrix, in the promoted dtype of the arrays.")
def column_stack(tup: Arrays) -> Array:
    """Join arrays of rank 1 and matrices as columns of one matrix.

    Args:
        tup: the arrays. Those of rank 1 become one column each.

    Example:
        >>> jnp.column_stack([jnp.array([1, 2]), jnp.array([3, 4])])
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    arrays = _checked_arrays("column_stack", tup)
    columns = [atleast_2d(x) if type_of(x).ndim != 1 else methods.reshape(x, shape=(-1, 1)) for x in arrays]
    return concatenate(columns, axis=1)


def _checked_arrays(name: str, arrays: Arrays) -> list[Any]:
    operands = list(arrays)
    if not operands:
        raise ValueError(f"{name}: needs at least one array")
    for x in operands:
        type_of(x, name)  # raises an error that names the function
    return operands


def block(arrays: NestedArrays) -> Array:
    """Assemble an array from nested lists of blocks.

    The innermost lists are joined along the last dim, the next level along the dim before it, and so on.

    Args:
        arrays: nested lists of arrays and scalars, all of the same depth.

    Returns:
        The assembled array, in the promoted dtype of the blocks.

    Raises:
        TypeError: if a block is not an array or a scalar, or the shapes do not match.
        ValueError: if a list is empty, a tuple is used, or the nesting depths differ.

    Example:
        >>> jnp.block([[jnp.ones((1, 2)), 2], [3, jnp.zeros((1, 2))]])
        Array([[1., 1., 2.],
               [3., 0., 0.]], dtype=float32)
    """
    depth = _nesting_depth(arrays)
    return _block(arrays, depth, max(depth, _max_rank(arrays)))


def _nesting_depth(arrays: NestedArrays) -> int:
    if isinstance(arrays, tuple):
        raise ValueError(f"block: blocks must be nested in lists, not in a tuple: {arrays!r}")
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ValueError("block: a list of blocks is empty")
    depths = {_nesting_depth(part) for part in arrays}
    if len(depths) > 1:
        raise ValueError(f"block: all lists must have the same nesting depth, not {' and '.join(map(str, depths))}")
    return 1 + depths.pop()


def _max_rank(arrays: NestedArrays) -> int:
    return max(map(_max_rank, arrays)) if isinstance(arrays, list) else type_of(arrays, "block").ndim


def _block(arrays: NestedArrays, depth: int, rank: int) -> Any:
    if isinstance(arrays, list):
        return concatenate([_block(part, depth - 1, rank) for part in arrays], axis=-depth)
    x = as_operand(arrays)
    return methods.reshape(x, shape=(1,) * (rank - x.type.ndim) + x.type.shape)
