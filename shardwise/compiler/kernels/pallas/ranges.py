"""The ranges of integers of a Pallas kernel: what is known about the result of an op."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import DType
from shardwise.compiler.kernels.pallas.tile import Range, Tile
from shardwise.compiler.ops.elementwise.select import Compare


def result_range(op: Any, operands: Sequence[Tile], grid: Sequence[int], dtype: DType) -> Range | None:
    """Return a set that the integers of the result of an elementwise op are in; None if unknown."""
    found = _exact_range(op, operands, grid)
    return found if found is not None and fits(found.over(grid), dtype) else None


def fits(range: Range, dtype: DType) -> bool:
    """Return whether integers of a dtype do not overflow in a range."""
    limits = np.iinfo(dtype)
    return bool(limits.min <= range.low and range.high <= limits.max)


def _exact_range(op: Any, operands: Sequence[Tile], grid: Sequence[int]) -> Range | None:
    ranges = [tile.range for tile in operands]
    if op.name == "select":
        ranges = ranges[1:]
    known = [range for range in ranges if range is not None]
    if op.name in ("min", "max") and known and len(known) < len(ranges):
        return None
    if len(known) < len(ranges):
        return None
    if op.name == "convert" and known:
        return known[0]
    if len(known) != 2 or op.name not in _RULES:
        return known[0] if op.name in ("stop_gradient", "barrier") and known else None
    rule: Any = _RULES[op.name]
    if op.name in ("add", "sub", "mul"):
        return rule(*known)  # type: ignore[no-any-return]
    return rule(*(range.over(grid) for range in known))  # type: ignore[no-any-return]


def pinned_axes(op: Any, operands: Sequence[Tile]) -> frozenset[int]:
    """Return the axes of the grid along which the boolean result of an op is true in one step at most."""
    if op.name == "convert":
        return operands[0].pinned
    if op.name == "and":
        return operands[0].pinned | operands[1].pinned
    if isinstance(op, Compare) and op.direction == "EQ" and all(tile.range for tile in operands):
        first, second = (tile.range for tile in operands)
        assert first is not None and second is not None
        difference = first.plus(second.times(-1) or second)
        if difference is not None and len(difference.factors) == 1 and difference.low == difference.high:
            return frozenset({difference.factors[0][0]})
    return frozenset()


def _sub(x: Range, y: Range) -> Range | None:
    negative = y.times(-1)
    return None if negative is None else x.plus(negative)


def _mul(x: Range, y: Range) -> Range | None:
    for one, other in ((x, y), (y, x)):
        if not one.factors and one.low == one.high:
            return other.times(one.low)
    return None


def _div(x: Range, y: Range) -> Range | None:
    return Range(x.low // y.high, x.high // y.low) if x.low >= 0 and y.low > 0 else None


def _rem(x: Range, y: Range) -> Range | None:
    return Range(0, min(x.high, y.high - 1)) if x.low >= 0 and y.low > 0 else None


_RULES = {
    "add": Range.plus,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "rem": _rem,
    "select": lambda x, y: Range(min(x.low, y.low), max(x.high, y.high)),
    "min": lambda x, y: Range(min(x.low, y.low), min(x.high, y.high)),
    "max": lambda x, y: Range(max(x.low, y.low), max(x.high, y.high)),
}
