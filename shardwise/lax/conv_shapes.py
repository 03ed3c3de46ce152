"""Shapes of convolutions and windows without computing them, and convolutions with a kernel for each place."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ops.reduce.sliding_window import Sliding
from shardwise.compiler.ops.shape.movement import inverse, permuted
from shardwise.lax.convolution import (
    ConvDimensionNumbers,
    conv_dimension_numbers,
    conv_general_dilated_patches,
    transposed_padding,
)
from shardwise.lax.padding import padding_pairs
from shardwise.lax.precision import precisions
from shardwise.lax.product import dot_general

ConvGeneralDilatedDimensionNumbers = None | ConvDimensionNumbers | tuple[str, str, str]


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: Any
) -> list[tuple[int, int]]:
    """How much "SAME", "SAME_LOWER" or "VALID" puts before and after each dim of `in_shape`.

    >>> lax.padtype_to_pads((5, 6), (3, 2), (1, 1), "SAME")
    [(1, 1), (0, 1)]
    """
    name = getattr(padding, "name", padding)
    if not isinstance(name, str):
        raise TypeError(f"padtype_to_pads: padding is 'SAME', 'SAME_LOWER' or 'VALID', not {padding!r}")
    if name.upper() not in ("SAME", "SAME_LOWER", "VALID"):
        raise RuntimeError(f"padtype_to_pads: padding is 'SAME', 'SAME_LOWER' or 'VALID', not {padding!r}")
    sizes, windows, strides = (tuple(map(int, numbers)) for numbers in (in_shape, window_shape, window_strides))
    return padding_pairs("padtype_to_pads", name, sizes, windows, strides, (1,) * len(sizes))


def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Where the batch, the features and the spatial dims, in the order of the kernel's, are among the dims of the
    array, of the kernel (out features first) and of the result.

    >>> lax.conv_general_permutations(("NHWC", "HWIO", "NHWC"))
    ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    """
    specs = tuple(dimension_numbers)
    try:
        found = conv_dimension_numbers((0,) * len(specs[0]), (0,) * len(specs[1]), specs)
    except ValueError as error:
        raise TypeError(str(error)) from None
    return tuple(found)


def conv_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], strides: Sequence[int], pads: Any, batch_group_count: int = 1
) -> tuple[int, ...]:
    """The shape of a convolution of an array NC… with a kernel OI….

    >>> lax.conv_shape_tuple((1, 3, 8, 8), (16, 3, 3, 3), (2, 2), "SAME")
    (1, 16, 4, 4)
    """
    sizes, windows = lhs_shape[2:], rhs_shape[2:]
    pairs = padtype_to_pads(sizes, windows, strides, pads) if isinstance(pads, str) else list(pads)
    if len(pairs) != len(sizes):
        raise TypeError(f"conv_shape_tuple: needs {len(sizes)} pairs of padding, one for each dim, not {pairs}")
    if any(size + low + high < 0 for size, (low, high) in zip(sizes, pairs, strict=True)):
        raise ValueError(f"conv_shape_tuple: padding {pairs} takes more away than there is of {tuple(sizes)}")
    space = _places(sizes, windows, strides, pairs)
    return int(lhs_shape[0]) // batch_group_count, int(rhs_shape[0]), *space


def conv_general_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    dimension_numbers: Sequence[str],
) -> tuple[int, ...]:
    """The shape of a convolution whose dims lie as three strings say.

    >>> lax.conv_general_shape_tuple((1, 8, 8, 3), (3, 3, 3, 16), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
    (1, 4, 4, 16)
    """
    left, right, out = conv_general_permutations(dimension_numbers)
    shapes = [lhs_shape[dim] for dim in left], [rhs_shape[dim] for dim in right]
    found = conv_shape_tuple(*shapes, window_strides, padding)
    return tuple(found[place] for place in inverse(out))


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    dimension_numbers: Sequence[str],
) -> tuple[int, ...]:
    """The shape of a transposed convolution whose dims lie as three strings say.

    >>> lax.conv_transpose_shape_tuple((1, 4, 4, 3), (3, 3, 3, 16), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
    (1, 8, 8, 16)
    """
    left, right, out = conv_general_permutations(dimension_numbers)
    x, kernel = [int(lhs_shape[dim]) for dim in left], [int(rhs_shape[dim]) for dim in right]
    if isinstance(padding, str):
        extents = zip(kernel[2:], window_strides, strict=True)
        padding = [transposed_padding("conv_transpose_shape_tuple", padding, window, by) for window, by in extents]
    space = [
        (size - 1) * by - window + 2 + sum(pair)
        for size, window, by, pair in zip(x[2:], kernel[2:], window_strides, padding, strict=True)
    ]
    found = [x[0], kernel[0], *space]
    return tuple(found[place] for place in inverse(out))


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The shape of what windows over an array give.

    >>> lax.reduce_window_shape_tuple((8, 8), (2, 3), (2, 1), ((0, 0), (1, 1)))
    (4, 8)
    """
    return _places(operand_shape, window_dimensions, window_strides, padding, base_dilation, window_dilation)


def _places(
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    ones = (1,) * len(sizes)
    lists = (sizes, windows, strides, padding, base or ones, dilation or ones)
    return tuple(
        Sliding(int(window), int(by), low, high, apart, wide).places(int(size))
        for size, window, by, (low, high), apart, wide in zip(*lists, strict=True)
    )


def conv_general_dilated_local(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
) -> Any:
    """A convolution with a kernel of its own for each place of the result.

    The spatial dims of `rhs` are those of the result; its in features are the features of `lhs` times the elements of
    a window of `filter_shape`.

    >>> lax.conv_general_dilated_local(jnp.ones((1, 1, 4)), jnp.ones((2, 3, 2)), (1,), "VALID", (3,)).shape
    (1, 2, 2)
    """
    name = "conv_general_dilated_local"
    windows = tuple(map(operator.index, filter_shape))
    level, _ = precisions(name, precision)
    patches = conv_general_dilated_patches(
        lhs,
        windows,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        precision=level.lower(),
    )
    numbers = conv_dimension_numbers(type_of(lhs, name).shape, (1, 1, *windows), dimension_numbers)
    places = sorted(zip(numbers.out_spec[2:], numbers.rhs_spec[2:], strict=True))
    batch = tuple(dim for dim, _ in places), tuple(dim for _, dim in places)
    found = dot_general(patches, rhs, (((numbers.out_spec[1],), (numbers.rhs_spec[1],)), batch), precision)
    # Dims of the product: the spatial ones, in the order of the result, then batch and features.
    dims = [*(dim for dim, _ in places), *numbers.out_spec[:2]]
    return permuted(found, inverse(dims))
