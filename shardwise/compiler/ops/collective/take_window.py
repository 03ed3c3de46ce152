"""take_window: each device reads a window of a sharded dim, which may extend over the shards of other devices.

It is the halo exchange of ops that read beyond their shard: slice, pad, reverse, convolution. The window of device k
starts at `(offset + stride * k) // divisor`. Blocks are sent by one collective-permute per distance between devices. If
devices need elements over many distances, `exchange_windows` sends less, and is used instead.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.base.caches import registered_cache
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.collective.exchange_windows import ExchangeWindows, Source, Window
from shardwise.compiler.ops.shape.lower_dim import lower_concatenate, lower_slice, lower_zeros, resize_dim
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import Traffic, one_hop


@final
@record
class ShiftPairs:
    """The pairs of a collective-permute in which device k along `axes` receives from device k + `distance`."""

    axes: tuple[str, ...]
    distance: int

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """Return the (source, target) pairs of all devices."""
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
    """Device k of `count` along `axes` reads `width` elements of `dim`, from `start(k)` on. Out of bounds are zeros."""

    name = "take_window"
    dim: int
    axes: tuple[str, ...]
    count: int
    offset: int
    stride: int
    width: int
    divisor: int = 1

    @property
    def resized_dim(self) -> int:
        return self.dim

    def start(self, k: int) -> int:
        """Return the start of the window of device k."""
        return Window(self.offset, self.stride, self.width, self.divisor).start_of(k)

    def out_type(self, x: ArrayType) -> ArrayType:
        return resize_dim(x, self.dim, self.width)

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        return self._general(shards[0].shape[self.dim]).exchange(mesh, shards)

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return one_hop(self.bytes_sent_of_shard(operand))

    def bytes_sent_of_shard(self, operand: ArrayType) -> float:
        """Return the bytes that each device sends if its shard has this type."""
        return min(self._halo_bytes(operand), self._general(operand.shape[self.dim]).bytes_sent_of_shard(operand))

    def bytes_sent_of_array(self, array: ArrayType) -> float:
        """Return the bytes that each device sends of an array of this type that is sharded along this dim only."""
        return self.bytes_sent_of_shard(resize_dim(array, self.dim, -(-array.shape[self.dim] // self.count)))

    def _general(self, shard_size: int) -> ExchangeWindows:
        """Return the equivalent exchange of windows, whose messages are not limited to one per distance."""
        source = Source(0, shard_size, shard_size * self.count, 0)
        window = Window(self.offset, self.stride, self.width, self.divisor)
        return ExchangeWindows(self.dim, self.axes, self.count, (source,), (window,))

    def _halo_bytes(self, operand: ArrayType) -> float:
        """Return the bytes that each device sends if it sends one block per distance."""
        shard_size = operand.shape[self.dim]
        sent = sum(block.stop - block.start for block in self._blocks(shard_size) if block.distance)
        return sent * operand.nbytes / max(shard_size, 1)

    @registered_cache(maxsize=4096)  # every stage asks for the bytes that are sent
    def _blocks(self, shard_size: int) -> tuple[_Block, ...]:
        """Return, for each distance between devices, the block that covers the needs of all devices."""
        ranges: dict[int, tuple[int, int]] = {}
        for piece in self._general(shard_size).pieces:
            distance = piece.source - piece.target
            first, last = ranges.get(distance, (shard_size, 0))
            ranges[distance] = min(first, piece.start), max(last, piece.start + piece.size)
        return tuple(_Block(distance, *ranges[distance]) for distance in sorted(ranges))

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        shard_size = x.type.shape[self.dim]
        general = self._general(shard_size)
        general_bytes, halo_bytes = general.bytes_sent_of_shard(x.type), self._halo_bytes(x.type)
        if general_bytes < halo_bytes or (general_bytes == halo_bytes and general.uses_all_gather(shard_size)):
            return general.lower(hlo, x)
        starts = [self.start(k) - shard_size * k for k in range(self.count)]  # relative to the device's own shard
        low, size = min(starts), max(starts) + self.width - min(starts)
        parts: list[Any] = []
        filled = 0
        for block in self._blocks(shard_size):  # in order, with zeros between them
            part = lower_slice(hlo, x, self.dim, block.start, block.stop)
            if block.distance:
                pairs = hlo.pair_attributes(ShiftPairs(self.axes, block.distance))
                part = hlo.op("stablehlo.collective_permute", (part,), part.type, pairs)
            position = block.distance * shard_size + block.start - low
            parts += [*lower_zeros(hlo, x.type, self.dim, position - filled), part]
            filled = position + block.stop - block.start
        parts += lower_zeros(hlo, x.type, self.dim, size - filled)
        line = lower_concatenate(hlo, parts, self.dim)
        position = general.lower_of_device(hlo, [start - low for start in starts])
        return general.lower_slice_at(hlo, line, position, self.width)
