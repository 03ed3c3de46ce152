"""Collectives over named axes, the ops of `lax.psum` and similar functions.

A named axis is bound by a vmap or a manual region (`shard_map`) around the op. Its *members* run the same program on
different values; an operand is the value of one member. A vmap over another axis does not change the op. Derivatives of
collectives are collectives.

- If a vmap binds the name, members are indexed by its batch dim, and the op becomes ordinary ops along that dim.
- If a manual region binds the name, the members are devices, and the op becomes a collective between them (`localize`).
  Types then record over which axes a value varies, is unreduced or is reduced. The sum over such an axis is replicated
  (`invariant`). Casts between these states do not communicate:

    op          operand             result      transpose
    pvary       replicated          varying     named_sum of a varying value
    pvary       reduced             varying     punreduced
    preduced    replicated          reduced     named_sum of an unreduced value
    punreduced  varying             unreduced   pvary of a reduced value
    named_sum   varying             replicated  pvary of a replicated value
    named_sum   unreduced           replicated  preduced

Members along several axes are indexed with the first axis major. `groups` (JAX: axis_index_groups) restrict the op to
groups of members, in which members are indexed by their position in the group. Only reductions accept groups of
different sizes.

    named_sum           the sum over all members
    named_min_max       the maximum or minimum over all members
    named_index         the index of the member
    pvary               cast a replicated or reduced value to varying
    preduced            cast a replicated value to reduced
    punreduced          cast a varying value to unreduced
    assert_replicated   assert that a varying value is in fact replicated

`named_exchange` has the ops that move values between members.
"""

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, NoReturn, final

import numpy as np

from shardwise.compiler.dtypes import is_float, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllReduce, DeviceIndex, Groups
from shardwise.compiler.ops.elementwise.arithmetic import Div, Mul
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.reductions import ReduceMax, ReduceMin
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.reduction import MAX, MIN, SUM, Reduction
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ShardingTypeError


class Named(Op):
    """The base class of collectives over named axes. They can run only where the names are bound."""

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(types[0].shape, 1)

    def lower(self, hlo: Hlo, *operands: HloValue) -> NoReturn:
        raise unbound_axis_error(self)

    def reference(self, *operands: NumpyArray) -> NoReturn:
        raise unbound_axis_error(self)


def unbound_axis_error(op: Op) -> NameError:
    """Return the error for an op that uses axis names where they are not bound."""
    names = ", ".join(sorted(map(repr, op.axis_names)))
    return NameError(
        f"{op.name}: the axis name {names} is not bound. Call it inside a function that vmap(..., axis_name=...) "
        "or shard_map maps over that axis."
    )


@record
class NamedReduction(Named):
    """A reduction over all members along `axes`. With `invariant`, the type of the result is replicated.

    With `groups` there is only one axis. `vmap` reduces along its own axis first and along the others later. A
    reduction for which that is not the same, such as a mean of the values that are not NaN, overrides `vmap`, for
    example by the `vmap` of a `NamedSum` of numerator and denominator.
    """

    casts_sums = True
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

    def result_sums(self, result: ArrayType) -> ArrayType:
        return without_sums(result, self.axes) if self.invariant else result

    def all_reduce(self, context: LocalContext, reduction: Reduction, x: Operand) -> Any:
        """Reduce over the devices along the axes."""
        return AllReduce(mesh_axes_of(context, self.axes), reduction, self.groups)(x)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        if axis.name not in self.axes:
            return self(x), dim
        if self.groups:
            return self._reduce_groups(batch_dim_at(x, dim, 0, axis.size), self.groups), 0
        reduced = self.reduce_copies(x, axis.size) if dim is None else self.along_dim(dim)(x)
        rest = tuple(name for name in self.axes if name != axis.name)
        return replace(self, axes=rest)(reduced) if rest else reduced, None

    def _reduce_groups(self, x: Operand, groups: Groups) -> Any:
        """Reduce `x`, with all members along dim 0, within each group."""
        if len({len(group) for group in groups}) == 1:
            return merge_groups(self.along_dim(1)(split_groups(x, 0, groups)), None, groups)
        reduced = [self.along_dim(0)(take_slices(x, 0, group)) for group in groups]
        group_of = {member: index for index, group in enumerate(groups) for member in group}
        return Concatenate(0)(*(batch_dim_at(reduced[group_of[member]], None, 0, 1) for member in sorted(group_of)))

    def along_dim(self, dim: int) -> Op:
        """Return the same reduction along a dim of one array."""
        raise self.missing_rule("along_dim")

    def reduce_copies(self, x: Operand, count: int) -> Any:
        """Reduce `count` copies of `x`."""
        raise self.missing_rule("reduce_copies")


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

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        if not self.invariant:
            return (self(cotangent),)
        explicit = operands[0].type.explicit
        terms = tuple(axis for axis in self.axes if explicit and axis in explicit.unreduced)
        rest = tuple(axis for axis in self.axes if axis not in terms)
        cotangent = PReduced(terms, explicit.mesh.abstract)(cotangent) if explicit and terms else cotangent
        return (PVary(rest)(cotangent) if rest else cotangent,)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return self.all_reduce(context, SUM, *operands)

    def along_dim(self, dim: int) -> Op:
        return Sum((dim,))

    def reduce_copies(self, x: Operand, count: int) -> Any:
        return sum_of_copies(x, count)


