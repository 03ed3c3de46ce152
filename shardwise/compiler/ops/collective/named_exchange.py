"""Collectives over named axes that move values between members; see `named` for members.

named_all_gather       each member receives the values of all members, stacked along a new dim
named_reduce_scatter   its transpose: each member receives its own slice of the sum over all members
named_all_to_all       each member sends slice k to member k, and stacks the received slices
named_permute          each member sends its value to another member
"""

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, LocalContext, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather, AllToAll, Groups, PPermute, ReduceScatter
from shardwise.compiler.ops.collective.named import (
    Named,
    PVary,
    flat_axis_index,
    merge_dims,
    merge_groups,
    mesh_axes_of,
    split_dim,
    split_groups,
    sum_of_copies,
    take_slices,
    with_sums,
    without_sums,
)
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, move_dim
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.mesh import AbstractMesh


@record
class NamedExchangeOp(Named):
    """The base class: values move between members along `axes`, of these `sizes`. The op is linear in its operand."""

    axes: tuple[Any, ...]
    sizes: tuple[int, ...]

    @property
    def groups(self) -> Groups | None:
        return None

    @property
    def axis_names(self) -> frozenset[Any]:
        return frozenset(self.axes)

    @property
    def count(self) -> int:
        """The number of members, or of members of a group."""
        return len(self.groups[0]) if self.groups else math.prod(self.sizes)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        if axis.name not in self.axes:
            return self.with_leading_dim()(batch_dim_at(x, dim, 0, axis.size)), 0
        if len(self.axes) == 1:
            return self.vmap_all_members(x, dim)
        return self.vmap_one_axis(axis, batch_dim_at(x, dim, 0, axis.size), self.axes.index(axis.name))

    def vmap_all_members(self, x: Operand, dim: int | None) -> tuple[Any, int | None]:
        """Compute the op if `dim` of `x` is the dim of all members. With None, all members have the value `x`.

        Returns:
            The result, and its dim of members; None if all members have the same result.
        """
        if not self.groups:
            return self.along_dim(x, dim)
        fields: dict[str, Any] = {"axes": self.axes[:1], "sizes": (self.count,), "groups": None}
        in_group = replace(self, **fields).with_leading_dim()
        result, member_dim = in_group.along_dim(split_groups(x, dim, self.groups), 1)
        return merge_groups(result, member_dim, self.groups), 0

    def vmap_one_axis(self, axis: BatchAxis, x: Operand, place: int) -> tuple[Any, int | None]:
        """Compute the op if dim 0 of `x` is the dim of members along one of several axes, `axes[place]`.

        By default each member gathers the values of all members, computes the results of all, and selects its own.
        """
        axes, sizes = _without(self.axes, place), _without(self.sizes, place)
        before, after = math.prod(self.sizes[:place]), math.prod(self.sizes[place + 1 :])
        shape = x.type.shape[1:]
        gathered = NamedAllGather(axes, sizes, 0)(x)
        gathered = move_dim(Reshape((before, after, axis.size, *shape))(gathered), 2, 1)
        results, dim = self.vmap_all_members(Reshape((math.prod(self.sizes), *shape))(gathered), 0)
        results = batch_dim_at(results, dim, 0, math.prod(self.sizes))
        shape = results.type.shape[1:]
        by_axis = move_dim(Reshape((before, axis.size, after, *shape))(results), 1, 0)
        by_axis = Reshape((axis.size, before * after, *shape))(by_axis)
        return _slice_at(by_axis, 1, flat_axis_index(axes, sizes)), 0

    def along_dim(self, x: Operand, dim: int | None) -> tuple[Any, int | None]:
        """Compute the op without groups if `dim` of `x` is the dim of all members; see `vmap_all_members`."""
        raise self.missing_rule("along_dim")

    def with_leading_dim(self) -> "NamedExchangeOp":
        """Return the op for operands with one more leading dim."""
        raise self.missing_rule("with_leading_dim")


