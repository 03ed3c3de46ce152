"""The ops of StableHLO, CHLO and Shardy that modules may have: functions of arrays.

A function takes the op, for its attributes and regions, and its operands. MLIR has verified the op, so what it checks
is not checked again.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shardwise.stablehlo.ops import (
    collectives,
    contractions,
    control,
    custom_calls,
    elementwise,
    indexing,
    linalg,
    placement,
    random,
    reductions,
    shape,
    sorting,
    special,
    windows,
)

OPS: Mapping[str, Callable[..., Any]] = {
    **elementwise.OPS,
    **special.OPS,
    **shape.OPS,
    **reductions.OPS,
    **windows.OPS,
    **sorting.OPS,
    **indexing.OPS,
    **contractions.OPS,
    **linalg.OPS,
    **random.OPS,
    **control.OPS,
    **placement.OPS,
    **collectives.OPS,
    **custom_calls.OPS,
}
