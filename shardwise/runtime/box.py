"""Boxes: rectangular blocks of arrays, as the first index and the last index plus one along each dim."""

import math
from collections.abc import Iterator, Sequence

_SMALLEST_SHARE = 64  # a block has at least 1/64 of its limit

Span = tuple[int, int]
Box = tuple[Span, ...]


def box_of(index: Sequence[slice]) -> Box:
    """Convert an index, whose slices have starts and stops, to a box."""
    return tuple((part.start, part.stop) for part in index)


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all elements."""
    return tuple((0, size) for size in shape)


def box_size(box: Box) -> int:
    """Return the number of elements in a box."""
    return math.prod(high - low for low, high in box)


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the sizes of a box."""
    return tuple(high - low for low, high in box)


def box_index(box: Box) -> tuple[slice, ...]:
    """Return the index that selects a box."""
    return tuple(slice(low, high) for low, high in box)


def box_text(box: Box) -> str:
    """Format a box as users write indices: `[0:4, 8:16]`."""
    return f"[{', '.join(f'{low}:{high}' for low, high in box)}]"


def relative(box: Box, outer: Box) -> Box:
    """Return a box relative to the start of an outer box."""
    return tuple((low - start, high - start) for (low, high), (start, _) in zip(box, outer, strict=True))


def split_box(box: Box, sizes: Sequence[int]) -> Iterator[Box]:
    """Split a box at the multiples of these sizes. Boxes at its beginning and end may be smaller."""
    if not box:
        yield ()
        return
    (low, high), size = box[0], sizes[0]
    for start in range(low // size * size, high, size):
        for rest in split_box(box[1:], sizes[1:]):
            yield ((max(start, low), min(start + size, high)), *rest)


def block_shape(shape: Sequence[int], itemsize: int, limit: int) -> tuple[int, ...]:
    """Return the shape of equal blocks of an array, of at most `limit` bytes each if its sizes have suitable divisors.

    The leading dims are split first, so that a block is contiguous. A size without a divisor near the limit, such as a
    prime, is not split, because its blocks would be tiny and numerous.
    """
    block = [max(1, size) for size in shape]
    for dim in range(len(block)):
        rest = math.prod(block[:dim] + block[dim + 1 :]) * itemsize
        if rest * block[dim] <= limit:
            break
        wanted = max(1, limit // rest)
        divisor = max(divisor for divisor in _divisors(block[dim]) if divisor <= wanted)
        if divisor * _SMALLEST_SHARE >= wanted:
            block[dim] = divisor
    return tuple(block)


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return [*small, *(number // divisor for divisor in small)]
