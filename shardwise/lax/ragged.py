"""Ragged (grouped) matrix products: one dim is divided into groups whose sizes are computed by the program.

Each group's rows are masked out of the operand, and all groups are computed by one dot product. So shapes stay static,
and shardings of the other dims are preserved.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.compiler.arrays.exact_operands import needs_out_sharding
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.dtypes import DType, is_integer
from shardwise.compiler.ops.contract.dot import Dot, Pair
from shardwise.compiler.ops.elementwise.arithmetic import Sub
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import permute
from shardwise.compiler.reduction import SUM
from shardwise.lax.dot_products import DotDimensionNumbers, mixed_dtype_dot
from shardwise.lax.precision import PrecisionLike, precisions
from shardwise.typing import ArrayLike, DTypeLike, OutSharding


@final
@dataclass(frozen=True)
class RaggedDotDimensionNumbers:
    """The roles of the dims of a ragged dot product.

    `dot_dimension_numbers` are those of `dot_general`; `lhs_ragged_dimensions` is the dim of lhs that is divided into
    groups; `rhs_group_dimensions` is the dim of rhs that indexes the groups, or is empty.
    """

    dot_dimension_numbers: DotDimensionNumbers
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]


_RAGGED_ROWS = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Multiply groups of rows of a matrix by one matrix per group.

    Each row is multiplied by all matrices, with zeros elsewhere. On NVIDIA GPUs `kernels.grouped_dot` multiplies it by
    its own matrix only.

    Args:
        lhs: a matrix [m, k].
        rhs: one matrix per group, [g, k, n].
        group_sizes: the number of rows of each group, integers [g].
        precision: a `Precision` for both operands or a pair of them, or a name such as "highest". None means the
            default of the configuration.
        preferred_element_type: the dtype of the result. Sums are accumulated in it if it is wider. None means the dtype
            of the product, to which both operands are promoted.
        group_offset: must be None.
        out_sharding: the sharding to pin the result to.

    Returns:
        A matrix [m, n]. Rows after the last group are zero.

    Raises:
        TypeError: if shapes or dtypes do not agree, or `group_sizes` does not hold integers.
        ValueError: if `precision` is unknown.
        NotImplementedError: if `group_offset` is given, or `precision` is a `DotAlgorithm` without an equivalent
            `Precision`.
        ShardingError: if `out_sharding` does not fit the shape of the result.

    Example:
        >>> lax.ragged_dot(jnp.ones((3, 2)), jnp.array([[[1.0], [2.0]], [[3.0], [4.0]]]), jnp.array([1, 2]))
        Array([[3.],
               [7.],
               [7.]], dtype=float32)
    """
    return ragged_dot_general(
        lhs, rhs, group_sizes, _RAGGED_ROWS, precision, preferred_element_type, group_offset, out_sharding
    )


