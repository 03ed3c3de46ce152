"""Per-dim window parameters and padding names of convolutions and windowed reductions."""

import operator
from collections.abc import Sequence
from typing import Any


def integers(name: str, argument: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    """Convert `values` to a tuple of `count` static integers. `argument` is the name of the argument, for errors."""
    static = tuple(map(operator.index, values))
    if len(static) != count:
        raise ValueError(f"{name}: {argument} must have {count} numbers, one for each dim, not {static}")
    return static


def padding_pairs(
    name: str,
    padding: Any,
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """Return the padding (low, high) of each dim, from pairs or from a padding name.

    "VALID" adds none. "SAME" and "SAME_LOWER" add so much that there are ceil(size / stride) windows; if the padding is
    odd, "SAME" adds the extra element after the dim and "SAME_LOWER" before it.
    """
    if not isinstance(padding, str):
        explicit = [integers(name, "each pair of padding", pair, 2) for pair in padding]
        if len(explicit) != len(sizes):
            raise ValueError(f"{name}: padding must have {len(sizes)} pairs, one for each dim, not {explicit}")
        return [(low, high) for low, high in explicit]
    if padding.upper() == "VALID":
        return [(0, 0)] * len(sizes)
    if padding.upper() not in ("SAME", "SAME_LOWER"):
        raise ValueError(
            f"{name}: padding must be 'SAME', 'SAME_LOWER', 'VALID' or a pair of numbers for each dim, not {padding!r}"
        )
    pairs = []
    for size, window, stride, dilation in zip(sizes, windows, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (window - 1) + 1 - size)
        half, rest = total // 2, total - total // 2
        pairs.append((half, rest) if padding.upper() == "SAME" else (rest, half))
    return pairs
