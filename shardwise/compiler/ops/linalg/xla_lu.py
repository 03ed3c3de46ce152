"""LU decomposition with partial pivoting in portable ops, for platforms that have no routine for it.

It eliminates one column per iteration of a loop: exchange two rows, divide the column by its pivot, and subtract a
product of rank one. Rows and columns that are done are masked, so all iterations have the same shapes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.op import Hlo, HloValue
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Sub
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Imag, Real
from shardwise.compiler.ops.elementwise.select import Select, lower_compare
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice
from shardwise.compiler.ops.reduce.argminmax import Argmax
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape

_INDEX = np.dtype(np.int32)


def lower_lu(hlo: Hlo, a: HloValue, pivots: ArrayType) -> list[Any]:
    """Lower an LU decomposition.

    Args:
        hlo: the builder.
        a: the matrices.
        pivots: the type of the pivots.

    Returns:
        The packed factors, and the pivots, counted from 1, as LAPACK's `getrf` returns them.
    """
    shape = a.type.shape
    row_dim, column_dim = len(shape) - 2, len(shape) - 1
    zero, one = (hlo.constant(number, ArrayType((), _INDEX)) for number in (0, 1))
    rows, columns = (Iota(shape, dim, _INDEX).lower(hlo) for dim in (row_dim, column_dim))
    positions = Iota(pivots.shape, len(pivots.shape) - 1, _INDEX).lower(hlo)
    count = hlo.constant(pivots.shape[-1], ArrayType((), _INDEX))

    def broadcast(x: HloValue, target: Sequence[int] = shape) -> Any:
        """Broadcast a scalar, an array without the last two dims, or one whose sizes are those of `target` or 1."""
        if x.type.ndim == len(target):
            kept = tuple(dim for dim, size in enumerate(x.type.shape) if size == target[dim])
            x = Reshape(tuple(target[dim] for dim in kept)).lower(hlo, x)
        else:
            kept = tuple(range(x.type.ndim))
        return Broadcast(tuple(target), kept).lower(hlo, x)

    def select(mask: HloValue, x: HloValue, y: HloValue) -> Any:
        return Select().lower(hlo, mask, x, y)

    def part(x: HloValue, row: HloValue | None, column: HloValue | None) -> Any:
        """Return one row, one column or one element of each matrix, with dims of size 1."""
        sizes = (*shape[:-2], shape[-2] if row is None else 1, shape[-1] if column is None else 1)
        starts = [*[zero] * row_dim, zero if row is None else row, zero if column is None else column]
        return DynamicSlice(sizes).lower(hlo, x, *starts)

    def has_more(state: Sequence[Any]) -> Any:
        return lower_compare(hlo, "LT", state[0], count)

    def eliminate(state: Sequence[Any]) -> list[Any]:
        step, x, so_far = state
        here = broadcast(step)
        magnitudes = _magnitude(hlo, part(x, None, step))
        is_done = lower_compare(hlo, "LT", part(rows, None, zero), broadcast(step, magnitudes.type.shape))
        magnitudes = select(is_done, hlo.constant(-1, magnitudes.type), magnitudes)
        pivot = Argmax((row_dim,), _INDEX).lower(hlo, Reshape(shape[:-1]).lower(hlo, magnitudes))
        is_pivot_row, is_row = lower_compare(hlo, "EQ", rows, broadcast(pivot)), lower_compare(hlo, "EQ", rows, here)
        pivot_row = Sum((row_dim,)).lower(hlo, select(is_pivot_row, x, hlo.constant(0, x.type)))
        pivot_row = broadcast(Reshape((*shape[:-2], 1, shape[-1])).lower(hlo, pivot_row))
        x = select(is_row, pivot_row, select(is_pivot_row, broadcast(part(x, step, None)), x))
        # A pivot of zero leaves its column, which is zero then, as LAPACK does.
        divisor = broadcast(part(x, step, step))
        is_below = lower_compare(hlo, "GT", rows, here)
        is_divided = And().lower(hlo, is_below, lower_compare(hlo, "NE", divisor, hlo.constant(0, divisor.type)))
        column = broadcast(part(x, None, step))
        column = select(is_divided, Div().lower(hlo, column, divisor), column)
        update = Sub().lower(hlo, x, Mul().lower(hlo, column, pivot_row))
        is_right = lower_compare(hlo, "GT", columns, here)
        x = select(And().lower(hlo, is_below, is_right), update, x)
        x = select(lower_compare(hlo, "EQ", columns, here), column, x)
        from_one = broadcast(Add().lower(hlo, pivot, broadcast(one, pivot.type.shape)), pivots.shape)
        is_position = lower_compare(hlo, "EQ", positions, broadcast(step, pivots.shape))
        return [Add().lower(hlo, step, one), x, select(is_position, from_one, so_far)]

    _, packed, found = hlo.loop([zero, a, hlo.constant(0, pivots)], has_more, eliminate)
    return [packed, found]


def _magnitude(hlo: Hlo, x: HloValue) -> Any:
    """Return the magnitudes by which LAPACK chooses pivots: of complex numbers, |re| + |im|."""
    if x.type.dtype.kind != "c":
        return Abs().lower(hlo, x)
    return Add().lower(hlo, *(Abs().lower(hlo, part.lower(hlo, x)) for part in (Real(), Imag())))
