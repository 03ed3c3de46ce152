"""Shape inference for convolutions and windowed reductions, and convolutions with an unshared kernel."""

import operator
from collections.abc import Sequence
from typing import Any

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ops.reduce.sliding_window import WindowDimension
from shardwise.compiler.ops.shape.movement import inverse_permutation, permute
from shardwise.lax.convolution import (
    ConvDimensionNumbers,
    conv_dimension_numbers,
    conv_general_dilated_patches,
    transposed_padding,
)
from shardwise.lax.dot_products import dot_general
from shardwise.lax.padding import padding_pairs
from shardwise.lax.precision import PrecisionLike, precisions
from shardwise.typing import ArrayLike

ConvGeneralDilatedDimensionNumbers = None | ConvDimensionNumbers | tuple[str, str, str]


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: Any
) -> list[tuple[int, int]]:
    """Convert a padding name to the padding before and after each dim.

    Args:
        in_shape: the sizes of the dims.
        window_shape: the window size along each dim.
        window_strides: the stride along each dim.
        padding: "SAME", "SAME_LOWER" or "VALID".

    Returns:
        A pair (low, high) for each dim.

    Raises:
        TypeError: if `padding` is not a name.
        RuntimeError: if `padding` is an unknown name.

    Example:
        >>> lax.padtype_to_pads((5, 6), (3, 2), (1, 1), "SAME")
        [(1, 1), (0, 1)]
    """
    name = getattr(padding, "name", padding)
    if not isinstance(name, str):
        raise TypeError(f"padtype_to_pads: padding must be 'SAME', 'SAME_LOWER' or 'VALID', not {padding!r}")
    if name.upper() not in ("SAME", "SAME_LOWER", "VALID"):
        raise RuntimeError(f"padtype_to_pads: padding must be 'SAME', 'SAME_LOWER' or 'VALID', not {padding!r}")
    sizes, windows, strides = (tuple(map(int, values)) for values in (in_shape, window_shape, window_strides))
    return padding_pairs("padtype_to_pads", name, sizes, windows, strides, (1,) * len(sizes))


