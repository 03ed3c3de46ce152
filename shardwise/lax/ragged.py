"""Products of which a dim is cut into groups of sizes that the program computes.

Each group's rows are taken with zeros for the others, and all groups are one product: sizes stay static, and what lies
on many devices stays there.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ops.contract.dot import Dot, Pair
from shardwise.compiler.ops.elementwise.arithmetic import Sub
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import permuted
from shardwise.compiler.reduction import SUM
from shardwise.lax.precision import precisions
from shardwise.lax.product import DotDimensionNumbers, product
from shardwise.lax.shape import constrain_sharding


@final
@dataclass(frozen=True)
class RaggedDotDimensionNumbers:
    """The dims of a product, as `dot_general` takes them; which dim of lhs is cut into groups; and which dim of rhs
    counts them, where there is one.
    """

    dot_dimension_numbers: DotDimensionNumbers
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]


_ROWS = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The rows of a matrix `lhs` [m,k], in groups of `group_sizes` [g], each times its own matrix of `rhs` [g,k,n].

    Rows past the last group give zeros.

    >>> lax.ragged_dot(jnp.ones((3, 2)), jnp.array([[[1.0], [2.0]], [[3.0], [4.0]]]), jnp.array([1, 2]))
    Array([[3.],
           [7.],
           [7.]], dtype=float32)
    """
    return ragged_dot_general(
        lhs, rhs, group_sizes, _ROWS, precision, preferred_element_type, group_offset, out_sharding
    )


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Any:
    """A product with groups along one dim of `lhs`, by what that dim is in the product:

    another dim of lhs: each group is multiplied by its own part along the group dim of `rhs`;
    a contracting dim: there is a product for each group, along a new first dim of the result;
    a batch dim: groups make no difference.

    `group_sizes` has a last dim of groups, and before it the batch dims and those of the same kind outside of the
    ragged dim; or it lacks all of these, and is repeated.

    >>> numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    >>> lax.ragged_dot_general(jnp.ones((3, 1)), jnp.ones((3, 2)), jnp.array([1, 2]), numbers).shape
    (2, 1, 2)
    """
    name = "ragged_dot_general"
    if group_offset is not None:
        raise NotImplementedError(f"{name}: group_offset is not here yet: leave it out")
    x, y, sizes = (type_of(z, name) for z in (lhs, rhs, group_sizes))
    (left, right), (left_batch, right_batch) = (
        tuple(tuple(map(operator.index, dims)) for dims in pair)
        for pair in ragged_dot_dimension_numbers.dot_dimension_numbers
    )
    ragged = tuple(map(operator.index, ragged_dot_dimension_numbers.lhs_ragged_dimensions))
    groups = tuple(map(operator.index, ragged_dot_dimension_numbers.rhs_group_dimensions))
    if len(ragged) != 1 or not 0 <= ragged[0] < x.ndim:
        raise TypeError(f"{name}: lhs_ragged_dimensions must be one dim of {x}, not {ragged}")
    free = [dim for dim in range(x.ndim) if dim not in (*left, *left_batch)]
    kind = next(dims for dims in (left, left_batch, free) if ragged[0] in dims)
    if len(groups) != (kind is free) or any(dim in (*right, *right_batch) for dim in groups):
        raise TypeError(
            f"{name}: rhs_group_dimensions must be {'one free dim' if kind is free else 'none'} of {y}, not {groups}"
        )
    if not is_integer(sizes.dtype) or not sizes.ndim:
        raise TypeError(f"{name}: group_sizes must be integers with a dim of groups, not {sizes}")
    before = [*(() if kind is left_batch else left_batch), *kind[: list(kind).index(ragged[0])]]
    outside = tuple(x.shape[dim] for dim in before)
    if sizes.ndim > 1 and sizes.shape[:-1] != outside:
        raise TypeError(f"{name}: group_sizes {sizes} must have dims {outside} before the last, or none")
    if kind is free and y.shape[groups[0]] != sizes.shape[-1]:
        raise TypeError(f"{name}: {y} has {y.shape[groups[0]]} groups, and group_sizes {sizes.shape[-1]}")
    dtype = None if preferred_element_type is None else canonical_dtype(preferred_element_type)
    found = _grouped(
        lhs,
        rhs,
        group_sizes,
        contract=(left, right),
        batch=(left_batch, right_batch),
        ragged=ragged[0],
        groups=groups,
        precision=precisions(name, precision),
        dtype=dtype,
    )
    return constrain_sharding(found, out_sharding)


@compiled_function
def _grouped(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    *,
    contract: Pair,
    batch: Pair,
    ragged: int,
    groups: tuple[int, ...],
    precision: tuple[str, str],
    dtype: Any,
) -> Any:
    x, y, sizes = as_operand(lhs), as_operand(rhs), as_operand(group_sizes)
    (left, right), (left_batch, right_batch) = contract, batch
    if ragged in left_batch:
        return product(x, y, op=Dot(contract, batch, precision=precision), dtype=dtype)
    if groups:
        free = [dim for dim in range(x.type.ndim) if dim not in (*left, *left_batch)]
        before = (*left_batch, *free[: free.index(ragged)])
        op = Dot(((*_after(left), 0), (*right, groups[0])), (_after(left_batch), right_batch), precision=precision)
        return product(_apart(x, sizes, ragged, before), y, op=op, dtype=dtype)
    number = left.index(ragged)
    x = _apart(x, sizes, ragged, (*left_batch, *left[:number]))
    y = _apart(y, sizes, right[number], (*right_batch, *right[:number]))
    pairs = (_after(left), _after(right)), ((0, *_after(left_batch)), (0, *_after(right_batch)))
    return product(x, y, op=Dot(*pairs, precision=precision), dtype=dtype)


def _after(dims: Sequence[int]) -> tuple[int, ...]:
    """The same dims, once there is one more before all."""
    return tuple(dim + 1 for dim in dims)


def _apart(x: Any, sizes: Any, dim: int, before: tuple[int, ...]) -> Any:
    """`x` for each group, along a new first dim: zeros outside of the group's part of `dim`.

    The dims of `sizes` but the last, where there are others, are the dims `before` of `x`.
    """
    count = sizes.type.shape[-1]
    ends = Cumulative(sizes.type.ndim - 1, SUM)(sizes)
    shape = (count, *x.type.shape)
    where = (*_after(before[: sizes.type.ndim - 1]), 0)
    order = tuple(sorted(range(len(where)), key=where.__getitem__))
    first, last = (
        Broadcast(shape, tuple(sorted(where)))(permuted(bound, order)) for bound in (Sub()(ends, sizes), ends)
    )
    at = Iota(shape, dim + 1, sizes.type.dtype)()
    inside = And()(Compare("LE")(first, at), Compare("LT")(at, last))
    spread = Broadcast(shape, tuple(range(1, len(shape))))(x)
    return Select()(inside, spread, zeros_like(spread))
