"""Collectives along an axis that has a name: what `lax.psum` and its kin stage.

The axis belongs to something around the op: many members compute the same thing, each on its own values, and here they
exchange them. Inside, an operand is one member's value. Other vmaps pass by, and derivatives are collectives again.

Where a vmap has given the name, the members lie side by side along a dim once it reaches the op, which becomes ordinary
ones along that dim. Where the name is an axis of a manual region (shard_map), members are devices: the op is a
collective between them, as `localize` says, and there types say over which axes a value varies from device to device.
The sum over such an axis is one value for all (`invariant`). So its transpose moves nothing: each device takes the
cotangent as it is. What moves is the transpose of its opposite, `vary`, by which each device takes what is one value
for all as its own: their cotangents are summed.

Members along several axes are numbered with the first axis slowest. `groups` of their numbers, all of one size, are
each for themselves: members of a group are numbered by their places in it.

    named_sum        each member gets the sum of all
    named_extreme    each member gets the largest of all, or the smallest
    named_index      each member's number
    vary             one value for all, as each device's own
    settle           what all devices have alike, as one value for all

`moving` has those by which values move between members.
"""

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, NoReturn, final

import numpy as np

from shardwise.compiler.dtypes import is_float, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllReduce, DeviceIndex, Groups
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.reductions import ReduceMax, ReduceMin
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.reduction import MAX, MIN, SUM, Reduction
from shardwise.compiler.shardings.factors import FactorRule


class Named(Op):
    """What all share: only whoever binds the name can say what the op does."""

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(types[0].shape, 1)

    def lower(self, hlo: Any, *operands: Any) -> NoReturn:
        raise self.unbound()

    def reference(self, *operands: Any) -> NoReturn:
        raise self.unbound()

    def unbound(self) -> NameError:
        names = ", ".join(sorted(map(repr, self.axis_names)))
        return NameError(
            f"{self.name}: cannot run along {names}: nothing around it binds that name, as vmap and shard_map do"
        )


@record
class NamedReduction(Named):
    """One value of those of all members along `axes`. `invariant`: types know that it is one for all.

    `groups` are of members along one axis.
    """

    axes: tuple[Any, ...]
    invariant: bool = False

    @property
    def groups(self) -> Groups | None:
        raise self.missing_rule("groups")

    @property
    def axis_names(self) -> frozenset[Any]:
        return frozenset(self.axes)

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis not in self.axes) if self.invariant else axes

    def reduced(self, context: LocalContext, reduction: Reduction, x: Any) -> Any:
        """The reduction over the devices along the axes."""
        return AllReduce(mesh_axes_of(context, self.axes), reduction, self.groups)(x)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        if axis.name not in self.axes:
            return self(x), dim
        if self.groups:
            return merge_groups(self.along(1)(split_groups(x, dim, self.groups)), None, self.groups), 0
        one = self.of_copies(x, axis.size) if dim is None else self.along(dim)(x)
        rest = tuple(name for name in self.axes if name != axis.name)
        return replace(self, axes=rest)(one) if rest else one, None

    def along(self, dim: int) -> Op:
        """The same along a dim."""
        raise self.missing_rule("along")

    def of_copies(self, x: Any, count: int) -> Any:
        """The same of as many copies of `x`."""
        raise self.missing_rule("of_copies")


@final
@record
class NamedSum(NamedReduction):
    """The sum over all members along `axes`."""

    name = "named_sum"
    groups: Groups | None = field(default=None, repr=False)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (PVary(self.axes)(cotangent) if self.invariant else self(cotangent),)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        return self.reduced(context, SUM, *operands)

    def along(self, dim: int) -> Op:
        return Sum((dim,))

    def of_copies(self, x: Any, count: int) -> Any:
        return sum_of_copies(x, count)


@final
@record
class NamedMinMax(NamedReduction):
    """The largest (`MAX`) or smallest (`MIN`) over all members along `axes`. Equal ones share its derivative."""

    name = "named_min_max"
    reduction: Reduction = MAX
    groups: Groups | None = field(default=None, repr=False)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        return self.reduced(context, self.reduction, *operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        wins = Compare("EQ")(x, y)
        total = NamedSum(self.axes, self.invariant, self.groups)
        moved = total(Select()(wins, dx, zeros_like(dx)))
        return y, Div()(moved, total(Convert(dx.type.dtype)(wins)))

    def along(self, dim: int) -> Op:
        return {MAX: ReduceMax, MIN: ReduceMin}[self.reduction]((dim,))

    def of_copies(self, x: Any, count: int) -> Any:
        return x


@final
@record
class NamedIndex(Named):
    """Each member's number along `axis`. Not cheap: made again further inside, the name may mean another axis.

    `tracked`: types know that it varies.
    """

    name = "named_index"
    axis: Any
    tracked: bool = False

    @property
    def axis_names(self) -> frozenset[Any]:
        return frozenset({self.axis})

    def out_type(self) -> ArrayType:
        return ArrayType((), np.dtype(np.int32), False, (self.axis,) if self.tracked else ())

    def factors(self) -> FactorRule:  # type: ignore[override]
        return FactorRule((), ((),), ())

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        return DeviceIndex(context.mesh_axes_of(self.axis))()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(), None

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return ()

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if axis.name == self.axis:
            return Iota((axis.size,), 0, np.dtype(np.int32))(), 0
        return self(), None


class _VaryingCast(Elementwise):
    """The operand itself: only its type says something else of how devices differ."""

    arity = 1
    accepts_keys = True

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        return operands[0]

    def lower(self, hlo: Any, *operands: Any) -> Any:
        return operands[0]

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]


