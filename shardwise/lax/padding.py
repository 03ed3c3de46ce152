"""Numbers for each dim over which windows slide, and padding by name."""

import operator
from collections.abc import Sequence
from typing import Any


def integers(name: str, what: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    """As static fields can hold them; a traced number, or too few or many of them, is an error that says so."""
    found = tuple(map(operator.index, values))
    if len(found) != count:
        raise ValueError(f"{name}: {what} needs {count} numbers, one for each dim, not {found}")
    return found


def padding_pairs(
    name: str,
    padding: Any,
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """How much comes before and after each dim of these sizes: as given in numbers, or by name.

    "SAME" leaves a window for each stride, with the odd one after; "SAME_LOWER" has it before; "VALID" adds nothing.
    """
    if not isinstance(padding, str):
        found = [integers(name, "a pair of padding", pair, 2) for pair in padding]
        if len(found) != len(sizes):
            raise ValueError(f"{name}: padding needs {len(sizes)} pairs, one for each dim, not {found}")
        return [(low, high) for low, high in found]
    if padding.upper() == "VALID":
        return [(0, 0)] * len(sizes)
    if padding.upper() not in ("SAME", "SAME_LOWER"):
        raise ValueError(
            f"{name}: padding is 'SAME', 'SAME_LOWER', 'VALID' or a pair of numbers for each dim, not {padding!r}"
        )
    pairs = []
    for size, window, stride, dilation in zip(sizes, windows, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (window - 1) + 1 - size)
        half, rest = total // 2, total - total // 2
        pairs.append((half, rest) if padding.upper() == "SAME" else (rest, half))
    return pairs
