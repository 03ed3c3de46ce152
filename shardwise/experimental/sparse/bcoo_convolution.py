"""Convolutions of BCOO arrays: each pair of stored elements contributes to one element of the result.

The dims of the array, the kernel and the result have names, as those of the op `conv`: "b" is the batch dim, "i" the
input features, "o" the output features, and digits are spatial dims.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.bcoo_conversion import bcoo_fromdense
from shardwise.experimental.sparse.bcoo_layout import bcoo_sum_duplicates, bcoo_update_layout
from shardwise.experimental.sparse.coordinates import drop, is_inside
from shardwise.lax.conv_shapes import padtype_to_pads
from shardwise.lax.convolution import conv_dimension_numbers
from shardwise.typing import ArrayLike, DTypeLike, OutSharding


def bcoo_conv_general_dilated(
    lhs: BCOO | ArrayLike,
    rhs: BCOO | ArrayLike,
    *,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: None = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> BCOO:
    """Convolve two arrays, of which one or both are sparse.

    Args:
        lhs: the array.
        rhs: the kernel. A dense operand is converted, with all its elements.
        window_strides: the stride along each spatial dim.
        padding: "SAME", "SAME_LOWER" or "VALID", or the zeros before and after the array along each spatial dim.
        lhs_dilation: the distance between elements of the array along each spatial dim; 1 if None.
        rhs_dilation: the distance between elements of the kernel; 1 if None.
        dimension_numbers: the order of the dims, as for `lax.conv_general_dilated`.
        feature_group_count, batch_group_count: must be 1.
        precision: not used.
        preferred_element_type: the dtype of the result; None is that of the promoted operands.
        out_sharding: must be None.

    Returns:
        The sparse result, without batch dims.

    Raises:
        NotImplementedError: if there are groups, or `out_sharding` is not None.
        ValueError: if the shapes do not match, or the padding is named and `lhs_dilation` is given.

    Example:
        >>> signal = jax.experimental.sparse.BCOO.fromdense(jnp.array([[[0.0, 0.0, 1.0, 0.0]]]))
        >>> kernel = jnp.array([[[1.0, 2.0]]])
        >>> conv = jax.experimental.sparse.bcoo_conv_general_dilated
        >>> conv(signal, kernel, window_strides=(1,), padding="VALID").todense()
        Array([[[0., 2., 1.]]], dtype=float32)
    """
    name = "bcoo_conv_general_dilated"
    if (feature_group_count, batch_group_count) != (1, 1) or out_sharding is not None:
        raise NotImplementedError(f"{name}: groups must be 1, and out_sharding None")
    left, right = (x if isinstance(x, BCOO) else as_operand(x, name) for x in (lhs, rhs))
    numbers = conv_dimension_numbers(left.shape, right.shape, dimension_numbers)
    count = left.ndim - 2
    windows = [right.shape[dim] for dim in numbers.rhs_spec[2:]]
    dilation = (1,) * count if rhs_dilation is None else tuple(rhs_dilation)
    if isinstance(padding, str):
        if lhs_dilation is not None and set(lhs_dilation) != {1}:
            raise ValueError(f"{name}: with lhs_dilation, padding must be pairs of numbers")
        extents = [_dilated(size, step) for size, step in zip(windows, dilation, strict=True)]
        padding = padtype_to_pads([left.shape[dim] for dim in numbers.lhs_spec[2:]], extents, window_strides, padding)
    return convolve(
        left,
        right,
        (_dim_names(numbers.lhs_spec, "bi"), _dim_names(numbers.rhs_spec, "oi"), _dim_names(numbers.out_spec, "bo")),
        tuple(window_strides),
        tuple(low for low, _ in padding),
        tuple(high for _, high in padding),
        (1,) * count if lhs_dilation is None else tuple(lhs_dilation),
        dilation,
        preferred_element_type,
    )


def _dim_names(spec: Sequence[int], roles: str) -> str:
    names = [""] * len(spec)
    for dim, name in zip(spec, (*roles, *map(str, range(len(spec) - 2))), strict=True):
        names[dim] = name
    return "".join(names)


def _dilated(size: int, dilation: int) -> int:
    """Return the extent of `size` elements with this distance."""
    return (size - 1) * dilation + 1 if size else 0


def convolve(
    lhs: BCOO | Array,
    rhs: BCOO | Array,
    names: tuple[str, str, str],
    strides: tuple[int, ...],
    low: tuple[int, ...],
    high: tuple[int, ...],
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dtype: DTypeLike | None,
) -> BCOO:
    """Convolve two arrays, of which one or both are sparse, with named dims.

    Args:
        lhs: the array.
        rhs: the kernel.
        names: the names of the dims of the array, the kernel and the result.
        strides: the stride along each spatial dim.
        low, high: the zeros before and after the array along each spatial dim.
        lhs_dilation, rhs_dilation: the distance between elements of the array and of the kernel.
        dtype: the dtype of the result; None is that of the promoted operands.
    """
    left, right = (_without_batch(x) for x in (lhs, rhs))
    sizes = {**dict(zip(names[1], right.shape, strict=True)), **dict(zip(names[0], left.shape, strict=True))}
    if right.shape[names[1].index("i")] != sizes["i"]:
        raise ValueError(f"a convolution of {left} and {right} needs equal numbers of input features")
    for dim, stride in enumerate(strides):
        window = _dilated(right.shape[names[1].index(str(dim))], rhs_dilation[dim])
        extent = _dilated(sizes[str(dim)], lhs_dilation[dim]) + low[dim] + high[dim]
        sizes[str(dim)] = max(0, (extent - window) // stride + 1)
    shape = tuple(sizes[name] for name in names[2])
    result_dtype = jnp.promote_types(left.dtype, right.dtype) if dtype is None else dtype
    multiply = partial(
        _convolve_pairs,
        names=names,
        steps=tuple(zip(strides, low, lhs_dilation, rhs_dilation, strict=True)),
        shapes=(left.shape, right.shape, shape),
    )
    data, indices = multiply(
        left.data.astype(result_dtype), left.indices, right.data.astype(result_dtype), right.indices
    )
    result = BCOO((data, indices), shape=shape)
    capacity = math.prod(shape)
    return bcoo_sum_duplicates(result, nse=capacity) if capacity < result.nse else result


def _without_batch(x: BCOO | Array) -> BCOO:
    """Return an array with sparse dims only. All elements of a dense one are stored."""
    if isinstance(x, BCOO):
        return bcoo_update_layout(x, n_batch=0, n_dense=0)
    mask = bcoo_fromdense(jnp.ones(x.shape, bool), nse=x.size)
    return BCOO((x.reshape(-1), mask.indices), shape=x.shape, indices_sorted=True, unique_indices=True)


def _convolve_pairs(
    left: Array,
    left_indices: Array,
    right: Array,
    right_indices: Array,
    names: tuple[str, str, str],
    steps: Sequence[tuple[int, int, int, int]],
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> tuple[Array, Array]:
    """Return the products of all pairs of elements, and their positions in the result.

    `steps` holds the stride, the padding before the array, and both dilations of each spatial dim.
    """
    counts = (left.shape[0], right.shape[0])
    a = {name: left_indices[:, dim, None] for dim, name in enumerate(names[0])}
    b = {name: right_indices[:, dim] for dim, name in enumerate(names[1])}
    kept = is_inside(left_indices, shapes[0])[:, None] & is_inside(right_indices, shapes[1])
    kept &= a["i"] == b["i"]
    position = {"b": a["b"], "o": b["o"]}
    for dim, (stride, low, lhs_dilation, rhs_dilation) in enumerate(steps):
        distance = a[str(dim)] * lhs_dilation + low - b[str(dim)] * rhs_dilation
        kept &= distance % stride == 0
        position[str(dim)] = distance // stride
    indices = jnp.stack([jnp.broadcast_to(position[name], counts) for name in names[2]], axis=-1)
    kept &= is_inside(indices, shapes[2])
    data, indices = drop(left[:, None] * right, indices, kept, shapes[2])
    return data.reshape(-1), indices.reshape(counts[0] * counts[1], len(shapes[2]))