@final
@record
class NamedAllGather(NamedExchangeOp):
    """The values of all members, stacked along a new dim `dim`.

    With `invariant`, the result is replicated in its type, and the cotangent of a member is its slice. `reduced` is the
    mesh if the result is reduced; its cotangent is then unreduced, and scattered.
    """

    name = "named_all_gather"
    casts_sums = True
    dim: int
    groups: Groups | None = field(default=None, repr=False)
    invariant: bool = field(default=False, repr=False)
    reduced: AbstractMesh | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.dim <= x.ndim:
            raise TypeError(f"named_all_gather: cannot insert a dim {self.dim} into {x}")
        return x.with_shape((*x.shape[: self.dim], self.count, *x.shape[self.dim :]))

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis not in self.axes) if self.invariant or self.reduced else axes

    def result_sums(self, result: ArrayType) -> ArrayType:
        return with_sums(result, self.reduced, reduced=self.axes) if self.reduced else result

    def factors(self, x: ArrayType) -> FactorRule:  # type: ignore[override]
        return _member_dim_rule(x, (), (self.dim,), self.count)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        gather = AllGather(self.dim, mesh_axes_of(context, self.axes), self.count, self.groups)
        return gather(_insert_dim(x, self.dim))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        if self.invariant:
            number = flat_axis_index(self.axes, self.sizes, self.axis_names)
            return (_slice_at(PVary(self.axes)(cotangent), self.dim, number),)
        unreduced = self.reduced is not None
        return (NamedReduceScatter(self.axes, self.sizes, self.dim, self.groups, unreduced)(cotangent),)

    def along_dim(self, x: Operand, dim: int | None) -> tuple[Any, int | None]:
        return batch_dim_at(x, dim, self.dim, self.count), None

    def vmap_one_axis(self, axis: BatchAxis, x: Operand, place: int) -> tuple[Any, int | None]:
        if self.groups:
            return super().vmap_one_axis(axis, x, place)
        rest = NamedAllGather(_without(self.axes, place), _without(self.sizes, place), self.dim + 1)
        gathered = split_dim(rest(x), self.dim + 1, rest.sizes)
        return merge_dims(move_dim(gathered, 0, self.dim + place), self.dim, len(self.axes)), None

    def with_leading_dim(self) -> NamedExchangeOp:
        return replace(self, dim=self.dim + 1)