@final
@record
class PVary(_VaryingCast):
    """What is one value for all devices along `axes`, as each device's own."""

    name = "pvary"
    axes: tuple[str, ...]

    def out_type(self, x: ArrayType) -> ArrayType:  # type: ignore[override]
        return x.with_varying(self.axes)

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return (*axes, *self.axes)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (NamedSum(self.axes, invariant=True)(cotangent),)


@final
@record
class AssertReplicated(_VaryingCast):
    """What each device along `axes` has, but all alike, as one value for all. Its derivative is the first device's."""

    name = "assert_replicated"
    axes: tuple[str, ...]

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis not in self.axes)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        sent = PVary(self.axes)(cotangent)
        for axis in self.axes:
            first = Compare("EQ")(NamedIndex(axis, tracked=True)(), full((), 0, np.int32))
            sent = Select()(Broadcast(sent.type.shape, ())(first), sent, zeros_like(sent))
        return (sent,)


def flat_axis_index(axes: Sequence[Any], sizes: Sequence[int], tracked: frozenset[Any] = frozenset()) -> Any:
    """Each member's number along several axes, the first of them slowest; `tracked`: those whose index types track."""
    number: Any = full((), 0, np.int32)
    for place, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        digit = NamedIndex(axis, axis in tracked)()
        number = Add()(Mul()(number, full((), size, np.int32)), digit) if place else digit
    return number


def mesh_axes_of(context: LocalContext, names: Sequence[Any]) -> tuple[str, ...]:
    """The axes of the mesh that axes of manual regions consist of."""
    return tuple(axis for name in names for axis in context.mesh_axes_of(name))


def split_dim(x: Any, dim: int, sizes: Sequence[int]) -> Any:
    """`x` with `dim` as dims of these sizes."""
    return Reshape((*x.type.shape[:dim], *sizes, *x.type.shape[dim + 1 :]))(x)


def merge_dims(x: Any, dim: int, count: int) -> Any:
    """`x` with so many dims from `dim` on as one."""
    shape = x.type.shape
    return Reshape((*shape[:dim], math.prod(shape[dim : dim + count]), *shape[dim + count :]))(x)


def split_groups(x: Any, dim: int | None, groups: Groups) -> Any:
    """`x`, whose members lie along `dim` (None: all are `x`), with a dim for the groups and one for their members."""
    members = [member for group in groups for member in group]
    x = take_slices(batch_dim_at(x, dim, 0, len(members)), 0, members)
    return split_dim(x, 0, (len(groups), len(groups[0])))


def merge_groups(x: Any, dim: int | None, groups: Groups) -> Any:
    """`x`, whose groups lie along the first dim and their members along `dim` (None: they have the same), with all
    members along one, in their order."""
    members = [member for group in groups for member in group]
    x = merge_dims(batch_dim_at(x, dim, 1, len(groups[0])), 0, 2)
    places = {member: place for place, member in enumerate(members)}
    return take_slices(x, 0, [places[member] for member in range(len(members))])


def take_slices(x: Any, dim: int, sources: Sequence[int | None]) -> Any:
    """For each source, that slice of `x` along `dim`, or zeros; sources that are neighbours are one slice."""
    parts = []
    start = 0
    while start < len(sources):
        first, limit = sources[start], start + 1
        while limit < len(sources) and sources[limit] == (None if first is None else first + limit - start):
            limit += 1
        if first is None:
            shape = (*x.type.shape[:dim], limit - start, *x.type.shape[dim + 1 :])
            parts.append(full(shape, 0, x.type.dtype, x.type.weak))
        else:
            parts.append(slice_along(x, dim, first, first + limit - start))
        start = limit
    return Concatenate(dim)(*parts)


def sum_of_copies(x: Any, count: int) -> Any:
    """The sum of as many copies of `x`; small floats are multiplied in f32 and rounded once, as they are summed."""
    dtype = x.type.dtype
    wide = numpy_carrier(dtype) if is_float(dtype) else dtype
    many = Mul()(x if wide == dtype else Convert(wide)(x), full(x.type.shape, count, wide, x.type.weak))
    return many if wide == dtype else Convert(dtype, x.type.weak)(many)