def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Compute a dot product with a ragged dim: one dim of `lhs` is divided into groups.

    A ragged free dim: each group is multiplied by its own slice of `rhs` along the group dim. A ragged contracting dim:
    each group has its own product, along a new first dim of the result. A ragged batch dim: the groups have no effect.

    Args:
        lhs, rhs: arrays.
        group_sizes: integers. The last dim holds the group sizes. The dims before it are the batch dims, and the dims
            of the ragged dim's kind that precede it; or it has no other dims and is broadcast.
        ragged_dot_dimension_numbers: a `RaggedDotDimensionNumbers`.
        precision: a `Precision` for both operands or a pair of them, or a name such as "highest". None means the
            default of the configuration.
        preferred_element_type: the dtype of the result. Sums are accumulated in it if it is wider. None means the dtype
            of the product, to which both operands are promoted.
        group_offset: must be None.
        out_sharding: the sharding to pin the result to.

    Returns:
        The product.

    Raises:
        TypeError: if shapes, dtypes and dimension numbers do not agree, or `group_sizes` does not hold integers.
        ValueError: if `precision` is unknown.
        NotImplementedError: if `group_offset` is given, or `precision` is a `DotAlgorithm` without an equivalent
            `Precision`.
        ShardingError: if `out_sharding` does not fit the shape of the result.

    Example:
        >>> numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
        >>> lax.ragged_dot_general(jnp.ones((3, 1)), jnp.ones((3, 2)), jnp.array([1, 2]), numbers).shape
        (2, 1, 2)
    """
    name = "ragged_dot_general"
    if group_offset is not None:
        raise NotImplementedError(f"{name}: group_offset is not supported; it must be None")
    if out_sharding is None and needs_out_sharding(lhs, rhs, group_sizes):
        raise NotImplementedError(
            f"{name}: JAX infers no sharding of the result on a mesh with Explicit axes: pass `out_sharding=P(...)`. "
            "The setting jax_compatibility is 'exact'."
        )
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
    ragged_kind = next(dims for dims in (left, left_batch, free) if ragged[0] in dims)
    if len(groups) != (ragged_kind is free) or any(dim in (*right, *right_batch) for dim in groups):
        expected = "one free dim" if ragged_kind is free else "no dim"
        raise TypeError(f"{name}: rhs_group_dimensions must be {expected} of {y}, not {groups}")
    if not is_integer(sizes.dtype) or not sizes.ndim:
        raise TypeError(f"{name}: group_sizes must be an integer array of rank 1 or more, not {sizes}")
    before = [*(() if ragged_kind is left_batch else left_batch), *ragged_kind[: list(ragged_kind).index(ragged[0])]]
    outer = tuple(x.shape[dim] for dim in before)
    if sizes.ndim > 1 and sizes.shape[:-1] != outer:
        raise TypeError(f"{name}: group_sizes must have rank 1 or the dims {outer} before the last, not {sizes}")
    if ragged_kind is free and y.shape[groups[0]] != sizes.shape[-1]:
        raise TypeError(
            f"{name}: rhs {y} has {y.shape[groups[0]]} groups, but group_sizes {sizes} has {sizes.shape[-1]}"
        )
    dtype = None if preferred_element_type is None else requested_dtype(name, preferred_element_type)
    with decided_by(out_sharding):
        result = _ragged_dot(
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
    return constrain_sharding(result, out_sharding)


@compiled_function
def _ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    *,
    contract: Pair,
    batch: Pair,
    ragged: int,
    groups: tuple[int, ...],
    precision: tuple[str, str],
    dtype: DType | None,
) -> Any:
    x, y, sizes = as_operand(lhs), as_operand(rhs), as_operand(group_sizes)
    (left, right), (left_batch, right_batch) = contract, batch
    if ragged in left_batch:
        return mixed_dtype_dot(x, y, op=Dot(contract, batch, precision=precision), dtype=dtype)
    if groups:
        free = [dim for dim in range(x.type.ndim) if dim not in (*left, *left_batch)]
        before = (*left_batch, *free[: free.index(ragged)])
        op = Dot(
            ((*_shift_dims(left), 0), (*right, groups[0])), (_shift_dims(left_batch), right_batch), precision=precision
        )
        return mixed_dtype_dot(_mask_groups(x, sizes, ragged, before), y, op=op, dtype=dtype)
    position = left.index(ragged)
    x = _mask_groups(x, sizes, ragged, (*left_batch, *left[:position]))
    y = _mask_groups(y, sizes, right[position], (*right_batch, *right[:position]))
    pairs = (_shift_dims(left), _shift_dims(right)), ((0, *_shift_dims(left_batch)), (0, *_shift_dims(right_batch)))
    return mixed_dtype_dot(x, y, op=Dot(*pairs, precision=precision), dtype=dtype)


def _shift_dims(dims: Sequence[int]) -> tuple[int, ...]:
    """Shift dims by one, for a new first dim."""
    return tuple(dim + 1 for dim in dims)


def _mask_groups(x: Array, sizes: Array, dim: int, before: tuple[int, ...]) -> Any:
    """Return `x` once per group, along a new first dim, with zeros outside of the group's part of `dim`.

    The dims of `sizes` before the last are the dims `before` of `x`, if there are any.
    """
    count = sizes.type.shape[-1]
    ends = Cumulative(sizes.type.ndim - 1, SUM)(sizes)
    shape = (count, *x.type.shape)
    size_dims = (*_shift_dims(before[: sizes.type.ndim - 1]), 0)  # the dims of the result that `sizes` has
    order = tuple(sorted(range(len(size_dims)), key=size_dims.__getitem__))
    start, end = (
        Broadcast(shape, tuple(sorted(size_dims)))(permute(bound, order)) for bound in (Sub()(ends, sizes), ends)
    )
    index = Iota(shape, dim + 1, sizes.type.dtype)()
    mask = And()(Compare("LE")(start, index), Compare("LT")(index, end))
    repeated = Broadcast(shape, tuple(range(1, len(shape))))(x)
    return Select()(mask, repeated, zeros_like(repeated))
