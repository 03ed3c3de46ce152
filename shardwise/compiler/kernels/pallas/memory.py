"""Memory: a block of an array in a Pallas kernel, and the addresses and masks of accesses to it in Triton IR."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.pallas.memory_ops import Access
from shardwise.compiler.kernels.pallas.shapes import positions
from shardwise.compiler.kernels.pallas.tile import Range, Tile, padded_shape
from shardwise.compiler.kernels.triton_ir import I32, Block, Pointer, TritonBuilder


@final
@dataclass(frozen=True, eq=False)
class Memory:
    """A block of an array.

    Attributes:
        array: the index of the array.
        pointer: the address of the array's first element, without batch dims.
        type: the type of the array, without batch dims.
        starts: the first element of the block along each dim of the array.
        sizes: the number of elements of the block along each dim.
        squeezed: the dims that the kernel does not see.
    """

    array: int
    pointer: Pointer
    type: ArrayType
    starts: tuple[Tile, ...]
    sizes: tuple[int, ...]
    squeezed: tuple[int, ...]

    @property
    def visible_sizes(self) -> list[int]:
        """The sizes of the dims that the kernel sees."""
        return [size for dim, size in enumerate(self.sizes) if dim not in self.squeezed]


@final
@dataclass(frozen=True, eq=False)
class Address:
    """Where an access reads or writes.

    Attributes:
        pointer, offsets: the address of the first element, and the distance of all of them from it.
        mask: which elements exist and are accessed; None for all.
        ranges: for each dim of the array, the set that the indices are in; None if unknown.
    """

    pointer: Pointer
    offsets: Block
    mask: Block | None
    ranges: tuple[Range | None, ...]


@final
class AddressBuilder:
    """Emits addresses. `grid` has the number of steps along each axis."""

    def __init__(self, kernel: TritonBuilder, grid: Sequence[int]):
        self.kernel = kernel
        self.grid = grid

    def wrapped(self, x: Tile, size: int) -> Tile:
        """Count negative indices from the end of a dim."""
        if x.range is not None and x.range.over(self.grid).low >= 0:
            return x
        return Tile(self.kernel.where(x.block < 0, x.block + size, x.block), x.shape)

    def clamped(self, x: Tile, high: int) -> Tile:
        """Move a scalar into bounds, from 0 to `high`, if it may be outside of them."""
        if x.range is not None:
            bounds = x.range.over(self.grid)
            if bounds.low >= 0 and bounds.high <= high:
                return x
        block = self.kernel.arithmetic("mins", self.kernel.arithmetic("maxs", x.block, 0), high)
        return Tile(block, (), Range(0, high))

    def address(self, memory: Memory, access: Access, indices: Sequence[Tile], mask: Tile | None) -> Address:
        """Return the address of an access, whose starts and indices are `indices`."""
        kernel, shape, rank = self.kernel, padded_shape(access.shape), len(access.shape)
        scalar: Block | None = None  # the offset of the first element
        blocks: Block | None = None  # the offsets of all elements from it
        masks = [] if mask is None else [mask.block]
        padded = {axis for axis, size in enumerate(access.shape) if size != shape[axis]}
        ranges: list[Range | None] = []
        seen = iter(zip(access.dims, indices, strict=True))
        stride = memory.type.size
        for dim, (start, size) in enumerate(zip(memory.starts, memory.type.shape, strict=True)):
            stride = stride // size
            parts, range = [] if start.range == Range(0, 0) else [start.block], start.range
            if dim not in memory.squeezed:
                place, index = next(seen)
                block_size = memory.sizes[dim]
                if not access.masked:
                    index = self.wrapped(index, block_size)
                if place.axis is not None:
                    last = (place.size - 1) * place.stride
                    if not access.masked:
                        index = self.clamped(index, block_size - 1 - last)
                    spread = positions(kernel, place.size, place.axis, rank)
                    spread = spread * place.stride if place.stride > 1 else spread
                    parts += [spread] if index.range == Range(0, 0) else [index.block, spread]
                    range = _plus(_plus(range, index.range), Range(0, last))
                else:
                    parts.append(index.block)
                    if not index.shape and not access.masked:
                        index = self.clamped(index, block_size - 1)
                        parts[-1] = index.block
                    elif not access.masked and not self._is_inside(index.range, block_size):
                        masks += [index.block >= 0, index.block < block_size]
                    range = _plus(range, index.range)
            position_scalar, position_block = _sums(parts)
            if size % memory.sizes[dim] and not self._is_inside(range, size):  # the last block exceeds the array
                whole = position_scalar if position_block is None else position_block
                if position_block is not None and position_scalar is not None:
                    whole = position_block + position_scalar
                assert whole is not None
                masks.append(whole < size)
            scalar = _add(scalar, None if position_scalar is None else _scaled(position_scalar, stride))
            blocks = _add(blocks, None if position_block is None else _scaled(position_block, stride))
            ranges.append(range)
        masks += [positions(kernel, access.shape[axis], axis, rank) < access.shape[axis] for axis in sorted(padded)]
        pointer = memory.pointer if scalar is None else memory.pointer.advance(scalar)
        if blocks is None:
            blocks = kernel.full(shape, 0, I32)
        total: Block | None = None
        for part in masks:
            total = part if total is None else total & part
        offsets = blocks.broadcast_to(shape)
        return Address(pointer, offsets, None if total is None else total.broadcast_to(shape), tuple(ranges))

    def _is_inside(self, range: Range | None, size: int) -> bool:
        if range is None:
            return False
        bounds = range.over(self.grid)
        return bounds.low >= 0 and bounds.high < size


def _plus(x: Range | None, y: Range | None) -> Range | None:
    return None if x is None or y is None else x.plus(y)


def _sums(parts: Sequence[Block]) -> tuple[Block | None, Block | None]:
    """Return the sum of scalars, and that of blocks; None for no terms."""
    scalar: Block | None = None
    block: Block | None = None
    for part in parts:
        if part.shape:
            block = _add(block, part)
        else:
            scalar = _add(scalar, part)
    return scalar, block


def _add(x: Block | None, y: Block | None) -> Block | None:
    return y if x is None else x if y is None else x + y


def _scaled(x: Block, factor: int) -> Block:
    return x if factor == 1 else x * factor