def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Convert dimension numbers to the permutations of the dims of input, kernel and output.

    Args:
        dimension_numbers: three strings such as ("NHWC", "HWIO", "NHWC").

    Returns:
        Three tuples of dims: batch, feature and spatial dims of the input; output-feature, input-feature and spatial
        dims of the kernel; batch, feature and spatial dims of the output. The spatial dims have the kernel's order.

    Raises:
        TypeError: if the strings do not name the same spatial dims, each once.

    Example:
        >>> lax.conv_general_permutations(("NHWC", "HWIO", "NHWC"))
        ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    """
    specs = tuple(dimension_numbers)
    try:
        numbers = conv_dimension_numbers((0,) * len(specs[0]), (0,) * len(specs[1]), specs)
    except ValueError as error:
        raise TypeError(str(error)) from None
    return tuple(numbers)


_OUTPUT_SHAPE = Family(
    {
        "lhs_shape": "the shape of the input.",
        "rhs_shape": "the shape of the kernel.",
        "window_strides": "the stride along each spatial dim, in the kernel's order.",
        "dimension_numbers": 'three strings such as ("NHWC", "HWIO", "NHWC").',
    },
    returns="The shape of the output.",
)


@documented(_OUTPUT_SHAPE)
def conv_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], strides: Sequence[int], pads: Any, batch_group_count: int = 1
) -> tuple[int, ...]:
    """Compute the shape of the output of a convolution in the layouts NCHW and OIHW, with any number of spatial dims.

    Args:
        strides: the stride along each spatial dim.
        pads: a pair (low, high) for each spatial dim, or a padding name.
        batch_group_count: the number of batch groups.

    Raises:
        TypeError: if `pads` does not have a pair for each spatial dim.
        ValueError: if negative padding crops more elements than a dim has.
        RuntimeError: if `pads` is an unknown padding name.

    Example:
        >>> lax.conv_shape_tuple((1, 3, 8, 8), (16, 3, 3, 3), (2, 2), "SAME")
        (1, 16, 4, 4)
    """
    sizes, windows = lhs_shape[2:], rhs_shape[2:]
    pairs = padtype_to_pads(sizes, windows, strides, pads) if isinstance(pads, str) else list(pads)
    if len(pairs) != len(sizes):
        raise TypeError(f"conv_shape_tuple: pads must have one pair for each of {len(sizes)} spatial dims, not {pairs}")
    if any(size + low + high < 0 for size, (low, high) in zip(sizes, pairs, strict=True)):
        raise ValueError(f"conv_shape_tuple: negative padding {pairs} exceeds the sizes {tuple(sizes)} of the dims")
    spatial = _window_counts(sizes, windows, strides, pairs)
    return int(lhs_shape[0]) // batch_group_count, int(rhs_shape[0]), *spatial


@documented(_OUTPUT_SHAPE)
def conv_general_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    dimension_numbers: Sequence[str],
) -> tuple[int, ...]:
    """Compute the shape of the output of a convolution in any layout.

    Args:
        padding: a pair (low, high) for each spatial dim, or a padding name.

    Raises:
        TypeError: if `dimension_numbers` is invalid, or `padding` does not have a pair for each spatial dim.
        ValueError: if negative padding crops more elements than a dim has.
        RuntimeError: if `padding` is an unknown name.

    Example:
        >>> lax.conv_general_shape_tuple((1, 8, 8, 3), (3, 3, 3, 16), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
        (1, 4, 4, 16)
    """
    left, right, out = conv_general_permutations(dimension_numbers)
    shapes = [lhs_shape[dim] for dim in left], [rhs_shape[dim] for dim in right]
    shape = conv_shape_tuple(*shapes, window_strides, padding)
    return tuple(shape[dim] for dim in inverse_permutation(out))


@documented(_OUTPUT_SHAPE)
def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    dimension_numbers: Sequence[str],
) -> tuple[int, ...]:
    """Compute the shape of the output of a transposed convolution.

    Args:
        padding: a pair (low, high) for each spatial dim, or "SAME" or "VALID".

    Raises:
        TypeError: if `dimension_numbers` is invalid.
        ValueError: if `padding` is an unknown name, or has another number of pairs than there are spatial dims.

    Example:
        >>> lax.conv_transpose_shape_tuple((1, 4, 4, 3), (3, 3, 3, 16), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
        (1, 8, 8, 16)
    """
    left, right, out = conv_general_permutations(dimension_numbers)
    x, kernel = [int(lhs_shape[dim]) for dim in left], [int(rhs_shape[dim]) for dim in right]
    if isinstance(padding, str):
        windows = zip(kernel[2:], window_strides, strict=True)
        padding = [transposed_padding("conv_transpose_shape_tuple", padding, size, stride) for size, stride in windows]
    spatial = [
        (size - 1) * stride - window + 2 + sum(pair)
        for size, window, stride, pair in zip(x[2:], kernel[2:], window_strides, padding, strict=True)
    ]
    shape = [x[0], kernel[0], *spatial]
    return tuple(shape[dim] for dim in inverse_permutation(out))


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Compute the shape of the result of `reduce_window`.

    Args:
        operand_shape: the shape of the operand.
        window_dimensions: the window size along each dim.
        window_strides: the stride along each dim.
        padding: a pair (low, high) for each dim.
        base_dilation: the dilation of the operand along each dim.
        window_dilation: the dilation of the window along each dim.

    Returns:
        The shape of the result.

    Raises:
        ValueError: if the arguments differ in length.

    Example:
        >>> lax.reduce_window_shape_tuple((8, 8), (2, 3), (2, 1), ((0, 0), (1, 1)))
        (4, 8)
    """
    return _window_counts(operand_shape, window_dimensions, window_strides, padding, base_dilation, window_dilation)


def _window_counts(
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the number of window positions along each dim."""
    ones = (1,) * len(sizes)
    per_dim = zip(sizes, windows, strides, padding, base_dilation or ones, window_dilation or ones, strict=True)
    return tuple(
        WindowDimension(int(window), int(stride), low, high, base, dilation).output_size(int(size))
        for size, window, stride, (low, high), base, dilation in per_dim
    )


def conv_general_dilated_local(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: PrecisionLike = None,
) -> Array:
    """Compute a convolution with an unshared kernel: each output position has its own weights.

    Args:
        lhs: the input, an array with a batch dim, a feature dim and spatial dims.
        rhs: the kernels. The spatial dims are those of the output. The input features are the features of `lhs` times
            the elements of a window of `filter_shape`.
        window_strides: the stride of the window along each spatial dim.
        padding: pairs of the numbers of zeros before and after each spatial dim, where negative numbers crop; or a
            name. "VALID" adds none. "SAME" and "SAME_LOWER" add so many that the output has ceil(size / stride)
            elements; if their number is odd, "SAME" adds the extra one after the dim and "SAME_LOWER" before it.
        filter_shape: the window size along each spatial dim.
        lhs_dilation: the dilation of the input along each spatial dim: the distance between its elements, with zeros
            between.
        rhs_dilation: the dilation of the kernel along each spatial dim.
        dimension_numbers: a `ConvDimensionNumbers`, or three strings for input, kernel and output such as ("NHWC",
            "HWIO", "NHWC"). None means NCHW, OIHW and NCHW.
        precision: a `Precision` for both operands or a pair of them, or a name such as "highest". None means the
            default of the configuration.

    Returns:
        The output, with its dims in the order of `dimension_numbers`.

    Raises:
        TypeError: if the ranks or dtypes of the operands differ, or the dtypes are not supported.
        ValueError: if strides, dilations, padding or dimension numbers do not fit the operands, or the feature sizes do
            not agree.
        NotImplementedError: if `precision` is a `DotAlgorithm` without an equivalent `Precision`.

    Example:
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
    spatial = sorted(zip(numbers.out_spec[2:], numbers.rhs_spec[2:], strict=True))
    batch = tuple(dim for dim, _ in spatial), tuple(dim for _, dim in spatial)
    product = dot_general(patches, rhs, (((numbers.out_spec[1],), (numbers.rhs_spec[1],)), batch), precision)
    # Dims of the product: the spatial ones, in the order of the result, then batch and features.
    dims = [*(dim for dim, _ in spatial), *numbers.out_spec[:2]]
    return permute(product, inverse_permutation(dims))
