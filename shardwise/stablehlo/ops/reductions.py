"""Reductions along dims."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceXor
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Tracer
from shardwise.stablehlo.monoids import constant_value, monoids
from shardwise.stablehlo.operation import Operation
from shardwise.stablehlo.ops import elementwise

_REDUCTIONS: dict[str, type[Reduce]] = {
    "add": Sum,
    "and": ReduceAnd,
    "maximum": ReduceMax,
    "minimum": ReduceMin,
    "multiply": ReduceProd,
    "or": ReduceOr,
    "xor": ReduceXor,
}
_BOOLEAN_REDUCTIONS = {**_REDUCTIONS, "add": ReduceOr, "maximum": ReduceOr, "minimum": ReduceAnd, "multiply": ReduceAnd}


def _reduce(op: Operation, *operands: Array) -> Any:
    count = len(operands) // 2
    arrays, inits, dims = operands[:count], operands[count:], op.integers("dimensions")
    names = monoids(op.regions[0])
    if names is not None:
        return [_by_op(op, *each, dims) for each in zip(names, arrays, inits, strict=True)]
    direction = _extremum_with_index(op, arrays, inits, dims)
    if direction is not None:
        x, index = arrays
        extremum, position = (ReduceMax, lax.argmax) if direction == "GT" else (ReduceMin, lax.argmin)
        return [extremum(dims)(x), position(x, dims[0], index.dtype)]
    region = op.region()
    return lax.reduce(arrays, inits, lambda xs, ys: tuple(region(*xs, *ys)), dims)


def _by_op(op: Operation, name: str, x: Array, init: Array, dims: tuple[int, ...]) -> Any:
    """Reduce an array by an op. A neutral initial value is left out."""
    reduction = (_BOOLEAN_REDUCTIONS if x.dtype == np.bool_ else _REDUCTIONS)[name](dims)
    reduced = reduction(x)
    if constant_value(init) == reduction.reduction.neutral_scalar(x.dtype):
        return reduced
    start = Broadcast(reduced.shape, ())(init) if reduced.shape else init
    return elementwise.OPS[f"stablehlo.{name}"](op, start, reduced)


def _extremum_with_index(
    op: Operation, arrays: Sequence[Array], inits: Sequence[Array], dims: tuple[int, ...]
) -> str | None:
    """Return GT or LT if a reduction computes the largest or smallest elements and their first indices; else None."""
    if len(arrays) != 2 or len(dims) != 1 or constant_value(inits[1]) != 0 or constant_value(inits[0]) is None:
        return None
    x, index = arrays
    definition = index.made_by.op if isinstance(index, Tracer) and index.made_by is not None else None
    if not isinstance(definition, Iota) or definition.dim != dims[0] or x.dtype.kind == "c":
        return None
    types = [array.type.with_shape(()) for array in (*arrays, *arrays)]
    program, captured = build(op.region(), types, "computation")
    for direction, extremum in (("GT", ReduceMax), ("LT", ReduceMin)):
        neutral = extremum(dims).reduction.neutral_scalar(x.dtype)
        expected, _ = build(lambda *args, d=direction: _first_extremum(d, *args), types, "computation")
        if not captured and program == expected and constant_value(inits[0]) == neutral:
            return direction
    return None


def _first_extremum(direction: str, x: Array, i: Array, y: Array, j: Array) -> list[Any]:
    """Choose between two elements and their indices, as modules of JAX do for `argmax` and `argmin`."""
    precedes = lax.gt if direction == "GT" else lax.lt
    chosen = lax.bitwise_or(precedes(x, y), lax.ne(x, x))
    is_first = lax.bitwise_and(lax.eq(x, y), lax.lt(i, j))
    return [lax.select(chosen, x, y), lax.select(lax.bitwise_or(chosen, is_first), i, j)]


OPS: dict[str, Callable[..., Any]] = {"stablehlo.reduce": _reduce}
