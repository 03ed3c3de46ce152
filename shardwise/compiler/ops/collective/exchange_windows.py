"""exchange_windows: each device reads windows of an index space that the shards of one or more arrays cover.

Concatenate, tile, roll and reverse move elements along a sharded dim with it. An operand is the concatenation, along
`dim`, of the local shards of some arrays. Each array is a *source*, which covers a range of the index space; each
*window* of a device is a range that it needs. Only the elements that a device lacks are sent, by a few
collective-permutes whose number does not depend on the number of devices (`block_schedule`). If that would send as much
as an all-gather, the operand is gathered instead.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.base.caches import registered_cache
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.block_schedule import Piece, Round, merge_adjacent, schedule, sent_elements
from shardwise.compiler.ops.collective.collectives import Collective, PPermute, lower_unstack
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.lower_dim import lower_concatenate, lower_slice, lower_zeros, resize_dim
from shardwise.compiler.ops.shape.movement import Reshape, i64_array_attribute
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import Traffic, all_gather, one_hop

MAX_MESSAGES = 32  # the most permutes; beyond that, an all-gather
_SCALAR, _ONE = ArrayType((), np.int32), ArrayType((1,), np.int32)


class Source(NamedTuple):
    """An array whose shards are part of the operand. It covers `size` elements of the index space, from `start` on.

    Attributes:
        position: the start of its shard in the operand.
        shard_size: the size of its shard; device k holds its elements from `k * shard_size` on.
        size: the number of its elements without padding.
        start: its start in the index space.
    """

    position: int
    shard_size: int
    size: int
    start: int


class Window(NamedTuple):
    """A range that each device needs: on device k, `width` elements from `(offset + stride * k) // divisor` on."""

    offset: int
    stride: int
    width: int
    divisor: int = 1

    def start_of(self, k: int) -> int:
        """Return the start of the window of device k."""
        return (self.offset + self.stride * k) // self.divisor


@final
@record
class ExchangeWindows(Collective):
    """Each device of `count` along `axes` receives its `windows`, concatenated along `dim`.

    Elements of a window that no source covers are zeros. Sources do not overlap in the index space, but several sources
    may be the same shard.
    """

    name = "exchange_windows"
    dim: int
    axes: tuple[str, ...]
    count: int
    sources: tuple[tuple[int, int, int, int], ...]
    windows: tuple[tuple[int, int, int, int], ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        return resize_dim(x, self.dim, self._out_size)

    @property
    def _out_size(self) -> int:
        return sum(Window(*window).width for window in self.windows)

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        out: list[Any] = [None] * mesh.device_count
        for group in mesh.groups(self.axes):
            operands = [np.moveaxis(shards[device], self.dim, 0) for device in group]
            for k, device in enumerate(group):
                result = np.zeros((self._out_size, *operands[k].shape[1:]), operands[k].dtype)
                filled = 0
                for window in (Window(*fields) for fields in self.windows):
                    for source in (Source(*fields) for fields in self.sources):
                        shard = slice(source.position, source.position + source.shard_size)
                        array = np.concatenate([operand[shard] for operand in operands])[: source.size]
                        first = max(window.start_of(k), source.start)
                        last = min(window.start_of(k) + window.width, source.start + source.size)
                        if first < last:
                            at = filled + first - window.start_of(k)
                            result[at : at + last - first] = array[first - source.start : last - source.start]
                    filled += window.width
                out[device] = np.moveaxis(result, 0, self.dim)
        return out

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        if self.uses_all_gather(operand.shape[self.dim]):
            return all_gather(operand.nbytes, self.count)
        return one_hop(self.bytes_sent_of_shard(operand))

    def bytes_sent_of_shard(self, operand: ArrayType) -> float:
        """Return the bytes that each device sends if its operand has this type."""
        size = operand.shape[self.dim]
        sent = size * (self.count - 1) if self.uses_all_gather(size) else sent_elements(self._rounds)
        return sent * operand.nbytes / max(size, 1)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The elements that each device needs, by the devices that hold them."""
        return _pieces(self.count, self.sources, self.windows)

    @property
    def _rounds(self) -> tuple[Round, ...]:
        return _schedule(self.count, self.sources, self.windows)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        if not self._out_size:
            return hlo.constant(0, self.out_type(x.type).strong())
        if not self.uses_all_gather(x.type.shape[self.dim]):
            return self._lower_rounds(hlo, x, self._rounds)
        size = x.type.shape[self.dim]
        row = Reshape((1, *x.type.shape)).lower(hlo, x)
        attributes = f"all_gather_dim = 0 : i64, {hlo.group_attributes(self.axes)}"
        stack_type = x.type.with_shape((self.count, *x.type.shape))
        stack = hlo.op("stablehlo.all_gather", (row,), stack_type, attributes)
        rounds = schedule(merge_adjacent([piece.after_all_gather(size) for piece in self.pieces]))
        if len(rounds) > MAX_MESSAGES:
            return self._lower_index_space(hlo, stack)
        return self._lower_rounds(hlo, lower_unstack(hlo, stack, self.dim), rounds)

    def _lower_index_space(self, hlo: Hlo, stack: HloValue) -> Any:
        """Assemble the index space from the operands of all devices, and slice the windows of this device."""
        windows = [Window(*fields) for fields in self.windows]
        starts = [[window.start_of(k) for k in range(self.count)] for window in windows]
        low = min(map(min, starts))
        high = max(max(of) + window.width for of, window in zip(starts, windows, strict=True))
        x = stack.type.without((0,))
        parts: list[Any] = []
        filled = low
        for source in sorted((Source(*fields) for fields in self.sources), key=lambda source: source.start):
            first, last = max(source.start, low), min(source.start + source.size, high)
            if first >= last:
                continue
            shards = lower_slice(hlo, stack, self.dim + 1, source.position, source.position + source.shard_size)
            array = lower_unstack(hlo, shards, self.dim)
            parts += lower_zeros(hlo, x, self.dim, first - filled)
            parts.append(lower_slice(hlo, array, self.dim, first - source.start, last - source.start))
            filled = last
        space = lower_concatenate(hlo, [*parts, *lower_zeros(hlo, x, self.dim, high - filled)], self.dim)
        taken = []
        for of, window in zip(starts, windows, strict=True):
            position = self.lower_of_device(hlo, [start - low for start in of])
            taken.append(self.lower_slice_at(hlo, space, position, window.width))
        return lower_concatenate(hlo, taken, self.dim)

    def uses_all_gather(self, operand_size: int) -> bool:
        """Return whether an all-gather of operands of this size along `dim` sends at most as much as the permutes.

        At equal bytes, one permute is preferred, because it needs less memory. Many permutes have too high a latency.
        """
        sent, gathered = sent_elements(self._rounds), operand_size * (self.count - 1)
        messages = sum(not each.is_local for each in self._rounds)
        if not gathered or messages > MAX_MESSAGES:
            return gathered > 0
        return gathered < sent or (gathered == sent and messages > 1)

    def _lower_rounds(self, hlo: Hlo, x: HloValue, rounds: Sequence[Round]) -> Any:
        """Receive a block in each round, and write the part of it that this device needs into the result."""
        blocks = [_Blocks.from_round(each, self.count, x.type.shape[self.dim]) for each in rounds]
        # A block may extend beyond either end of the result.
        low = max([0, *(-position for each in blocks for position in each.received_positions)])
        ends = [position + each.size for each in blocks for position in each.received_positions]
        size = low + max([self._out_size, *ends])
        result = None
        for each in blocks:
            block = self.lower_slice_at(hlo, x, self.lower_of_device(hlo, each.starts), each.size)
            if each.to:
                pairs = hlo.pair_attributes(PPermute(self.axes, each.to))
                block = hlo.op("stablehlo.collective_permute", (block,), block.type, pairs)
            if each.size == size and not each.is_masked:  # the block is the entire result
                result = block
                continue
            if result is None:
                (result,) = lower_zeros(hlo, x.type, self.dim, size)
            position = self.lower_of_device(hlo, [None if p is None else p + low for p in each.positions])
            if each.is_masked:
                old = self.lower_slice_at(hlo, result, position, each.size)
                block = hlo.op("stablehlo.select", (self._lower_mask(hlo, each, block.type), block, old), block.type)
            indices = self._indices(hlo, position, block.type.ndim)
            result = hlo.op("stablehlo.dynamic_update_slice", (result, block, *indices), result.type)
        if result is None:  # no device needs anything
            (result,) = lower_zeros(hlo, x.type, self.dim, size)
        return lower_slice(hlo, result, self.dim, low, low + self._out_size)

    def _lower_mask(self, hlo: Hlo, blocks: "_Blocks", block: ArrayType) -> Any:
        """Emit a mask of the elements of a round's block that this device needs."""
        index_type = ArrayType(block.shape, np.int32)
        index = Iota(block.shape, self.dim, np.dtype(np.int32)).lower(hlo)

        def compare(direction: str, bounds: Sequence[int]) -> Any:
            bound = self.lower_of_device(hlo, bounds)
            scalar = hlo.constant(bound, _SCALAR) if isinstance(bound, int) else bound
            spread = hlo.op("stablehlo.broadcast_in_dim", (scalar,), index_type, "broadcast_dimensions = array<i64>")
            return lower_compare(hlo, direction, index, spread)

        first, last = compare("GE", blocks.firsts), compare("LT", blocks.lasts)
        return hlo.op("stablehlo.and", (first, last), first.type)

    def lower_of_device(self, hlo: Hlo, values: Sequence[int | None]) -> Any:
        """Return this device's entry of a table; an int if all devices that have an entry have the same."""
        known = {value for value in values if value is not None}
        if len(known) <= 1:
            return next(iter(known), 0)
        numbers = [min(known) if value is None else value for value in values]
        table_type = ArrayType((self.count,), np.int32)
        table = hlo.op("stablehlo.constant", (), table_type, f"value = dense<{numbers}> : tensor<{self.count}xi32>")
        sizes = f"slice_sizes = {i64_array_attribute((1,))}"
        row = hlo.op("stablehlo.dynamic_slice", (table, hlo.device_index(self.axes)), _ONE, sizes)
        return hlo.op("stablehlo.reshape", (row,), _SCALAR)

    def lower_slice_at(self, hlo: Hlo, x: HloValue, start: HloValue | int, size: int) -> Any:
        """Emit `size` elements of `x` along `dim`, from a static or dynamic start."""
        if isinstance(start, int):
            return lower_slice(hlo, x, self.dim, start, start + size)
        out = resize_dim(x.type, self.dim, size)
        attributes = f"slice_sizes = {i64_array_attribute(out.shape)}"
        return hlo.op("stablehlo.dynamic_slice", (x, *self._indices(hlo, start, out.ndim)), out, attributes)

    def _indices(self, hlo: Hlo, position: HloValue | int, ndim: int) -> list[Any]:
        """Return start indices that are 0 along all dims but `dim`."""
        along_dim = hlo.constant(position, _SCALAR) if isinstance(position, int) else position
        zero = hlo.constant(0, _SCALAR)
        return [along_dim if dim == self.dim else zero for dim in range(ndim)]


