"""heap: the size of the heap in which XLA places temporaries whose live ranges are known.

XLA places them one after the other, each into the smallest gap between those that are live at the same time, once with
the largest first and once with the longest-lived first, and keeps the smaller heap. Gaps that no buffer fits into make
it larger than the most bytes that are live at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Block(NamedTuple):
    """Memory for buffers that replace each other in place: its bytes, and the first and last time of each buffer."""

    bytes: int
    ranges: tuple[tuple[int, int], ...]


def heap_bytes(blocks: Sequence[Block], least: int = 0) -> int:
    """Return the size of the heap of these blocks. `least` are the most bytes that are live at once, if known."""

    def size_first(block: Block) -> tuple[int, int]:
        return -block.bytes, -_duration(block)

    def duration_first(block: Block) -> tuple[int, int]:
        return -_duration(block), -block.bytes

    size = _placed_bytes(sorted(blocks, key=size_first))
    return size if size == least else min(size, _placed_bytes(sorted(blocks, key=duration_first)))


def _duration(block: Block) -> int:
    return block.ranges[-1][1] - block.ranges[0][0]


def _placed_bytes(blocks: Sequence[Block]) -> int:
    """Return the size of a heap in which blocks are placed in order."""
    count = sum(len(block.ranges) for block in blocks)
    placed = np.empty((4, count), np.int64)  # first and last times, offsets and ends of the buffers so far
    filled = heap = 0
    for block in blocks:
        offset = _offset(block, placed[:, :filled])
        for first, last in block.ranges:
            placed[:, filled] = first, last, offset, offset + block.bytes
            filled += 1
        heap = max(heap, offset + block.bytes)
    return heap


def _offset(block: Block, placed: npt.NDArray[np.int64]) -> int:
    """Return the offset of the smallest gap for a block; the end of all others if there is none."""
    first, last, offsets, ends = placed
    live = np.zeros(first.shape, bool)
    for start, end in block.ranges:
        live |= (first <= end) & (start <= last)
    if not live.any():
        return 0
    order = np.argsort(offsets[live])
    starts = offsets[live][order]
    reached = np.maximum.accumulate(ends[live][order])  # the end of all blocks up to each
    below = np.concatenate(([0], reached[:-1]))
    gaps = starts - below
    fitting = np.flatnonzero(gaps >= block.bytes)
    return int(below[fitting[gaps[fitting].argmin()]] if fitting.size else reached[-1])