@final
@record
class NamedMinMax(NamedReduction):
    """The maximum (`MAX`) or minimum (`MIN`) over all members along `axes`. Ties share the derivative equally."""

    name = "named_min_max"
    reduction: Reduction = MAX
    groups: Groups | None = field(default=None, repr=False)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return self.all_reduce(context, self.reduction, *operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        wins = Compare("EQ")(x, y)
        total = NamedSum(self.axes, self.invariant, self.groups)
        tangent = total(Select()(wins, dx, zeros_like(dx)))
        return y, Div()(tangent, total(Convert(dx.type.dtype)(wins)))

    def along_dim(self, dim: int) -> Op:
        return {MAX: ReduceMax, MIN: ReduceMin}[self.reduction]((dim,))

    def reduce_copies(self, x: Operand, count: int) -> Any:
        return x


@final
@record
class NamedIndex(Named):
    """The index of the member along `axis`. With `tracked`, its type varies over the axis.

    It must not be recomputed elsewhere (`cheap_to_recompute`), because the name may be bound to another axis there.
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

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return DeviceIndex(context.mesh_axes_of(self.axis))()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(), None

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return ()

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if axis.name == self.axis:
            return Iota((axis.size,), 0, np.dtype(np.int32))(), 0
        return self(), None


class _ManualCast(Elementwise):
    """The base class of casts that change only the state of a type along Manual axes."""

    arity = 1
    accepts_keys = True

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return operands[0]

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        return operands[0]

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]


@final
@record
class PVary(_ManualCast):
    """Mark a replicated or reduced value as varying over `axes`. JAX: pvary, reduced_vary_cast."""

    name = "pvary"
    casts_sums = True
    axes: tuple[str, ...]

    def out_type(self, x: ArrayType) -> ArrayType:  # type: ignore[override]
        return x.with_varying(self.axes)

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return (*axes, *self.axes)

    def result_sums(self, result: ArrayType) -> ArrayType:
        if terms := [axis for axis in self.axes if result.explicit and axis in result.explicit.unreduced]:
            axis = repr(terms[0])
            raise ShardingTypeError(
                f"a value of type {result} is unreduced over {axis}, and meets values that vary over it. Reduce it "
                f"first: `lax.psum(x, {axis})`, or `lax.psum_scatter(x, {axis})`."
            )
        return without_sums(result, self.axes)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        explicit = operands[0].type.explicit
        reduced = tuple(axis for axis in self.axes if explicit and axis in explicit.reduced)
        rest = tuple(axis for axis in self.axes if axis not in reduced)
        cotangent = NamedSum(rest, invariant=True)(cotangent) if rest else cotangent
        return (PUnreduced(reduced, explicit.mesh.abstract)(cotangent) if explicit and reduced else cotangent,)


@final
@record
class PReduced(_ManualCast):
    """Mark a replicated value as reduced along `axes`: its cotangent is unreduced. JAX: preduced."""

    name = "preduced"
    casts_sums = True
    axes: tuple[str, ...]
    mesh: AbstractMesh

    def result_sums(self, result: ArrayType) -> ArrayType:
        return with_sums(result, self.mesh, reduced=self.axes)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (NamedSum(self.axes, invariant=True)(cotangent),)


@final
@record
class PUnreduced(_ManualCast):
    """Mark a varying value as unreduced over `axes`, as the terms of a sum. JAX: vary_unreduced_cast."""

    name = "punreduced"
    casts_sums = True
    axes: tuple[str, ...]
    mesh: AbstractMesh

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis not in self.axes)

    def result_sums(self, result: ArrayType) -> ArrayType:
        return with_sums(result, self.mesh, unreduced=self.axes)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (PVary(self.axes)(cotangent),)


@final
@record
class AssertReplicated(_ManualCast):
    """Assert that a varying value is replicated over `axes`. The first device along them receives the cotangent."""

    name = "assert_replicated"
    axes: tuple[str, ...]

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis not in self.axes)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (first_device_only(cotangent, self.axes),)


def first_device_only(x: Operand, axes: Sequence[str]) -> Any:
    """Return `x` on the first device along `axes` and zeros on the others: terms whose sum is the replicated `x`."""
    varying = PVary(tuple(axes))(x)
    for axis in axes:
        is_first = Compare("EQ")(NamedIndex(axis, tracked=True)(), full((), 0, np.int32))
        varying = Select()(Broadcast(varying.type.shape, ())(is_first), varying, zeros_like(varying))
    return varying


def with_sums(
    type: ArrayType, mesh: AbstractMesh, unreduced: Sequence[str] = (), reduced: Sequence[str] = ()
) -> ArrayType:
    """Return the type of a value that is also unreduced or reduced along these Manual axes of `mesh`."""
    old = type.explicit or ExplicitSharding(mesh, ((),) * type.ndim)
    sums, copies = old.manual_sums
    return type.with_explicit(old.with_manual_sums((*sums, *unreduced), (*copies, *reduced)))


def without_sums(type: ArrayType, axes: Sequence[str]) -> ArrayType:
    """Return the type of a value that is neither unreduced nor reduced along these Manual axes."""
    if type.explicit is None:
        return type
    sums, copies = ([axis for axis in of if axis not in axes] for of in type.explicit.manual_sums)
    return type.with_explicit(type.explicit.with_manual_sums(sums, copies))


def flat_axis_index(axes: Sequence[Any], sizes: Sequence[int], tracked: frozenset[Any] = frozenset()) -> Any:
    """Return the index of the member along several axes, the first one major. `tracked` are the axes in types."""
    flat_index: Any = full((), 0, np.int32)
    for number, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        index = NamedIndex(axis, axis in tracked)()
        flat_index = (Expr(flat_index) * size + Expr(index)).array if number else index
    return flat_index


def mesh_axes_of(context: LocalContext, names: Sequence[Any]) -> tuple[str, ...]:
    """Return the mesh axes that make up axes of manual regions."""
    return tuple(axis for name in names for axis in context.mesh_axes_of(name))


def split_dim(x: Operand, dim: int, sizes: Sequence[int]) -> Any:
    """Split `dim` of `x` into dims of these sizes."""
    return Reshape((*x.type.shape[:dim], *sizes, *x.type.shape[dim + 1 :]))(x)


def merge_dims(x: Operand, dim: int, count: int) -> Any:
    """Merge `count` dims of `x`, from `dim` on, into one."""
    shape = x.type.shape
    return Reshape((*shape[:dim], math.prod(shape[dim : dim + count]), *shape[dim + count :]))(x)


def split_groups(x: Operand, dim: int | None, groups: Groups) -> Any:
    """Split `x`, with all members along `dim`, into groups along dim 0 and members of a group along dim 1.

    If `dim` is None, all members have the value `x`.
    """
    members = [member for group in groups for member in group]
    x = take_slices(batch_dim_at(x, dim, 0, len(members)), 0, members)
    return split_dim(x, 0, (len(groups), len(groups[0])))


def merge_groups(x: Operand, dim: int | None, groups: Groups) -> Any:
    """Merge groups, along dim 0, and their members, along `dim`, into one dim 0 of members, in order.

    If `dim` is None, the members of a group have the same value.
    """
    members = [member for group in groups for member in group]
    x = merge_dims(batch_dim_at(x, dim, 1, len(groups[0])), 0, 2)
    positions = {member: position for position, member in enumerate(members)}
    return take_slices(x, 0, [positions[member] for member in range(len(members))])


def take_slices(x: Operand, dim: int, sources: Sequence[int | None]) -> Any:
    """Concatenate the slices of `x` at these indices along `dim`; None is zeros. Adjacent indices form one slice."""
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


def sum_of_copies(x: Operand, count: int) -> Any:
    """Return `count * x`, a sum of copies. Small floats are multiplied in f32 and rounded once, like sums."""
    dtype = x.type.dtype
    wide = numpy_carrier(dtype) if is_float(dtype) else dtype
    product = Mul()(x if wide == dtype else Convert(wide)(x), full(x.type.shape, count, wide, x.type.weak))
    return product if wide == dtype else Convert(dtype, x.type.weak)(product)
