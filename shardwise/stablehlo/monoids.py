"""Regions that combine two scalars by one op, as those of most reductions, scatters and all-reduces."""

from typing import Any

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.trace.tracer import Tracer

_NAMES = {f"stablehlo.{name}": name for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")}


def monoids(block: Any) -> list[str] | None:
    """Return the op of each result of a region `(x..., y...) -> (x op y)...`, such as `add`; None for other regions."""
    *operations, final = (view.operation for view in block.operations)
    arguments = list(block.arguments)
    count = len(arguments) // 2
    if len(operations) != count or len(final.operands) != count:
        return None
    names = []
    for index, result in enumerate(final.operands):
        defining = next((each for each in operations if result in list(each.results)), None)
        pair = [arguments[index], arguments[index + count]]
        if defining is None or defining.name not in _NAMES or list(defining.operands) not in (pair, pair[::-1]):
            return None
        names.append(_NAMES[defining.name])
    return names


def constant_value(x: Array) -> NumpyArray | None:
    """Return the element that all elements of a traced constant are equal to; None if the array is no constant."""
    if isinstance(x, Tracer) and x.made_by is not None and isinstance(x.made_by.op, Full):
        element: NumpyArray = x.made_by.op.value.array
        return element
    return None
