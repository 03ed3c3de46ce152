"""Calls, branches and loops. Calls and composites are inlined."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.shape.constants import full
from shardwise.stablehlo.loops import apply_while
from shardwise.stablehlo.operation import Operation


def _call(op: Operation, *operands: Array) -> list[Array]:
    return op.function(op.text("callee"))(*operands)


def _composite(op: Operation, *operands: Array) -> list[Array]:
    return op.function(op.text("decomposition"))(*operands)


def _case(op: Operation, index: Array) -> Any:
    branches = [op.region(number) for number in range(len(op.raw.regions))]
    last = full((), len(branches) - 1, np.dtype(np.int32))
    # An index that is out of bounds selects the last branch.
    inside = lax.select(lax.lt(index, full((), 0, np.dtype(np.int32))), last, index)
    return lax.switch(inside, branches)


def _if(op: Operation, condition: Array) -> Any:
    return lax.cond(condition, op.region(0), op.region(1))


def _while(op: Operation, *operands: Array) -> list[Array]:
    return apply_while(op.region(0), op.region(1), operands)


def _optimization_barrier(op: Operation, *operands: Array) -> Any:
    return lax.optimization_barrier(operands)


OPS: dict[str, Callable[..., Any]] = {
    "func.call": _call,
    "stablehlo.case": _case,
    "stablehlo.composite": _composite,
    "stablehlo.if": _if,
    "stablehlo.optimization_barrier": _optimization_barrier,
    "stablehlo.while": _while,
}
