"""Static slices, padding, concatenation and reversal."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse, Slice, slice_along
from shardwise.lax.families import ARRAY
from shardwise.typing import ArrayLike, Arrays


@documented(ARRAY, returns="The slice.")
def slice(
    operand: ArrayLike, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    """Slice an array at static indices.

    Args:
        start_indices: the start along each dim.
        limit_indices: the end along each dim, exclusive.
        strides: the stride along each dim, 1 or more. None means 1.

    Raises:
        TypeError: if there is not one number per dim, or a slice is out of bounds.
        TracerIntegerConversionError: if an index is traced; use `dynamic_slice`.

    Example:
        >>> lax.slice(jnp.arange(6), (1,), (5,), (2,))
        Array([1, 3], dtype=int32)
    """
    start = _integers(start_indices)
    stride = (1,) * len(start) if strides is None else _integers(strides)
    return Slice(start, _integers(limit_indices), stride)(as_operand(operand, "slice"))


@documented(ARRAY, returns="The slice.")
def slice_in_dim(
    operand: ArrayLike, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Array:
    """Slice an array along one dim at static indices.

    Args:
        start_index: the start. None means 0. Negative numbers count from the end.
        limit_index: the end, exclusive. None means the size of the dim. Negative numbers count from the end.
        stride: the stride, 1 or more.
        axis: the dim to slice.

    Raises:
        TypeError: if the slice is out of bounds, or the stride is less than 1.
        ValueError: if `axis` does not exist.
        TracerIntegerConversionError: if `limit_index` or `start_index` is traced; use `dynamic_slice_in_dim`.

    Example:
        >>> lax.slice_in_dim(jnp.arange(6), -3, None)
        Array([3, 4, 5], dtype=int32)
    """
    x = as_operand(operand, "slice_in_dim")
    dim = canonical_axis("slice_in_dim", axis, x.type.ndim)
    size = x.type.shape[dim]
    start, limit = (
        default if index is None else index + size * (index < 0)
        for index, default in ((start_index, 0), (limit_index, size))
    )
    return slice_along(x, dim, operator.index(start), operator.index(limit), operator.index(stride))


@documented(ARRAY, returns="The padded array.")
def pad(operand: ArrayLike, padding_value: ArrayLike, padding_config: Sequence[tuple[int, int, int]]) -> Array:
    """Pad an array with a scalar, around it and between its elements.

    Args:
        padding_value: the scalar to pad with.
        padding_config: (low, high, interior) for each dim. Negative low or high padding removes elements.

    Raises:
        TypeError: if the padding value is not a scalar that the dtype can hold, or `padding_config` does not fit the
            array.

    Example:
        >>> lax.pad(jnp.array([1, 2]), 0, [(1, 2, 1)])
        Array([0, 1, 0, 2, 0, 0], dtype=int32)
    """
    type = type_of(operand, "pad")
    if promote_dtypes("pad", (type, type_of(padding_value, "pad")))[0] != type.dtype:
        raise TypeError(f"pad: {type} cannot hold a padding value of type {type_of(padding_value, 'pad')}")
    config = [_integers(counts) for counts in padding_config]
    if any(len(counts) != 3 for counts in config):
        raise TypeError(f"pad: padding_config must have (low, high, interior) for each dim, not {padding_config}")
    low, high, interior = (tuple(counts[i] for counts in config) for i in range(3))
    return _pad(operand, padding_value, op=Pad(low, high, interior))


@compiled_function
def _pad(x: ArrayLike, value: ArrayLike, *, op: Pad) -> Any:
    x, value = as_operand(x, "pad"), as_operand(value, "pad")
    return op(x, astype_weak(value, x.type.dtype, x.type.weak and value.type.weak))


def concatenate(operands: Arrays, dimension: int) -> Array:
    """Concatenate arrays along a dim.

    Args:
        operands: arrays of the same dtype that have equal sizes in all other dims.
        dimension: the dim, counted from 0.

    Returns:
        The concatenated array.

    Raises:
        TypeError: if there are no arrays, the dim does not exist, or dtypes or other sizes differ.

    Example:
        >>> lax.concatenate([jnp.arange(2), jnp.arange(3)], 0)
        Array([0, 1, 0, 1, 2], dtype=int32)
    """
    arrays = [as_operand(x, "concatenate") for x in operands]
    op = Concatenate(operator.index(dimension))
    if len(arrays) == 1:
        op.out_type(arrays[0].type)  # check the dim
        return arrays[0]
    return op(*arrays)


@documented(ARRAY, returns="An array of the same shape.", raises=["TypeError: if a dim does not exist or repeats."])
def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Reverse the order of the elements along dims.

    Args:
        dimensions: the dims to reverse, counted from 0.

    Example:
        >>> lax.rev(jnp.arange(3), (0,))
        Array([2, 1, 0], dtype=int32)
    """
    return Reverse(_integers(dimensions))(as_operand(operand, "rev"))


def _integers(values: Sequence[int]) -> tuple[int, ...]:
    """Convert `values` to a tuple of static integers."""
    return tuple(map(operator.index, values))
