"""take_window: each device takes a window of a sharded dim, which may extend over the shards of other devices.

It is the halo exchange of ops that read beyond their shard: slice, pad, reverse, convolution. The window of device k
starts at `(offset + stride * k) // divisor`. Blocks are sent by one collective-permute per distance between devices. If
that would send as much as an all-gather, the dim is gathered instead.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.shape.movement import i64_array_attribute
from shardwise.compiler.shardings.mesh import AbstractMesh

_SCALAR, _ONE = ArrayType((), np.int32), ArrayType((1,), np.int32)


@final
@record
class ShiftPairs:
    """The pairs of a collective-permute in which device k along `axes` receives from device k + `distance`."""

    axes: tuple[str, ...]
    distance: int

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """Return the pairs (source, target) of all devices."""
        groups = np.asarray(mesh.groups(self.axes))
        count = groups.shape[1]
        receivers = range(max(0, -self.distance), min(count, count - self.distance))
        return np.array([[group[k + self.distance], group[k]] for group in groups for k in receivers])


class _Block(NamedTuple):
    """The block that devices receive over one distance: elements `start` to `stop` of the sender's shard."""

    distance: int
    start: int
    stop: int


@final
@record
class TakeWindow(Collective):
    """Device k of `count` along `axes` takes `width` elements of `dim`, from `start(k)` on. Out of bounds are zeros."""

    name = "take_window"
    dim: int
    axes: tuple[str, ...]
    count: int
    offset: int
    stride: int
    width: int
    divisor: int = 1

    def start(self, k: int) -> int:
        """Return the start of the window of device k."""
        return (self.offset + self.stride * k) // self.divisor

    def out_type(self, x: ArrayType) -> ArrayType:
        return self._resized(x, self.width)

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        out: list[Any] = [None] * mesh.size
        for group in mesh.groups(self.axes):
            array = np.concatenate([shards[device] for device in group], self.dim)
            size = array.shape[self.dim]
            for k, device in enumerate(group):
                first, last = (min(max(bound, 0), size) for bound in (self.start(k), self.start(k) + self.width))
                before = first - self.start(k) if first < last else 0
                padding = [(0, 0)] * array.ndim
                padding[self.dim] = (before, self.width - before - (last - first))
                out[device] = np.pad(np.take(array, range(first, last), self.dim), padding)
        return out

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return self.bytes_sent_of_shard(operand)

    def bytes_sent_of_shard(self, operand: ArrayType) -> float:
        """Return the bytes that each device sends if its shard has this type."""
        shard_size = operand.shape[self.dim]
        row_bytes = operand.nbytes / max(shard_size, 1)
        if self._uses_all_gather(shard_size):
            return operand.nbytes * (self.count - 1)
        return sum(row_bytes * (block.stop - block.start) for block in self._blocks(shard_size) if block.distance)

    def bytes_sent_of_array(self, array: ArrayType) -> float:
        """Return the bytes that each device sends of an array of this type that is sharded along this dim only."""
        return self.bytes_sent_of_shard(self._resized(array, -(-array.shape[self.dim] // self.count)))

    def lower(self, hlo: Hlo, x: Any) -> Any:
        shard_size = x.type.shape[self.dim]
        if self._uses_all_gather(shard_size):
            attributes = f"all_gather_dim = {self.dim} : i64, replica_groups = {hlo.groups(self.axes)}"
            gathered = hlo.op("stablehlo.all_gather", (x,), self._resized(x.type, shard_size * self.count), attributes)
            return self._lower_own_window(hlo, gathered, 0, [self.start(k) for k in range(self.count)])
        starts = [self.start(k) - shard_size * k for k in range(self.count)]  # relative to the device's own shard
        low, size = min(starts), max(starts) + self.width - min(starts)
        parts: list[Any] = []
        filled = 0
        for block in self._blocks(shard_size):  # in order, with zeros between them
            part = self._lower_slice(hlo, x, block.start, block.stop)
            if block.distance:
                pairs = f"source_target_pairs = {hlo.pairs(ShiftPairs(self.axes, block.distance))}"
                part = hlo.op("stablehlo.collective_permute", (part,), part.type, pairs)
            position = block.distance * shard_size + block.start - low
            parts += [*self._lower_zeros(hlo, x.type, position - filled), part]
            filled = position + block.stop - block.start
        parts += self._lower_zeros(hlo, x.type, size - filled)
        return self._lower_own_window(hlo, self._lower_concatenate(hlo, parts, x.type, size), low, starts)

    def _lower_zeros(self, hlo: Hlo, x: ArrayType, size: int) -> list[Any]:
        """Return zeros of this size along `dim`, or nothing if the size is 0."""
        return [hlo.constant(0, self._resized(x, size).strong())] if size else []

    def _lower_concatenate(self, hlo: Hlo, parts: list[Any], x: ArrayType, size: int) -> Any:
        if len(parts) == 1:
            return parts[0]
        return hlo.op("stablehlo.concatenate", parts, self._resized(x, size), f"dimension = {self.dim} : i64")

    def _blocks(self, shard_size: int) -> list[_Block]:
        """Return for each distance between devices the block that covers the needs of all devices."""
        blocks = []
        for distance in range(1 - self.count, self.count):
            ranges = []
            for k in range(max(0, -distance), min(self.count, self.count - distance)):
                start = self.start(k) - (k + distance) * shard_size  # relative to the sender's shard
                first, last = max(start, 0), min(start + self.width, shard_size)
                if first < last:
                    ranges.append((first, last))
            if ranges:
                blocks.append(_Block(distance, min(first for first, _ in ranges), max(last for _, last in ranges)))
        return blocks

    def _uses_all_gather(self, shard_size: int) -> bool:
        """Whether permutes would send as much as an all-gather."""
        sent = sum(block.stop - block.start for block in self._blocks(shard_size) if block.distance)
        return self.count > 1 and sent >= shard_size * (self.count - 1) > 0

    def _lower_own_window(self, hlo: Hlo, x: Any, low: int, starts: Sequence[int]) -> Any:
        """Slice the window of this device, with zeros out of bounds.

        Args:
            hlo: the builder.
            x: an array that contains the windows.
            low: the position of element 0 of `x`, in the coordinates of `starts`.
            starts: the start of the window of each device.
        """
        before, after = max(0, low - min(starts)), max(0, max(starts) + self.width - low - x.type.shape[self.dim])
        parts = [*self._lower_zeros(hlo, x.type, before), x, *self._lower_zeros(hlo, x.type, after)]
        x = self._lower_concatenate(hlo, parts, x.type, x.type.shape[self.dim] + before + after)
        positions = [start - low + before for start in starts]
        if len(set(positions)) == 1:
            return self._lower_slice(hlo, x, positions[0], positions[0] + self.width)
        values = f"value = dense<{positions}> : tensor<{self.count}xi32>"
        table = hlo.op("stablehlo.constant", (), ArrayType((self.count,), np.int32), values)
        sizes = f"slice_sizes = {i64_array_attribute((1,))}"
        position = hlo.op("stablehlo.dynamic_slice", (table, hlo.device_index(self.axes)), _ONE, sizes)
        position = hlo.op("stablehlo.reshape", (position,), _SCALAR)
        zero = hlo.constant(0, _SCALAR)
        out = self._resized(x.type, self.width)
        indices = [position if dim == self.dim else zero for dim in range(out.ndim)]
        return hlo.op("stablehlo.dynamic_slice", (x, *indices), out, f"slice_sizes = {i64_array_attribute(out.shape)}")

    def _lower_slice(self, hlo: Hlo, x: Any, start: int, stop: int) -> Any:
        if (start, stop) == (0, x.type.shape[self.dim]):
            return x
        out = self._resized(x.type, stop - start)
        low, high = [0] * out.ndim, list(out.shape)
        low[self.dim], high[self.dim] = start, stop
        strides = i64_array_attribute([1] * out.ndim)
        starts, limits = i64_array_attribute(low), i64_array_attribute(high)
        attributes = f"start_indices = {starts}, limit_indices = {limits}, strides = {strides}"
        return hlo.op("stablehlo.slice", (x,), out, attributes)

    def _resized(self, x: ArrayType, size: int) -> ArrayType:
        """Return the type with another size of `dim`."""
        return x.with_shape((*x.shape[: self.dim], size, *x.shape[self.dim + 1 :]))
