"""Parts of arrays at places that are known, and arrays put together: close to the ops of `compiler/ops/slicing.py`."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse, Slice, slice_along


def slice(
    operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> Any:
    """Along dim i, every `strides[i]`-th element from `start_indices[i]` up to but not including `limit_indices[i]`.

    >>> lax.slice(jnp.arange(6), (1,), (5,), (2,))
    Array([1, 3], dtype=int32)
    """
    start = _integers(start_indices)
    stride = (1,) * len(start) if strides is None else _integers(strides)
    return Slice(start, _integers(limit_indices), stride)(as_operand(operand, "slice"))


def slice_in_dim(operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0) -> Any:
    """A slice along one dim. None is its start or its end; negative numbers count from its end.

    >>> lax.slice_in_dim(jnp.arange(6), -3, None)
    Array([3, 4, 5], dtype=int32)
    """
    x = as_operand(operand, "slice_in_dim")
    dim = canonical_axis("slice_in_dim", axis, x.type.ndim)
    size = x.type.shape[dim]
    start, limit = (
        default if at is None else at + size * (at < 0) for at, default in ((start_index, 0), (limit_index, size))
    )
    return slice_along(x, dim, operator.index(start), operator.index(limit), operator.index(stride))


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """`operand` with a scalar around it and between its elements: for each dim a low, a high and an interior count.

    A negative low or high count takes as many elements away.

    >>> lax.pad(jnp.array([1, 2]), 0, [(1, 2, 1)])
    Array([0, 1, 0, 2, 0, 0], dtype=int32)
    """
    kind = type_of(operand, "pad")
    if promote_dtypes("pad", (kind, type_of(padding_value, "pad")))[0] != kind.dtype:
        raise TypeError(f"pad: {kind} cannot hold the padding value, of type {type_of(padding_value, 'pad')}")
    config = [_integers(counts) for counts in padding_config]
    if any(len(counts) != 3 for counts in config):
        raise TypeError(f"pad: padding_config holds (low, high, interior) for each dim, not {padding_config}")
    low, high, interior = (tuple(counts[i] for counts in config) for i in range(3))
    return _padded(operand, padding_value, op=Pad(low, high, interior))


@compiled_function
def _padded(x: Any, value: Any, *, op: Pad) -> Any:
    x, value = as_operand(x, "pad"), as_operand(value, "pad")
    return op(x, astype_weak(value, x.type.dtype, x.type.weak and value.type.weak))


def concatenate(operands: Any, dimension: int) -> Any:
    """Arrays of one dtype, one after the other along `dimension`.

    >>> lax.concatenate([jnp.arange(2), jnp.arange(3)], 0)
    Array([0, 1, 0, 1, 2], dtype=int32)
    """
    arrays = [as_operand(x, "concatenate") for x in operands]
    joined = Concatenate(operator.index(dimension))
    if len(arrays) == 1:
        joined.out_type(arrays[0].type)
        return arrays[0]
    return joined(*arrays)


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """The elements in opposite order along `dimensions`.

    >>> lax.rev(jnp.arange(3), (0,))
    Array([2, 1, 0], dtype=int32)
    """
    return Reverse(_integers(dimensions))(as_operand(operand, "rev"))


def _integers(values: Sequence[int]) -> tuple[int, ...]:
    """As a static field can hold them; a traced number is an error that says so."""
    return tuple(map(operator.index, values))
