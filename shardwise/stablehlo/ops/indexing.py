"""Slices at traced indices, gathers and scatters."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.monoids import monoids
from shardwise.stablehlo.operation import Operation

_SCATTERS = {
    "add": lax.scatter_add,
    "maximum": lax.scatter_max,
    "minimum": lax.scatter_min,
    "multiply": lax.scatter_mul,
}


def _dynamic_slice(op: Operation, x: Array, *starts: Array) -> Any:
    return DynamicSlice(op.integers("slice_sizes"))(x, *starts)


def _dynamic_update_slice(op: Operation, x: Array, update: Array, *starts: Array) -> Any:
    return DynamicUpdateSlice()(x, update, *starts)


def _index_vectors(indices: Array, dim: int) -> Array:
    """Return indices whose index vectors are along the last dim. StableHLO may have scalars as index vectors."""
    if dim == indices.ndim:
        return lax.reshape(indices, (*indices.shape, 1))
    if dim == indices.ndim - 1:
        return indices
    return lax.transpose(indices, (*(d for d in range(indices.ndim) if d != dim), dim))


def _without(dims: tuple[int, ...], removed: int) -> tuple[int, ...]:
    """Return dims of indices, after the dim of the index vectors was moved behind them."""
    return tuple(dim - (dim > removed) for dim in dims)


def _gather(op: Operation, x: Array, indices: Array) -> Any:
    numbers = op.numbers("dimension_numbers", "GatherDimensionNumbers")
    dim = numbers.index_vector_dim
    dimension_numbers = lax.GatherDimensionNumbers(
        tuple(numbers.offset_dims),
        tuple(numbers.collapsed_slice_dims),
        tuple(numbers.start_index_map),
        tuple(numbers.operand_batching_dims),
        _without(tuple(numbers.start_indices_batching_dims), dim),
    )
    # StableHLO moves windows into bounds.
    return lax.gather(
        x,
        _index_vectors(indices, dim),
        dimension_numbers,
        op.integers("slice_sizes"),
        indices_are_sorted=op.flag("indices_are_sorted"),
        mode="clip",
    )


def _scatter(op: Operation, *operands: Array) -> Any:
    if len(operands) != 3:
        raise UnsupportedError("several operands are not supported: write one scatter for each")
    x, indices, updates = operands
    numbers = op.numbers("scatter_dimension_numbers", "ScatterDimensionNumbers")
    dim = numbers.index_vector_dim
    dimension_numbers = lax.ScatterDimensionNumbers(
        tuple(numbers.update_window_dims),
        tuple(numbers.inserted_window_dims),
        tuple(numbers.scattered_dims_to_operand_dims),
        tuple(numbers.input_batching_dims),
        _without(tuple(numbers.scatter_indices_batching_dims), dim),
    )
    # StableHLO ignores windows that are out of bounds.
    return _scatter_function(op, x)(
        x,
        _index_vectors(indices, dim),
        updates,
        dimension_numbers,
        indices_are_sorted=op.flag("indices_are_sorted"),
        unique_indices=op.flag("unique_indices"),
        mode="drop",
    )


def _scatter_function(op: Operation, x: Array) -> Callable[..., Any]:
    block = op.regions[0]
    if list(block.operations[0].operation.operands) == [block.arguments[1]] and len(block.operations) == 1:
        return lax.scatter
    names = monoids(block)
    if names is None or names[0] not in _SCATTERS or x.dtype == np.bool_:
        raise UnsupportedError("the region must return the update, or a sum, product, maximum or minimum of numbers")
    return _SCATTERS[names[0]]


OPS: dict[str, Callable[..., Any]] = {
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
}
