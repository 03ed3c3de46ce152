"""`reduce_window` by any binary function, and of several arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.bitwise import And, Or
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reduce_window import ReduceWindow
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import Pad, slice_along
from shardwise.lax.generic_reduce import Computation


def reduce_windows(combine: Computation, arrays: Sequence[Array], inits: Sequence[Array], windows: ReduceWindow) -> Any:
    """Reduce each window by applying `combine` to slices, one dim after the other.

    Elements of the padding take no part: initial values need not be neutral. A mask, which is padded with False, tells
    them apart.

    Args:
        combine: the binary function.
        arrays: the arrays, of one shape.
        inits: the initial value of each array, a scalar.
        windows: the sizes, strides, padding and dilations of the windows.
    """
    pad = Pad(windows.low, windows.high, tuple(dilation - 1 for dilation in windows.base_dilation))
    shape = arrays[0].type.shape
    is_element = pad(full(shape, True, np.dtype(np.bool_)), full((), False, np.dtype(np.bool_)))
    rows = [pad(x, init) for x, init in zip(arrays, inits, strict=True)]
    out_shape = windows.out_type(ArrayType(shape, np.dtype(np.float32))).shape
    # The last dim comes first, so that the function combines the elements in row-major order.
    for dim in reversed(range(len(shape))):
        is_element, rows = _reduce_dim(combine, is_element, rows, dim, out_shape[dim], windows)
    initial = [Broadcast(out_shape, ())(init) for init in inits]
    totals = combine(initial, rows)
    return [Select()(is_element, total, init) for total, init in zip(totals, initial, strict=True)]


def _reduce_dim(
    combine: Computation, is_element: Any, rows: Sequence[Any], dim: int, count: int, windows: ReduceWindow
) -> tuple[Any, list[Any]]:
    """Reduce the windows along one dim, of which there are `count`; return the mask and the arrays."""
    stride, dilation = windows.strides[dim], windows.window_dilation[dim]

    def elements(offset: int) -> list[Any]:
        start = offset * dilation if count else 0
        limit = start + (count - 1) * stride + 1 if count else 0
        return [slice_along(x, dim, start, limit, stride) for x in (is_element, *rows)]

    mask, *totals = elements(0)
    for offset in range(1, windows.window[dim]):
        next_mask, *next_rows = elements(offset)
        both = And()(mask, next_mask)
        combined = combine(totals, next_rows)
        totals = [
            Select()(both, x, Select()(mask, total, row))
            for x, total, row in zip(combined, totals, next_rows, strict=True)
        ]
        mask = Or()(mask, next_mask)
    return mask, totals
