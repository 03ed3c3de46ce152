"""Unshard a dim for ops that need complete rows along it, such as sort and fft, and shard their results again.

If there are enough rows, an all-to-all distributes complete rows over the devices. Otherwise all rows are gathered.
"""

import math
from typing import Any, final

from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.collective.collectives import AllGather, AllToAll, LocalSlice
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, move_dim
from shardwise.compiler.ops.shape.slicing import Pad, slice_along
from shardwise.compiler.traffic import Traffic, all_gather, all_to_all, one_after_another


@final
@record
class RowExchange:
    """The exchange of rows along one dim.

    Attributes:
        dim: the dim.
        axes: the mesh axes that shard it.
        count: the number of its shards.
        others: the sizes of the other dims of a shard.
    """

    dim: int
    axes: tuple[str, ...]
    count: int
    others: tuple[int, ...]

    @staticmethod
    def from_shape(shape: tuple[int, ...], dim: int, axes: tuple[str, ...], count: int) -> "RowExchange":
        """Return the exchange for shards of this shape."""
        return RowExchange(dim, axes, count, shape[:dim] + shape[dim + 1 :])

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return math.prod(self.others)

    @property
    def uses_all_to_all(self) -> bool:
        """Whether an all-to-all distributes the rows. It sends no more than an all-gather, and splits the work."""
        return 2 * self.padded_row_count <= self.row_count * self.count

    @property
    def padded_row_count(self) -> int:
        """The number of rows, padded to a multiple of the number of devices."""
        return -(-self.row_count // self.count) * self.count

    def traffic(self, before: int, after: int) -> Traffic:
        """Return the traffic of `gather` and `scatter`.

        Args:
            before: the bytes of a row in one shard of the operand.
            after: the bytes of a row in one shard of the result.
        """
        if self.uses_all_to_all:
            rows = self.padded_row_count
            return one_after_another(all_to_all(rows * before, self.count), all_to_all(rows * after, self.count))
        return all_gather(self.row_count * before, self.count)

    def gather(self, x: Operand, size: int) -> Any:
        """Return complete rows of `size` elements as a 2-D array: all rows, or a part of the rows on each device."""
        rows = move_dim(x, self.dim, x.type.ndim - 1)
        rows = Reshape((self.row_count, rows.type.shape[-1]))(rows)
        if self.uses_all_to_all:
            rows = AllToAll(0, 1, self.axes, self.count)(_pad_or_trim(rows, 0, self.padded_row_count))
        else:
            rows = AllGather(1, self.axes, self.count)(rows)
        return _pad_or_trim(rows, 1, size)

    def scatter(self, rows: Operand, shard_size: int) -> Any:
        """Return shards, of this size along `dim`, of complete rows. This is the inverse of `gather`."""
        rows = _pad_or_trim(rows, 1, shard_size * self.count)
        if self.uses_all_to_all:
            rows = _pad_or_trim(AllToAll(1, 0, self.axes, self.count)(rows), 0, self.row_count)
        else:
            rows = LocalSlice(1, self.axes, self.count)(rows)
        return move_dim(Reshape((*self.others, shard_size))(rows), len(self.others), self.dim)


def _pad_or_trim(x: Operand, dim: int, size: int) -> Any:
    """Pad `x` at the end of `dim` with zeros to `size`, or trim it to `size`."""
    old_size = x.type.shape[dim]
    if size <= old_size:
        return slice_along(x, dim, 0, size)
    high = [0] * x.type.ndim
    high[dim] = size - old_size
    zeros = (0,) * len(high)
    return Pad(zeros, tuple(high), zeros)(x, full((), 0, x.type.dtype, x.type.weak))
