"""take_window: from an array that is cut along a dim, each device takes a stretch of its own, across the cuts.

What an op that shifts or looks around needs of its neighbours (a slice, a pad, a reversal, a convolution) is such a
window: device k takes the elements from `(offset + stride * k) // divisor` on. Each sends to each just what any needs
over the same distance, by permutes; where that would be as much as everything, all is gathered.
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
    """Device k along `axes` gets what device k + `distance` sends; devices past the ends send nothing."""

    axes: tuple[str, ...]
    distance: int

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """(source, target) of every message."""
        groups = np.asarray(mesh.groups(self.axes))
        count = groups.shape[1]
        reach = range(max(0, -self.distance), min(count, count - self.distance))
        return np.array([[group[k + self.distance], group[k]] for group in groups for k in reach])


class _Part(NamedTuple):
    """What comes over one distance: elements `start` to `stop` of that device's piece."""

    distance: int
    start: int
    stop: int


@final
@record
class TakeWindow(Collective):
    """Device k of `count` along `axes` takes `width` elements of `dim` from its `start(k)` on; zeros outside."""

    name = "take_window"
    dim: int
    axes: tuple[str, ...]
    count: int
    offset: int
    stride: int
    width: int
    divisor: int = 1

    def start(self, k: int) -> int:
        """Where the window of device k begins."""
        return (self.offset + self.stride * k) // self.divisor

    def out_type(self, x: ArrayType) -> ArrayType:
        return self._sized(x, self.width)

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        out: list[Any] = [None] * mesh.size
        for group in mesh.groups(self.axes):
            whole = np.concatenate([pieces[device] for device in group], self.dim)
            size = whole.shape[self.dim]
            for k, device in enumerate(group):
                first, last = (min(max(place, 0), size) for place in (self.start(k), self.start(k) + self.width))
                before = first - self.start(k) if first < last else 0
                edges = [(0, 0)] * whole.ndim
                edges[self.dim] = (before, self.width - before - (last - first))
                out[device] = np.pad(np.take(whole, range(first, last), self.dim), edges)
        return out

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return self.bytes_sent_of_shard(operand)

    def bytes_sent_of_shard(self, operand: ArrayType) -> float:
        """What one device sends of a piece like this."""
        piece = operand.shape[self.dim]
        row = operand.nbytes / max(piece, 1)
        if self._gathers(piece):
            return operand.nbytes * (self.count - 1)
        return sum(row * (part.stop - part.start) for part in self._parts(piece) if part.distance)

    def bytes_sent_of_array(self, whole: ArrayType) -> float:
        """What one device sends of an array of this type that is cut along this dim alone."""
        return self.bytes_sent_of_shard(self._sized(whole, -(-whole.shape[self.dim] // self.count)))

    def lower(self, hlo: Hlo, x: Any) -> Any:
        piece = x.type.shape[self.dim]
        if self._gathers(piece):
            groups = f"all_gather_dim = {self.dim} : i64, replica_groups = {hlo.groups(self.axes)}"
            everything = hlo.op("stablehlo.all_gather", (x,), self._sized(x.type, piece * self.count), groups)
            return self._cut(hlo, everything, 0, [self.start(k) for k in range(self.count)])
        starts = [self.start(k) - piece * k for k in range(self.count)]  # from one's own piece on
        low, size = min(starts), max(starts) + self.width - min(starts)
        row: list[Any] = []
        filled = 0
        for part in self._parts(piece):  # side by side, with zeros between them
            found = self._slice(hlo, x, part.start, part.stop)
            if part.distance:
                pairs = f"source_target_pairs = {hlo.pairs(ShiftPairs(self.axes, part.distance))}"
                found = hlo.op("stablehlo.collective_permute", (found,), found.type, pairs)
            at = part.distance * piece + part.start - low
            row += [*self._zeros(hlo, x.type, at - filled), found]
            filled = at + part.stop - part.start
        row += self._zeros(hlo, x.type, size - filled)
        dimension = f"dimension = {self.dim} : i64"
        stretch = (
            row[0] if len(row) == 1 else hlo.op("stablehlo.concatenate", row, self._sized(x.type, size), dimension)
        )
        return self._cut(hlo, stretch, low, starts)

    def _zeros(self, hlo: Hlo, x: ArrayType, size: int) -> list[Any]:
        return [hlo.constant(0, self._sized(x, size).strong())] if size else []

    def _parts(self, piece: int) -> list[_Part]:
        """What any device needs from the device at each distance."""
        found = []
        for distance in range(1 - self.count, self.count):
            ranges = []
            for k in range(max(0, -distance), min(self.count, self.count - distance)):
                start = self.start(k) - (k + distance) * piece  # in that device's own numbers
                first, last = max(start, 0), min(start + self.width, piece)
                if first < last:
                    ranges.append((first, last))
            if ranges:
                found.append(_Part(distance, min(first for first, _ in ranges), max(last for _, last in ranges)))
        return found

    def _gathers(self, piece: int) -> bool:
        """Whether permutes would send as much as a gather does."""
        sent = sum(part.stop - part.start for part in self._parts(piece) if part.distance)
        return self.count > 1 and sent >= piece * (self.count - 1) > 0

    def _cut(self, hlo: Hlo, x: Any, low: int, starts: Sequence[int]) -> Any:
        """This device's window of `x`, whose element 0 is number `low`; zeros where `x` has none."""
        before, after = max(0, low - min(starts)), max(0, max(starts) + self.width - low - x.type.shape[self.dim])
        row = [*self._zeros(hlo, x.type, before), x, *self._zeros(hlo, x.type, after)]
        if len(row) > 1:
            size = x.type.shape[self.dim] + before + after
            x = hlo.op("stablehlo.concatenate", row, self._sized(x.type, size), f"dimension = {self.dim} : i64")
        places = [start - low + before for start in starts]
        if len(set(places)) == 1:
            return self._slice(hlo, x, places[0], places[0] + self.width)
        listed = f"value = dense<{places}> : tensor<{self.count}xi32>"
        table = hlo.op("stablehlo.constant", (), ArrayType((self.count,), np.int32), listed)
        sizes = f"slice_sizes = {i64_array_attribute((1,))}"
        place = hlo.op("stablehlo.dynamic_slice", (table, hlo.device_index(self.axes)), _ONE, sizes)
        place = hlo.op("stablehlo.reshape", (place,), _SCALAR)
        zero = hlo.constant(0, _SCALAR)
        out = self._sized(x.type, self.width)
        at = [place if dim == self.dim else zero for dim in range(out.ndim)]
        return hlo.op("stablehlo.dynamic_slice", (x, *at), out, f"slice_sizes = {i64_array_attribute(out.shape)}")

    def _slice(self, hlo: Hlo, x: Any, start: int, stop: int) -> Any:
        if (start, stop) == (0, x.type.shape[self.dim]):
            return x
        out = self._sized(x.type, stop - start)
        low, high = [0] * out.ndim, list(out.shape)
        low[self.dim], high[self.dim] = start, stop
        strides = i64_array_attribute([1] * out.ndim)
        starts, limits = i64_array_attribute(low), i64_array_attribute(high)
        attributes = f"start_indices = {starts}, limit_indices = {limits}, strides = {strides}"
        return hlo.op("stablehlo.slice", (x,), out, attributes)

    def _sized(self, x: ArrayType, size: int) -> ArrayType:
        return x.with_shape((*x.shape[: self.dim], size, *x.shape[self.dim + 1 :]))