@final
@record
class NamedReduceScatter(NamedExchangeOp):
    """Member k receives slice k, along `dim`, of the sum over all members. The result lacks `dim`.

    With `unreduced`, the operand's type is unreduced and the result's type is varying. The cotangent is then reduced.
    """

    name = "named_reduce_scatter"
    casts_sums = True
    dim: int
    groups: Groups | None = field(default=None, repr=False)
    unreduced: bool = field(default=False, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.dim < x.ndim or x.shape[self.dim] != self.count:
            raise TypeError(f"named_reduce_scatter: {x} needs {self.count} slices along dim {self.dim}, one per member")
        return x.without((self.dim,))

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return (*axes, *self.axes) if self.unreduced else axes

    def result_sums(self, result: ArrayType) -> ArrayType:
        if not self.unreduced:
            return result
        return without_sums(result, self.axes).with_varying((*result.varying, *self.axes))

    def factors(self, x: ArrayType) -> FactorRule:  # type: ignore[override]
        return _member_dim_rule(x, (self.dim,), (), self.count)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        scatter = ReduceScatter(self.dim, mesh_axes_of(context, self.axes), self.count, SUM, self.groups)
        return _drop_dim(scatter(x), self.dim)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        explicit = operands[0].type.explicit if self.unreduced else None
        mesh = explicit.mesh.abstract if explicit else None
        return (NamedAllGather(self.axes, self.sizes, self.dim, self.groups, reduced=mesh)(cotangent),)

    def along_dim(self, x: Operand, dim: int | None) -> tuple[Any, int | None]:
        return sum_of_copies(x, self.count) if dim is None else Sum((dim,))(x), self.dim

    def vmap_one_axis(self, axis: BatchAxis, x: Operand, place: int) -> tuple[Any, int | None]:
        if self.groups:
            return super().vmap_one_axis(axis, x, place)
        own = move_dim(split_dim(Sum((0,))(x), self.dim, self.sizes), self.dim + place, 0)
        rest = NamedReduceScatter(_without(self.axes, place), _without(self.sizes, place), self.dim + 1)
        return rest(merge_dims(own, self.dim + 1, len(rest.axes))), 0

    def with_leading_dim(self) -> NamedExchangeOp:
        return replace(self, dim=self.dim + 1)


@final
@record
class NamedAllToAll(NamedExchangeOp):
    """Member k receives slice k along `split` from each member, stacked along a new dim `stack`."""

    name = "named_all_to_all"
    split: int
    stack: int
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.split < x.ndim or x.shape[self.split] != self.count:
            raise TypeError(f"named_all_to_all: {x} needs {self.count} slices along dim {self.split}, one per member")
        rest = x.without((self.split,)).shape
        if not 0 <= self.stack <= len(rest):
            raise TypeError(f"named_all_to_all: cannot stack slices of {x} along dim {self.stack}")
        return x.with_shape((*rest[: self.stack], self.count, *rest[self.stack :]))

    def factors(self, x: ArrayType) -> FactorRule:  # type: ignore[override]
        return _member_dim_rule(x, (self.split,), (self.stack,), self.count)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        # A new dim of size 1 is inserted before the all-to-all. The split dim has size 1 after it, and is dropped.
        join = self.stack if self.stack <= self.split else self.stack + 1
        split = self.split + 1 if join <= self.split else self.split
        exchange = AllToAll(split, join, mesh_axes_of(context, self.axes), self.count, self.groups)
        return _drop_dim(exchange(_insert_dim(x, join)), split)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (replace(self, split=self.stack, stack=self.split)(cotangent),)

    def along_dim(self, x: Operand, dim: int | None) -> tuple[Any, int | None]:
        # Dim 0 indexes senders and `split` indexes receivers: move receivers to dim 0 and senders to `stack`.
        receivers_first = move_dim(batch_dim_at(x, dim, 0, self.count), self.split + 1, 0)
        return move_dim(receivers_first, 1, self.stack + 1), 0

    def vmap_one_axis(self, axis: BatchAxis, x: Operand, place: int) -> tuple[Any, int | None]:
        if self.groups:
            return super().vmap_one_axis(axis, x, place)
        # Dim 0 indexes senders along this axis; receivers along it are indexed by a part of `split`.
        own = move_dim(split_dim(x, self.split + 1, self.sizes), self.split + 1 + place, 0)
        rest = NamedAllToAll(_without(self.axes, place), _without(self.sizes, place), self.split + 2, self.stack + 2)
        received = rest(merge_dims(own, self.split + 2, len(self.axes) - 1))
        senders = move_dim(split_dim(received, self.stack + 2, rest.sizes), 1, self.stack + 1 + place)
        return merge_dims(senders, self.stack + 1, len(self.axes)), 0

    def with_leading_dim(self) -> NamedExchangeOp:
        return replace(self, split=self.split + 1, stack=self.stack + 1)


@final
@record
class NamedPermute(NamedExchangeOp):
    """For each pair (a, b), member b receives the value of member a. A member that receives none has zeros."""

    name = "named_permute"
    pairs: tuple[tuple[int, int], ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return PPermute(mesh_axes_of(context, self.axes), self.pairs)(*operands)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (replace(self, pairs=tuple((b, a) for a, b in self.pairs))(cotangent),)

    def along_dim(self, x: Operand, dim: int | None) -> tuple[Any, int | None]:
        if dim is None:
            if len(self.pairs) == self.count:
                return x, None
            x, dim = batch_dim_at(x, None, 0, self.count), 0
        sender = {b: a for a, b in self.pairs}
        return take_slices(x, dim, [sender.get(member) for member in range(self.count)]), dim

    def with_leading_dim(self) -> NamedExchangeOp:
        return self


def _member_dim_rule(x: ArrayType, removed: tuple[int, ...], inserted: tuple[int, ...], size: int) -> FactorRule:
    """Return a factor rule in which dims with one element per member are removed from `x` and inserted.

    These dims need replication; all others pass through.
    """
    dims = tuple((dim,) for dim in range(x.ndim))
    result: Dims = tuple(factors for dim, factors in enumerate(dims) if dim not in removed)
    for dim in inserted:
        result = (*result[:dim], (x.ndim,), *result[dim:])
    sizes = (*x.shape, *[size] * len(inserted))
    return FactorRule((dims,), (result,), sizes, need_replication=frozenset((*removed, *[x.ndim] * len(inserted))))


def _without(items: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    """Return the items except the one at `place`."""
    return items[:place] + items[place + 1 :]


def _slice_at(x: Operand, dim: int, index: Operand) -> Any:
    """Return the slice of `x` at a traced index along `dim`, without `dim`."""
    zero = full((), 0, np.int32)
    sizes = tuple(1 if d == dim else size for d, size in enumerate(x.type.shape))
    return _drop_dim(DynamicSlice(sizes)(x, *(index if d == dim else zero for d in range(x.type.ndim))), dim)


def _insert_dim(x: Operand, dim: int) -> Any:
    """Insert a dim of size 1."""
    return Reshape((*x.type.shape[:dim], 1, *x.type.shape[dim:]))(x)


def _drop_dim(x: Operand, dim: int) -> Any:
    """Remove a dim of size 1."""
    return Reshape(x.type.without((dim,)).shape)(x)
