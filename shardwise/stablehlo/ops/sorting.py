"""Sorts, by the comparators that can be expressed as sort keys."""

from collections.abc import Callable
from typing import Any

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.comparators import Comparator
from shardwise.stablehlo.operation import Operation
from shardwise.stablehlo.ops.elementwise import total_order_key


def _sort(op: Operation, *operands: Array) -> Any:
    keys = Comparator(op).keys()
    if len({key.descending for key in keys}) > 1:
        raise UnsupportedError("the comparator must compare all operands in the same direction")
    sort = Sort(op.integer("dimension"), len(keys), keys[0].descending)
    if [key.operand for key in keys] == list(range(len(keys))) and not any(key.is_total for key in keys):
        return list(sort(*operands))
    columns = [total_order_key(operands[key.operand]) if key.is_total else operands[key.operand] for key in keys]
    return list(sort(*columns, *operands)[len(keys) :])


OPS: dict[str, Callable[..., Any]] = {"stablehlo.sort": _sort}
