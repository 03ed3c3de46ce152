"""`reduce`: reductions by any binary function."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from shardwise import tree
from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.api.transformations.vmap import vmap
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, canonical_axes
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.ir.dispatch import resolve_shardings
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.bitwise import And, Or, Xor
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceXor
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.trace.build import build
from shardwise.typing import ArrayLike

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
    """Reduce arrays along dims by any binary function.

    A function that is one op with a reduction of its own, such as `lax.add`, uses that reduction. Other functions are
    applied to halves of the array, in O(log n) rounds.

    Args:
        operands: a pytree of arrays of the same shape.
        init_values: a pytree of the same structure, of scalars of the arrays' dtypes.
        computation: an associative and commutative function of two pytrees of scalars. It may be applied in any order.
        dimensions: the dims to reduce.
        out_sharding: the sharding to pin the result to.

    Returns:
        A pytree of the structure of `operands`, of arrays without `dimensions`.

    Raises:
        ValueError: if the structures differ, or a dim does not exist or repeats.
        TypeError: if the shapes differ, an initial value has another dtype or is not a scalar, or `computation` returns
            other types than it is given.
        ShardingError: if `out_sharding` does not fit the shape of the result.

    Example:
        >>> lax.reduce(jnp.arange(5), 1, lambda x, y: x + y, (0,))
        Array(11, dtype=int32)
    """
    leaves, structure = tree.flatten(operands)
    arrays = [as_operand(leaf, "reduce") for leaf in leaves]
    if tree.structure(init_values) != structure:
        raise ValueError(f"reduce: init_values must have the structure of the operands, {structure}")
    init_scalars = [init_scalar("reduce", *pair) for pair in zip(tree.leaves(init_values), arrays, strict=True)]
    if not arrays or len({x.type.shape for x in arrays}) != 1:
        raise TypeError(
            "reduce: operands must be one or more arrays of the same shape, "
            f"not {', '.join(str(x.type) for x in arrays) or 'none'}"
        )
    dims = canonical_axes("reduce", tuple(dimensions), arrays[0].type)
    combine = Computation("reduce", structure, computation, arrays)
    with decided_by(out_sharding):
        reduced = combine.reduce_by_op(arrays, dims) or combine.reduce_by_halving(arrays, dims)
        shape = arrays[0].type.without(dims).shape
        inits = [Broadcast(shape, ())(init) if shape else init for init in init_scalars]
        totals = inits if reduced is None else combine(inits, reduced)
    return structure.unflatten([constrain_sharding(total, out_sharding) for total in totals])


def init_scalar(name: str, init: ArrayLike, x: Array) -> Array:
    """Return an initial value as an array; a Python number gets the dtype of `x` if type promotion gives it too."""
    scalar = as_operand(init, name)
    if scalar.type.weak and promote_dtypes(name, [scalar.type, x.type.strong()])[0] == x.type.dtype:
        scalar = Convert(x.type.dtype)(scalar)
    if scalar.type.shape or scalar.type.dtype != x.type.dtype:
        raise TypeError(f"{name}: the init value of {x.type} must be a scalar of its dtype, not {scalar.type}")
    return scalar


class Computation:
    """The user's binary function on pytrees of scalars, as a function of lists of arrays."""

    def __init__(
        self, name: str, structure: tree.Structure, computation: Callable[[Any, Any], Any], arrays: Sequence[Any]
    ):
        self.name, self.structure, self.computation = name, structure, computation
        self.scalar_types = [x.type.with_shape(()) for x in arrays]

    def __call__(self, xs: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
        shape = xs[0].type.shape
        apply = vmap(self.on_scalars) if shape else self.on_scalars
        flat = ([Reshape((x.type.size,))(x) if shape else x for x in side] for side in (xs, ys))
        with resolve_shardings(True):  # the initial values are replicated
            return [Reshape(shape)(x) if shape else x for x in apply(*flat)]

    def on_scalars(self, xs: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
        combined = self.computation(self.structure.unflatten(list(xs)), self.structure.unflatten(list(ys)))
        out_leaves, out_structure = tree.flatten(combined)
        if out_structure != self.structure:
            raise ValueError(
                f"{self.name}: computation must return the structure of its arguments, {self.structure}, not "
                f"{out_structure}"
            )
        leaves = [as_operand(leaf, self.name) for leaf in out_leaves]
        for x, expected in zip(leaves, self.scalar_types, strict=True):
            if (x.type.shape, x.type.dtype) != ((), expected.dtype):
                raise TypeError(
                    f"{self.name}: computation must return {expected}, the type of its arguments, not {x.type}"
                )
        return leaves

    def reduce_by_op(self, arrays: Sequence[Any], dims: tuple[int, ...]) -> list[Any] | None:
        """Reduce by a reduction op, if the function is a single binary op that has one; else return None."""
        if len(arrays) > 1:
            return None
        program, captured = build(lambda x, y: self.on_scalars([x], [y]), self.scalar_types * 2, "computation")
        if len(program.equations) != 1 or captured or program.outputs != tuple(program.equations[0].outputs):
            return None
        (equation,) = program.equations
        op = _REDUCTIONS.get(type(equation.op))
        if op is None or sorted(map(program.inputs.index, equation.inputs)) != [0, 1]:
            return None
        return [op(dims)(arrays[0])]

    def reduce_by_halving(self, arrays: Sequence[Any], dims: tuple[int, ...]) -> list[Any] | None:
        """Combine the first and second half of the elements until one is left. Return None if there are no elements."""
        kept = tuple(dim for dim in range(arrays[0].type.ndim) if dim not in dims)
        shape = arrays[0].type.shape
        count = math.prod(shape[dim] for dim in dims)
        rest = tuple(shape[dim] for dim in kept)
        rows = [Reshape((count, *rest))(permute(x, (*dims, *kept))) for x in arrays]
        while count > 1:
            half = count // 2
            combined = self(
                [slice_along(x, 0, 0, half) for x in rows], [slice_along(x, 0, half, 2 * half) for x in rows]
            )
            if count % 2:
                combined = [
                    Concatenate(0)(x, slice_along(row, 0, count - 1, count))
                    for x, row in zip(combined, rows, strict=True)
                ]
            rows, count = combined, half + count % 2
        return [Reshape(rest)(x) for x in rows] if count else None
