"""Tile: a value of a Pallas kernel in Triton IR, and what is known about its integers.

The sizes of Triton's blocks are powers of two. The elements of a tile are the first ones of its block along each dim,
and the others are undefined.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import final

from shardwise.compiler.kernels.triton_ir import Block, next_power_of_two

_LIMIT = 2**31


class OutsideSubset(Exception):
    """A kernel, or a part of one, that is not translated to Triton. The message says what and why."""


@final
@dataclass(frozen=True)
class Range:
    """A set of integers that depends on the step of the grid: `sum(step[axis] * factor) + rest`, low <= rest <= high.

    The iterations of a loop are further axes.

    Attributes:
        low, high: the bounds of the rest.
        factors: pairs (axis, factor).
    """

    low: int
    high: int
    factors: tuple[tuple[int, int], ...] = ()

    def plus(self, other: "Range") -> "Range | None":
        """Return the sums; None if they may overflow."""
        factors = dict(self.factors)
        for axis, factor in other.factors:
            factors[axis] = factors.get(axis, 0) + factor
        kept = tuple((axis, factor) for axis, factor in sorted(factors.items()) if factor)
        return _checked(Range(self.low + other.low, self.high + other.high, kept))

    def times(self, factor: int) -> "Range | None":
        """Return the multiples; None if they may overflow."""
        low, high = sorted((self.low * factor, self.high * factor))
        return _checked(Range(low, high, tuple((axis, own * factor) for axis, own in self.factors if factor)))

    def over(self, sizes: Sequence[int], kept: Container[int] = ()) -> "Range":
        """Return the integers of all steps along the axes of these sizes, with the factors of the axes in `kept`."""
        low, high = self.low, self.high
        for axis, factor in self.factors:
            if axis not in kept:
                low, high = low + min(0, factor * (sizes[axis] - 1)), high + max(0, factor * (sizes[axis] - 1))
        return Range(low, high, tuple((axis, factor) for axis, factor in self.factors if axis in kept))


def _checked(range: Range) -> Range | None:
    return range if range.low >= -_LIMIT and range.high < _LIMIT else None


@final
@dataclass(frozen=True)
class Tile:
    """A value of a kernel.

    Attributes:
        block: its block.
        shape: its shape, without what the block has more.
        range: a set that its integers are in; None if unknown.
        pinned: the axes of the grid along which it is true in one step at most, of a boolean.
        before: the block of which a reshape removed dims of size 1; None if the tile is not the result of one.
    """

    block: Block
    shape: tuple[int, ...]
    range: Range | None = None
    pinned: frozenset[int] = frozenset()
    before: Block | None = None

    def with_block(self, block: Block) -> "Tile":
        return replace(self, block=block, before=None)


def padded_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the block of a tile."""
    return tuple(map(next_power_of_two, shape))


def check_size(shape: Sequence[int], limit: int, what: str) -> None:
    """Raise OutsideSubset if a tile of this shape has no elements or too many."""
    if not math.prod(shape):
        raise OutsideSubset(f"{what} is empty")
    if math.prod(padded_shape(shape)) > limit:
        raise OutsideSubset(f"{what} of shape {tuple(shape)} has more than the {limit} elements that a program holds")
