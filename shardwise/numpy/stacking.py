"""Arrays put together along dims that they may lack: hstack, vstack, dstack, column_stack, block, concat."""

from typing import Any

from shardwise.compiler.ops import methods
from shardwise.compiler.ops.operands import as_operand, type_of
from shardwise.numpy.joining import concatenate
from shardwise.numpy.shapes import atleast_1d, atleast_2d, atleast_3d


def concat(arrays: Any, /, *, axis: int | None = 0) -> Any:
    """`concatenate`, as the array API standard names it.

    >>> jnp.concat([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int32)
    """
    return concatenate(arrays, axis)


def hstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays one after the other along dim 1; rows, along their only dim.

    >>> jnp.hstack([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int32)
    """
    arrays = [atleast_1d(x) for x in _given("hstack", tup)]
    return concatenate(arrays, axis=min(1, arrays[0].type.ndim - 1), dtype=dtype)


def vstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays one after the other along dim 0; rows are matrices of one row.

    >>> jnp.vstack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    return concatenate([atleast_2d(x) for x in _given("vstack", tup)], axis=0, dtype=dtype)


def dstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays one after the other along dim 2, which matrices and rows are given first.

    >>> jnp.dstack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[[1, 3],
            [2, 4]]], dtype=int32)
    """
    return concatenate([atleast_3d(x) for x in _given("dstack", tup)], axis=2, dtype=dtype)


def column_stack(tup: Any) -> Any:
    """Rows as the columns of a matrix, beside those of matrices.

    >>> jnp.column_stack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    arrays = _given("column_stack", tup)
    columns = [atleast_2d(x) if type_of(x).ndim != 1 else methods.reshape(x, shape=(-1, 1)) for x in arrays]
    return concatenate(columns, axis=1)


def _given(name: str, arrays: Any) -> list[Any]:
    found = list(arrays)
    if not found:
        raise ValueError(f"{name}: needs at least one array")
    for x in found:
        type_of(x, name)  # an error that names the function
    return found


def block(arrays: Any) -> Any:
    """An array put together of blocks, given as nested lists: the innermost along the last dim, and so on outwards.

    >>> jnp.block([[jnp.ones((1, 2)), 2], [3, jnp.zeros((1, 2))]])
    Array([[1., 1., 2.],
           [3., 0., 0.]], dtype=float32)
    """
    depth = _depth(arrays)
    return _block(arrays, depth, max(depth, _rank(arrays)))


def _depth(arrays: Any) -> int:
    """How deep the lists are nested."""
    if isinstance(arrays, tuple):
        raise ValueError(f"block: blocks come in lists, not in a tuple: {arrays!r}")
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ValueError("block: a list has no blocks in it")
    found = {_depth(part) for part in arrays}
    if len(found) > 1:
        raise ValueError(
            f"block: lists must be nested equally deep everywhere, not {' and '.join(map(str, found))} deep"
        )
    return 1 + found.pop()


def _rank(arrays: Any) -> int:
    return max(map(_rank, arrays)) if isinstance(arrays, list) else type_of(arrays, "block").ndim


def _block(arrays: Any, depth: int, rank: int) -> Any:
    if isinstance(arrays, list):
        return concatenate([_block(part, depth - 1, rank) for part in arrays], axis=-depth)
    x = as_operand(arrays)
    return methods.reshape(x, shape=(1,) * (rank - x.type.ndim) + x.type.shape)
