"""reduce: elements along dims made one by any function of two."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from shardwise import tree
from shardwise.api.vmap import vmap
from shardwise.compiler.arrays.operands import as_operand, canonical_axes
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.bitwise import And, Or, Xor
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceXor
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import Reshape, permuted
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.trace.build import build
from shardwise.lax.shape import constrain_sharding

_REDUCTIONS: dict[type[Any], type[Reduce]] = {
    Add: Sum,
    Mul: ReduceProd,
    Max: ReduceMax,
    Min: ReduceMin,
    And: ReduceAnd,
    Or: ReduceOr,
    Xor: ReduceXor,
}


def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[[Any, Any], Any],
    dimensions: Sequence[int],
    out_sharding: Any = None,
) -> Any:
    """The elements of each array of a tree along `dimensions`, and its `init_values`, made one by `computation`.

    That is a function of two trees of scalars, which may be applied in any order: it must not matter.

    >>> lax.reduce(jnp.arange(5), 1, lambda x, y: x + y, (0,))
    Array(11, dtype=int32)
    """
    leaves, structure = tree.flatten(operands)
    arrays = [as_operand(leaf, "reduce") for leaf in leaves]
    starts = [as_operand(leaf, "reduce") for leaf in tree.leaves(init_values)]
    if tree.structure(init_values) != structure:
        raise ValueError(f"reduce: init_values must have the structure of the operands, {structure}")
    if not arrays or len({x.type.shape for x in arrays}) != 1:
        raise TypeError(f"reduce: needs arrays of one shape, not {', '.join(str(x.type) for x in arrays) or 'none'}")
    for x, start in zip(arrays, starts, strict=True):
        if start.type.shape or start.type.dtype != x.type.dtype:
            raise TypeError(f"reduce: the init value of {x.type} must be a scalar of its dtype, not {start.type}")
    dims = canonical_axes("reduce", tuple(dimensions), arrays[0].type)
    pair = _Pair(structure, computation, arrays)
    found = pair.known(arrays, dims) or pair.halved(arrays, dims)
    shape = arrays[0].type.without(dims).shape
    first = [Broadcast(shape, ())(start) if shape else start for start in starts]
    totals = first if found is None else pair(first, found)
    return structure.unflatten([constrain_sharding(total, out_sharding) for total in totals])


class _Pair:
    """The user's function of two trees, on lists of arrays, element by element."""

    def __init__(self, structure: tree.Structure, computation: Callable[[Any, Any], Any], arrays: Sequence[Any]):
        self.structure, self.computation = structure, computation
        self.scalars = [x.type.with_shape(()) for x in arrays]

    def __call__(self, xs: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
        shape = xs[0].type.shape
        apply = vmap(self.of_scalars) if shape else self.of_scalars
        rows = ([Reshape((x.type.size,))(x) if shape else x for x in side] for side in (xs, ys))
        return [Reshape(shape)(x) if shape else x for x in apply(*rows)]

    def of_scalars(self, xs: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
        found = self.computation(self.structure.unflatten(list(xs)), self.structure.unflatten(list(ys)))
        leaves = [as_operand(leaf, "reduce") for leaf in tree.leaves(found)]
        for x, wanted in zip(leaves, self.scalars, strict=True):
            if (x.type.shape, x.type.dtype) != ((), wanted.dtype):
                raise TypeError(f"reduce: computation must return {wanted}, as it gets, not {x.type}")
        return leaves

    def known(self, arrays: Sequence[Any], dims: tuple[int, ...]) -> list[Any] | None:
        """By an op that does it, where the function is one op of its two arguments."""
        if len(arrays) > 1:
            return None
        program, captured = build(lambda x, y: self.of_scalars([x], [y]), self.scalars * 2, "computation")
        if len(program.equations) != 1 or captured or program.outputs != tuple(program.equations[0].outputs):
            return None
        (equation,) = program.equations
        op = _REDUCTIONS.get(type(equation.op))
        if op is None or sorted(map(program.inputs.index, equation.inputs)) != [0, 1]:
            return None
        return [op(dims)(arrays[0])]

    def halved(self, arrays: Sequence[Any], dims: tuple[int, ...]) -> list[Any] | None:
        """One half with the other, again and again; None of no elements."""
        kept = tuple(dim for dim in range(arrays[0].type.ndim) if dim not in dims)
        shape = arrays[0].type.shape
        count = math.prod(shape[dim] for dim in dims)
        rest = tuple(shape[dim] for dim in kept)
        rows = [Reshape((count, *rest))(permuted(x, (*dims, *kept))) for x in arrays]
        while count > 1:
            half = count // 2
            joined = self([slice_along(x, 0, 0, half) for x in rows], [slice_along(x, 0, half, 2 * half) for x in rows])
            if count % 2:
                joined = [
                    Concatenate(0)(x, slice_along(row, 0, count - 1, count))
                    for x, row in zip(joined, rows, strict=True)
                ]
            rows, count = joined, half + count % 2
        return [Reshape(rest)(x) for x in rows] if count else None
