"""Collectives along an axis that has a name: what `lax.psum` and its kin stage.

The axis belongs to something around the op, such as a vmap: many members compute the same thing, each on its own
values, and here they exchange them. Inside, an operand is one member's value. When the vmap reaches the op, the members
lie side by side along a dim, and the op becomes ordinary ones along that dim; no other op is left to lower. Other vmaps
pass by, and derivatives are collectives again.

    named_sum        each member gets the sum of all
    named_extreme    each member gets the largest of all, or the smallest
    named_gather     each member gets the values of all, side by side along a new dim
    named_scatter    the transpose of that: of the sum of all, each member gets its own slice
    named_exchange   each member sends slice k to member k, and stacks what it is sent
    named_permute    members send their value to one other
    named_index      each member's number
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, carrier, is_float
from shardwise.compiler.ops.aggregate import ReduceMax, ReduceMin
from shardwise.compiler.ops.elementwise import Compare, Convert, Div, Mul, Select
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.shape import Iota, batch_at, full, move_dim, zeros_like
from shardwise.compiler.ops.slicing import Concatenate, along


class Named(Op):
    """What all share: only whoever binds the name can say what the op does."""

    def factors(self, *types: ArrayType) -> NoReturn:
        raise self.unbound()

    def lower(self, hlo: Any, *operands: Any) -> NoReturn:
        raise self.unbound()

    def reference(self, *operands: Any) -> NoReturn:
        raise self.unbound()

    def unbound(self) -> NameError:
        names = ", ".join(sorted(map(repr, self.axis_names)))
        return NameError(f"{self.name}: cannot run along {names}: nothing around it binds that name, as a vmap would")


@record
class Reducing(Named):
    """One value of those of all members along `axes`."""

    axes: tuple[Any, ...]

    @property
    def axis_names(self) -> frozenset[Any]:
        return frozenset(self.axes)

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        if axis.name not in self.axes:
            return self(x), dim
        one = self.of_copies(x, axis.size) if dim is None else self.along(dim)(x)
        rest = tuple(name for name in self.axes if name != axis.name)
        return replace(self, axes=rest)(one) if rest else one, None

    def along(self, dim: int) -> Op:
        """The same along a dim."""
        raise self.missing("along")

    def of_copies(self, x: Any, count: int) -> Any:
        """The same of as many copies of `x`."""
        raise self.missing("of_copies")


@final
@record
class NamedSum(Reducing):
    """The sum over all members along `axes`."""

    name = "named_sum"

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (self(cotangent),)

    def along(self, dim: int) -> Op:
        return Sum((dim,))

    def of_copies(self, x: Any, count: int) -> Any:
        return _copies(x, count)


@final
@record
class NamedExtreme(Reducing):
    """The largest ("max") or smallest ("min") over all members along `axes`. Equal ones share its derivative."""

    name = "named_extreme"
    how: str

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        wins = Compare("EQ")(x, y)
        total = NamedSum(self.axes)
        moved = total(Select()(wins, dx, zeros_like(dx)))
        return y, Div()(moved, total(Convert(dx.type.dtype)(wins)))

    def along(self, dim: int) -> Op:
        return {"max": ReduceMax, "min": ReduceMin}[self.how]((dim,))

    def of_copies(self, x: Any, count: int) -> Any:
        return x


@record
class AlongOne(Named):
    """Values move along one axis; the op is linear in its operand."""

    axis: Any

    @property
    def axis_names(self) -> frozenset[Any]:
        return frozenset({self.axis})

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        if axis.name == self.axis:
            return self.resolved(axis, x, dim)
        return self.under_a_dim()(batch_at(x, dim, 0, axis.size)), 0

    def resolved(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        """The result where the members of `x` lie along `dim` (None: all are `x`), and the dim of its members."""
        raise self.missing("resolved")

    def under_a_dim(self) -> Op:
        """The same, for operands with one more dim in front."""
        raise self.missing("under_a_dim")


@final
@record
class NamedGather(AlongOne):
    """The values of all `size` members, side by side along a new dim `dim`."""

    name = "named_gather"
    size: int
    dim: int

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.dim <= x.ndim:
            raise TypeError(f"named_gather: {x} cannot get a new dim {self.dim}")
        return x.with_shape((*x.shape[: self.dim], self.size, *x.shape[self.dim :]))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (NamedScatter(self.axis, self.size, self.dim)(cotangent),)

    def resolved(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        return batch_at(x, dim, self.dim, axis.size), None

    def under_a_dim(self) -> Op:
        return NamedGather(self.axis, self.size, self.dim + 1)


@final
@record
class NamedScatter(AlongOne):
    """Of the sum over all `size` members, member k gets slice k along `dim`, which is gone."""

    name = "named_scatter"
    size: int
    dim: int

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.dim < x.ndim or x.shape[self.dim] != self.size:
            raise TypeError(f"named_scatter: {x} does not have a slice for each of {self.size} along dim {self.dim}")
        return x.without((self.dim,))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (NamedGather(self.axis, self.size, self.dim)(cotangent),)

    def resolved(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        return _copies(x, axis.size) if dim is None else Sum((dim,))(x), self.dim

    def under_a_dim(self) -> Op:
        return NamedScatter(self.axis, self.size, self.dim + 1)


@final
@record
class NamedExchange(AlongOne):
    """Member k gets slice k along `split` from each of `size` members, stacked along a new dim `stack`."""

    name = "named_exchange"
    size: int
    split: int
    stack: int

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.split < x.ndim or x.shape[self.split] != self.size:
            raise TypeError(f"named_exchange: {x} does not have a slice for each of {self.size} along dim {self.split}")
        rest = x.without((self.split,)).shape
        if not 0 <= self.stack <= len(rest):
            raise TypeError(f"named_exchange: slices of {x} cannot be stacked along dim {self.stack}")
        return x.with_shape((*rest[: self.stack], self.size, *rest[self.stack :]))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (NamedExchange(self.axis, self.size, self.stack, self.split)(cotangent),)

    def resolved(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        # Who sends lies along dim 0 and who receives along `split`: they change places, and senders move to `stack`.
        receivers_first = move_dim(batch_at(x, dim, 0, axis.size), self.split + 1, 0)
        return move_dim(receivers_first, 1, self.stack + 1), 0

    def under_a_dim(self) -> Op:
        return NamedExchange(self.axis, self.size, self.split + 1, self.stack + 1)


@final
@record
class NamedPermute(AlongOne):
    """For each pair (a, b), member b gets the value of member a. One that nobody sends to gets zeros."""

    name = "named_permute"
    pairs: tuple[tuple[int, int], ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (NamedPermute(self.axis, tuple((b, a) for a, b in self.pairs))(cotangent),)

    def resolved(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        if dim is None:
            if len(self.pairs) == axis.size:
                return x, None
            x, dim = batch_at(x, None, 0, axis.size), 0
        sender = {b: a for a, b in self.pairs}
        parts = []
        start = 0
        while start < axis.size:  # members whose senders are neighbours, or who have none, get theirs together
            first, limit = sender.get(start), start + 1
            while limit < axis.size and sender.get(limit) == (None if first is None else first + limit - start):
                limit += 1
            if first is None:
                shape = (*x.type.shape[:dim], limit - start, *x.type.shape[dim + 1 :])
                parts.append(full(shape, 0, x.type.dtype, x.type.weak))
            else:
                parts.append(along(x, dim, first, first + limit - start))
            start = limit
        return Concatenate(dim)(*parts), dim

    def under_a_dim(self) -> Op:
        return self


@final
@record
class NamedIndex(Named):
    """Each member's number along `axis`. Not cheap: made again further inside, the name may mean another axis."""

    name = "named_index"
    axis: Any

    @property
    def axis_names(self) -> frozenset[Any]:
        return frozenset({self.axis})

    def out_type(self) -> ArrayType:
        return ArrayType((), np.dtype(np.int32))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(), None

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return ()

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if axis.name == self.axis:
            return Iota((axis.size,), 0, np.dtype(np.int32))(), 0
        return self(), None


def _copies(x: Any, count: int) -> Any:
    """The sum of as many copies of `x`; small floats are multiplied in f32 and rounded once, as they are summed."""
    dtype = x.type.dtype
    wide = carrier(dtype) if is_float(dtype) else dtype
    many = Mul()(x if wide == dtype else Convert(wide)(x), full(x.type.shape, count, wide, x.type.weak))
    return many if wide == dtype else Convert(dtype, x.type.weak)(many)
