"""Dot products and convolutions."""

from collections.abc import Callable
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.operation import Operation


def _precision(op: Operation) -> Any:
    names = op.enums("precision_config")
    return tuple(lax.Precision[name] for name in names) if names else (lax.Precision.DEFAULT,) * 2


def _dot_general(op: Operation, x: Array, y: Array) -> Any:
    if op.has("algorithm"):
        raise UnsupportedError(f"the algorithm {op.attribute('algorithm')} is not supported. Use a precision instead.")
    numbers = op.numbers("dot_dimension_numbers", "DotDimensionNumbers")
    contract = tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)
    batch = tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)
    return lax.dot_general(x, y, (contract, batch), _precision(op), op.out_type.dtype)


def _dot(op: Operation, x: Array, y: Array) -> Any:
    return lax.dot_general(x, y, (((x.ndim - 1,), (0,)), ((), ())), _precision(op), op.out_type.dtype)


def _convolution(op: Operation, x: Array, kernel: Array) -> Any:
    numbers = op.numbers("dimension_numbers", "ConvDimensionNumbers")
    count = x.ndim - 2
    if any(op.integers("window_reversal")):
        flipped = [
            dim
            for dim, is_reversed in zip(numbers.kernel_spatial_dimensions, op.integers("window_reversal"), strict=True)
            if is_reversed
        ]
        kernel = lax.rev(kernel, flipped)
    dimension_numbers = lax.ConvDimensionNumbers(
        (numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions),
        (
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ),
        (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions),
    )
    return lax.conv_general_dilated(
        x,
        kernel,
        op.integers("window_strides", (1,) * count),
        op.padding(count),
        op.integers("lhs_dilation", (1,) * count),
        op.integers("rhs_dilation", (1,) * count),
        dimension_numbers,
        op.integer("feature_group_count"),
        op.integer("batch_group_count"),
        _precision(op),
        op.out_type.dtype,
    )


OPS: dict[str, Callable[..., Any]] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.dot": _dot,
    "stablehlo.dot_general": _dot_general,
}
