"""Values that move between the members along an axis that has a name; see `named` for whose members they are.

named_all_gather     each member gets the values of all, side by side along a new dim
named_reduce_scatter    the transpose of that: of the sum of all, each member gets its own slice
named_all_to_all   each member sends slice k to member k, and stacks what it is sent
named_permute    members send their value to one other
"""

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, LocalContext
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
)
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, move_dim
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import Dims, FactorRule


@record
class NamedExchangeOp(Named):
    """Values move between the members along `axes`, of these `sizes`; the op is linear in its operand."""

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
        """How many members there are, or how many of them are a group."""
        return len(self.groups[0]) if self.groups else math.prod(self.sizes)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        if axis.name not in self.axes:
            return self.under_a_dim()(batch_dim_at(x, dim, 0, axis.size)), 0
        if len(self.axes) == 1:
            return self.among_all(x, dim)
        return self.along_one(axis, batch_dim_at(x, dim, 0, axis.size), self.axes.index(axis.name))

    def among_all(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        """The result where all members lie along `dim` of `x` (None: all are `x`), and the dim of its members."""
        if not self.groups:
            return self.resolved(x, dim)
        one: dict[str, Any] = {"axes": self.axes[:1], "sizes": (self.count,), "groups": None}
        alone = replace(self, **one).under_a_dim()
        found, at = alone.resolved(split_groups(x, dim, self.groups), 1)
        return merge_groups(found, at, self.groups), 0

    def along_one(self, axis: BatchAxis, x: Any, place: int) -> tuple[Any, int | None]:
        """The result where members along one of several axes, the one in this place, lie along the first dim of `x`.

        Here: each member gets the values of all, works out the results of all, and takes its own.
        """
        axes, sizes = _but(self.axes, place), _but(self.sizes, place)
        before, after = math.prod(self.sizes[:place]), math.prod(self.sizes[place + 1 :])
        shape = x.type.shape[1:]
        everyone = NamedAllGather(axes, sizes, 0)(x)
        everyone = move_dim(Reshape((before, after, axis.size, *shape))(everyone), 2, 1)
        found, at = self.among_all(Reshape((math.prod(self.sizes), *shape))(everyone), 0)
        found = batch_dim_at(found, at, 0, math.prod(self.sizes))
        shape = found.type.shape[1:]
        mine = move_dim(Reshape((before, axis.size, after, *shape))(found), 1, 0)
        mine = Reshape((axis.size, before * after, *shape))(mine)
        return _own_slice(mine, 1, flat_axis_index(axes, sizes)), 0

    def resolved(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        """As `among_all`, without groups."""
        raise self.missing_rule("resolved")

    def under_a_dim(self) -> "NamedExchangeOp":
        """The same, for operands with one more dim in front."""
        raise self.missing_rule("under_a_dim")


@final
@record
class NamedAllGather(NamedExchangeOp):
    """The values of all members, side by side along a new dim `dim`. `invariant`: types know that they are one for all,
    and each member takes of their cotangent what is its own."""

    name = "named_all_gather"
    dim: int
    groups: Groups | None = field(default=None, repr=False)
    invariant: bool = field(default=False, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.dim <= x.ndim:
            raise TypeError(f"named_all_gather: {x} cannot get a new dim {self.dim}")
        return x.with_shape((*x.shape[: self.dim], self.count, *x.shape[self.dim :]))

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis not in self.axes) if self.invariant else axes

    def factors(self, x: ArrayType) -> FactorRule:  # type: ignore[override]
        return _with_whole(x, (), (self.dim,), self.count)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        gather = AllGather(self.dim, mesh_axes_of(context, self.axes), self.count, self.groups)
        return gather(_with_one(x, self.dim))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        if self.invariant:
            number = flat_axis_index(self.axes, self.sizes, self.axis_names)
            return (_own_slice(PVary(self.axes)(cotangent), self.dim, number),)
        return (NamedReduceScatter(self.axes, self.sizes, self.dim, self.groups)(cotangent),)

    def resolved(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        return batch_dim_at(x, dim, self.dim, self.count), None

    def along_one(self, axis: BatchAxis, x: Any, place: int) -> tuple[Any, int | None]:
        if self.groups:
            return super().along_one(axis, x, place)
        rest = NamedAllGather(_but(self.axes, place), _but(self.sizes, place), self.dim + 1)
        found = split_dim(rest(x), self.dim + 1, rest.sizes)
        return merge_dims(move_dim(found, 0, self.dim + place), self.dim, len(self.axes)), None

    def under_a_dim(self) -> NamedExchangeOp:
        return replace(self, dim=self.dim + 1)


@final
@record
class NamedReduceScatter(NamedExchangeOp):
    """Of the sum over all members, member k gets slice k along `dim`, which is gone."""

    name = "named_reduce_scatter"
    dim: int
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.dim < x.ndim or x.shape[self.dim] != self.count:
            raise TypeError(
                f"named_reduce_scatter: {x} does not have a slice for each of {self.count} along dim {self.dim}"
            )
        return x.without((self.dim,))

    def factors(self, x: ArrayType) -> FactorRule:  # type: ignore[override]
        return _with_whole(x, (self.dim,), (), self.count)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        scatter = ReduceScatter(self.dim, mesh_axes_of(context, self.axes), self.count, SUM, self.groups)
        return _without_one(scatter(x), self.dim)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (NamedAllGather(self.axes, self.sizes, self.dim, self.groups)(cotangent),)

    def resolved(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        return sum_of_copies(x, self.count) if dim is None else Sum((dim,))(x), self.dim

    def along_one(self, axis: BatchAxis, x: Any, place: int) -> tuple[Any, int | None]:
        if self.groups:
            return super().along_one(axis, x, place)
        own = move_dim(split_dim(Sum((0,))(x), self.dim, self.sizes), self.dim + place, 0)
        rest = NamedReduceScatter(_but(self.axes, place), _but(self.sizes, place), self.dim + 1)
        return rest(merge_dims(own, self.dim + 1, len(rest.axes))), 0

    def under_a_dim(self) -> NamedExchangeOp:
        return replace(self, dim=self.dim + 1)


@final
@record
class NamedAllToAll(NamedExchangeOp):
    """Member k gets slice k along `split` from each member, stacked along a new dim `stack`."""

    name = "named_all_to_all"
    split: int
    stack: int
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.split < x.ndim or x.shape[self.split] != self.count:
            raise TypeError(
                f"named_all_to_all: {x} does not have a slice for each of {self.count} along dim {self.split}"
            )
        rest = x.without((self.split,)).shape
        if not 0 <= self.stack <= len(rest):
            raise TypeError(f"named_all_to_all: slices of {x} cannot be stacked along dim {self.stack}")
        return x.with_shape((*rest[: self.stack], self.count, *rest[self.stack :]))

    def factors(self, x: ArrayType) -> FactorRule:  # type: ignore[override]
        return _with_whole(x, (self.split,), (self.stack,), self.count)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        # The new dim is there, of size 1, before the blocks travel; the one that was split is 1 after, and goes.
        join = self.stack if self.stack <= self.split else self.stack + 1
        split = self.split + 1 if join <= self.split else self.split
        exchange = AllToAll(split, join, mesh_axes_of(context, self.axes), self.count, self.groups)
        return _without_one(exchange(_with_one(x, join)), split)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (replace(self, split=self.stack, stack=self.split)(cotangent),)

    def resolved(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        # Who sends lies along dim 0 and who receives along `split`: they change places, and senders move to `stack`.
        receivers_first = move_dim(batch_dim_at(x, dim, 0, self.count), self.split + 1, 0)
        return move_dim(receivers_first, 1, self.stack + 1), 0

    def along_one(self, axis: BatchAxis, x: Any, place: int) -> tuple[Any, int | None]:
        if self.groups:
            return super().along_one(axis, x, place)
        # Along the one axis, senders lie along dim 0, and who receives is one digit of what `split` counts.
        own = move_dim(split_dim(x, self.split + 1, self.sizes), self.split + 1 + place, 0)
        rest = NamedAllToAll(_but(self.axes, place), _but(self.sizes, place), self.split + 2, self.stack + 2)
        found = rest(merge_dims(own, self.split + 2, len(self.axes) - 1))
        senders = move_dim(split_dim(found, self.stack + 2, rest.sizes), 1, self.stack + 1 + place)
        return merge_dims(senders, self.stack + 1, len(self.axes)), 0

    def under_a_dim(self) -> NamedExchangeOp:
        return replace(self, split=self.split + 1, stack=self.stack + 1)


@final
@record
class NamedPermute(NamedExchangeOp):
    """For each pair (a, b), member b gets the value of member a. One that nobody sends to gets zeros."""

    name = "named_permute"
    pairs: tuple[tuple[int, int], ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        return PPermute(mesh_axes_of(context, self.axes), self.pairs)(*operands)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (replace(self, pairs=tuple((b, a) for a, b in self.pairs))(cotangent),)

    def resolved(self, x: Any, dim: int | None) -> tuple[Any, int | None]:
        if dim is None:
            if len(self.pairs) == self.count:
                return x, None
            x, dim = batch_dim_at(x, None, 0, self.count), 0
        sender = {b: a for a, b in self.pairs}
        return take_slices(x, dim, [sender.get(member) for member in range(self.count)]), dim

    def under_a_dim(self) -> NamedExchangeOp:
        return self


def _with_whole(x: ArrayType, gone: tuple[int, ...], new: tuple[int, ...], size: int) -> FactorRule:
    """The dims of `x` but those `gone`, with `new` ones among them; what is gone or new has a part for each member."""
    dims = tuple((dim,) for dim in range(x.ndim))
    made: Dims = tuple(factors for dim, factors in enumerate(dims) if dim not in gone)
    for dim in new:
        made = (*made[:dim], (x.ndim,), *made[dim:])
    sizes = (*x.shape, *[size] * len(new))
    return FactorRule((dims,), (made,), sizes, need_replication=frozenset((*gone, *[x.ndim] * len(new))))


def _but(items: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return items[:place] + items[place + 1 :]


def _own_slice(x: Any, dim: int, number: Any) -> Any:
    """The slice of `x` with this number along `dim`, which is gone."""
    zero = full((), 0, np.int32)
    sizes = tuple(1 if d == dim else size for d, size in enumerate(x.type.shape))
    return _without_one(DynamicSlice(sizes)(x, *(number if d == dim else zero for d in range(x.type.ndim))), dim)


def _with_one(x: Any, dim: int) -> Any:
    """`x` with a new dim of size 1."""
    return Reshape((*x.type.shape[:dim], 1, *x.type.shape[dim:]))(x)


def _without_one(x: Any, dim: int) -> Any:
    """`x` without a dim of size 1."""
    return Reshape(x.type.without((dim,)).shape)(x)
