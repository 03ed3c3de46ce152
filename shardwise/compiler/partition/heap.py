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


def heap_bytes(blocks: Sequence[Block]) -> int:
    """Return the size of the heap of these blocks."""

    def size_first(block: Block) -> tuple[int, int]:
        return -block.bytes, -_duration(block)

    def duration_first(block: Block) -> tuple[int, int]:
        return -_duration(block), -block.bytes

    return min(_placed_bytes(sorted(blocks, key=order)) for order in (size_first, duration_first))


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
    end, best, tightest = 0, None, 0
    for other, other_end in sorted(zip(offsets[live].tolist(), ends[live].tolist(), strict=True)):
        gap = other - end
        if gap >= block.bytes and (best is None or gap < tightest):
            best, tightest = end, gap
        end = max(end, other_end)
    return end if best is None else best