class _Blocks(NamedTuple):
    """The blocks of a round, by device.

    Attributes:
        size: the size of each block.
        to: the pairs (source, target) of the collective-permute; empty without communication.
        starts: the start, in the operand, of the block that a device sends; None if it sends nothing.
        positions: the start, in the result, of the block that a device receives; None if it receives nothing.
        firsts: the index of the first element of the received block that the device needs.
        lasts: the index after the last of these elements.
    """

    size: int
    to: tuple[tuple[int, int], ...]
    starts: list[int | None]
    positions: list[int | None]
    firsts: list[int]
    lasts: list[int]

    @staticmethod
    def from_round(each: Round, count: int, operand_size: int) -> "_Blocks":
        """Return the blocks of a round among `count` devices."""
        starts: list[int | None] = [None] * count
        positions: list[int | None] = [None] * count
        firsts, lasts = [0] * count, [0] * count
        for piece in each.pieces:
            start = min(piece.start, operand_size - each.size)  # a block inside the operand that contains the piece
            before = piece.start - start
            starts[piece.source] = start
            positions[piece.target] = piece.position - before
            firsts[piece.target], lasts[piece.target] = before, before + piece.size
        to = () if each.is_local else tuple(sorted((piece.source, piece.target) for piece in each.pieces))
        return _Blocks(each.size, to, starts, positions, firsts, lasts)

    @property
    def received_positions(self) -> list[int]:
        """The positions on devices that receive a block."""
        return [position for position in self.positions if position is not None]

    @property
    def is_masked(self) -> bool:
        """Whether some device does not need all elements of its block."""
        return any(last - first < self.size for first, last in zip(self.firsts, self.lasts, strict=True))


@registered_cache(maxsize=4096)
def _pieces(
    count: int, sources: tuple[tuple[int, int, int, int], ...], windows: tuple[tuple[int, int, int, int], ...]
) -> tuple[Piece, ...]:
    pieces = []
    filled = 0
    for window in (Window(*fields) for fields in windows):
        for source in (Source(*fields) for fields in sources):
            for target in range(count):
                start = window.start_of(target) - source.start  # relative to the source
                first, last = max(start, 0), min(start + window.width, source.size)
                while first < last:
                    holder, inside = divmod(first, source.shard_size)
                    size = min(source.shard_size - inside, last - first)
                    pieces.append(Piece(holder, target, source.position + inside, filled + first - start, size))
                    first += size
        filled += window.width
    return tuple(pieces)


@registered_cache(maxsize=4096)
def _schedule(
    count: int, sources: tuple[tuple[int, int, int, int], ...], windows: tuple[tuple[int, int, int, int], ...]
) -> tuple[Round, ...]:
    return schedule(_pieces(count, sources, windows))
