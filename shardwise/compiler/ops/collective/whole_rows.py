"""Rows along a dim that is cut, brought whole to single devices and taken back: what ops that need all of a row at once
share. By an exchange of all with all, where there are rows enough to deal out; else every device gets all of them.
"""

import math
from typing import Any, final

from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.collective.collectives import AllGather, AllToAll, LocalSlice
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, move_dim
from shardwise.compiler.ops.shape.slicing import Pad, slice_along


@final
@record
class RowExchange:
    """The rows along `dim`, which `axes` cut into `count`, of pieces whose other dims have the sizes `others`."""

    dim: int
    axes: tuple[str, ...]
    count: int
    others: tuple[int, ...]

    @staticmethod
    def of(shape: tuple[int, ...], dim: int, axes: tuple[str, ...], count: int) -> "RowExchange":
        """Those of a piece of this shape."""
        return RowExchange(dim, axes, count, shape[:dim] + shape[dim + 1 :])

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return math.prod(self.others)

    @property
    def uses_all_to_all(self) -> bool:
        """Whether an all-to-all distributes the rows: it sends no more than an all-gather and splits the work."""
        return 2 * self.padded_row_count <= self.row_count * self.count

    @property
    def padded_row_count(self) -> int:
        """Rows, and as many more as it takes to deal them out evenly."""
        return -(-self.row_count // self.count) * self.count

    def bytes_sent(self, before: int, after: int) -> float:
        """The bytes that each device sends: `before` and `after` are those of a piece of one row, which is brought
        whole and taken back.
        """
        if self.uses_all_to_all:
            return self.padded_row_count * (before + after) * (self.count - 1) / self.count
        return float(self.row_count * before * (self.count - 1))

    def gather(self, x: Any, size: int) -> Any:
        """Rows of `size`, as the last of two dims, that are not cut: all of them, or some on each device."""
        row = move_dim(x, self.dim, x.type.ndim - 1)
        row = Reshape((self.row_count, row.type.shape[-1]))(row)
        if self.uses_all_to_all:
            row = AllToAll(0, 1, self.axes, self.count)(_resized(row, 0, self.padded_row_count))
        else:
            row = AllGather(1, self.axes, self.count)(row)
        return _resized(row, 1, size)

    def scatter(self, row: Any, piece: int) -> Any:
        """Their pieces, each of this size along `dim`, on the devices to which they belong."""
        row = _resized(row, 1, piece * self.count)
        if self.uses_all_to_all:
            row = _resized(AllToAll(1, 0, self.axes, self.count)(row), 0, self.row_count)
        else:
            row = LocalSlice(1, self.axes, self.count)(row)
        return move_dim(Reshape((*self.others, piece))(row), len(self.others), self.dim)


def _resized(x: Any, dim: int, size: int) -> Any:
    """`x` cut off at `size` along `dim`, or longer by zeros."""
    have = x.type.shape[dim]
    if size <= have:
        return slice_along(x, dim, 0, size)
    high = [0] * x.type.ndim
    high[dim] = size - have
    zeros = (0,) * len(high)
    return Pad(zeros, tuple(high), zeros)(x, full((), 0, x.type.dtype, x.type.weak))
