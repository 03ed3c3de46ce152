"""Boundary ops: how a value enters or leaves the programs of a control op (a loop, a branch, a manual region).

    enter       an operand that the programs read unchanged
    unstack     an operand that a program reads one slice at a time
    carry       the carry of a loop: an initial value, replaced in every iteration; its final value is a result
    stack       a result that stacks the outputs of all iterations
    merge       a result that one of several programs returns
    predicate   a scalar that decides what runs next: the predicate of a `while`, the branch index of a `cond`
    split       an operand of which each device of a manual region reads its shard
    join        a result of which each device of a manual region returns a shard
    argument    an argument of the program whose layout is chosen; its operand may be its value in the next call

Boundary ops exist for planning and never run. Layouts are chosen in one flat list of equations, in which each binding
of a control op is an equation with a boundary op. Its factor rule connects the dims outside and inside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, NamedTuple, final

from shardwise.compiler.ir.control import BoundaryOp
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.explicit import Axes, ExplicitSharding
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import ShardingTypeError


class _SameType(BoundaryOp):
    """A boundary op whose operands and results all have one type."""

    results: int

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if len(set(types)) != 1:
            raise TypeError(f"{' and '.join(map(str, dict.fromkeys(types)))} should be one type")
        return types[:1] * self.results

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = _single_factor_dims(types[0])
        return FactorRule((dims,) * len(types), (dims,) * self.results, types[0].shape)


@final
@record
class Enter(_SameType):
    """An operand that `results` programs read."""

    name = "enter"
    reduces_operands_first = True
    results: int

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0]


@final
@record
class Carry(_SameType):
    """The carry of a loop: (initial value, output of the body) → input of each program, and the final value.

    If the carry is partial, it is reduced once, after the loop. A replicated initial value then enters as one of the
    terms.
    """

    name = "carry"
    accumulates = True
    results: int

    def maxima_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)


@final
@record
class Merge(_SameType):
    """The output of the branch that ran."""

    name = "merge"
    results: ClassVar[int] = 1  # type: ignore[misc]

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(types))),)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0] if all(fill is not None and fill == fills[0] for fill in fills) else None


@final
@record
class Unstack(BoundaryOp):
    """Slices along dim 0, which is not sharded, for each of `results` programs."""

    name = "unstack"
    leading = 1
    reduces_operands_first = reads_slices = True
    length: int
    results: int = field(default=1, repr=False)

    def maxima_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if not x.ndim or x.shape[0] != self.length:
            raise TypeError(f"{x} does not have {self.length} slices along its first dim")
        return (x.without((0,)),) * self.results

    def factors(self, x: ArrayType) -> FactorRule:
        dims = _single_factor_dims(x)
        return FactorRule((dims,), (dims[1:],) * self.results, x.shape, need_replication=frozenset({0}))

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0]


@final
@record
class Stack(BoundaryOp):
    """Slices stacked along a new dim 0, which is not sharded.

    If the slices are partial, the stack is reduced once, after the loop.
    """

    name = "stack"
    leading = 1
    writes_slices = accumulates = True
    length: int

    def fused_bytes(self, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> float:
        return sum(type.nbytes for type in operands)  # a loop writes one slice per iteration

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        return (x.with_dim(0, self.length),)

    def factors(self, x: ArrayType) -> FactorRule:
        dims = _single_factor_dims(x.with_shape((self.length, *x.shape)))
        return FactorRule((dims[1:],), (dims,), (self.length, *x.shape), need_replication=frozenset({0}))

    def maxima_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0] if fills else None


@final
@record
class Predicate(BoundaryOp):
    """A replicated scalar that decides what runs next. It is replicated because diverging devices would deadlock."""

    name = "predicate"

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if x.ndim:
            raise TypeError(f"{x} should be a scalar")
        return ()

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule(((),), (), ())


@final
class ShardSpec(NamedTuple):
    """How the shards inside a manual region form an array outside it.

    Attributes:
        dims: for each dim, the axes of the region that shard it.
        unreduced: the axes along which the shards are terms whose sum is the array.
        reduced: the axes along which the array is reduced.
    """

    dims: tuple[Axes, ...]
    unreduced: Axes = ()
    reduced: Axes = ()

    @property
    def sharding_axes(self) -> Axes:
        """The axes that shard dims."""
        return tuple(axis for axes in self.dims for axis in axes)

    @property
    def cotangent(self) -> "ShardSpec":
        """The spec of the cotangent, in which the unreduced and reduced axes are swapped."""
        return ShardSpec(self.dims, self.reduced, self.unreduced)


class _ShardBoundary(BoundaryOp):
    """An array outside a manual region, and one device's shard of it inside.

    A sharded dim has two factors: the shard index, which the region's axes shard completely, and the position within
    the shard, which other axes may shard further.

    Attributes:
        dims: for each dim, the mesh axes that shard it.
        counts: for each dim, the number of its shards.
        unreduced: the mesh axes along which the array is unreduced; the shards are its terms.
    """

    dims: tuple[Axes, ...]
    counts: tuple[int, ...]
    unreduced: Axes

    @property
    def pin(self) -> Pin:
        return Pin(Layout(self.dims, tuple((axis, SUM) for axis in self.unreduced)))

    @property
    def shard_index_factors(self) -> Mapping[str, int]:
        return {axis: 2 * dim for dim, axes in enumerate(self.dims) for axis in axes}

    def factor_dims(self, shard_shape: tuple[int, ...]) -> tuple[Dims, Dims, tuple[int, ...]]:
        """Return the factors of the array, the factors of the shard, and the sizes of all factors."""
        shard = tuple((2 * dim + 1,) for dim in range(len(shard_shape)))
        array = tuple((2 * dim, 2 * dim + 1) if axes else (2 * dim + 1,) for dim, axes in enumerate(self.dims))
        sizes = tuple(size for pair in zip(self.counts, shard_shape, strict=True) for size in pair)
        return array, shard, sizes

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0] if fills else None


@final
@record
class Split(_ShardBoundary):
    """The shard of an operand.

    Attributes:
        names: the axes of the region over which the shard varies.
        manual: all axes of the region; empty if types do not record Explicit shardings.
        reduced: the axes along which the operand is reduced.
        tracked: whether types in the region record along which axes a value is unreduced or reduced.
    """

    name = "split"
    dims: tuple[Axes, ...]
    counts: tuple[int, ...]
    names: Axes = ()
    manual: Axes = field(default=(), repr=False)
    unreduced: Axes = field(default=(), repr=False)
    reduced: Axes = field(default=(), repr=False)
    tracked: bool = field(default=True, repr=False)

    @property
    def operand_pin(self) -> Pin:
        return self.pin

    @property
    def terms_entering(self) -> Axes:
        return self.unreduced

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if len(self.dims) != x.ndim or any(size % count for size, count in zip(x.shape, self.counts, strict=True)):
            raise TypeError(f"{x} does not divide into {self.counts} shards")
        shard = x.with_shape(tuple(size // count for size, count in zip(x.shape, self.counts, strict=True)))
        if self.manual:
            shard = shard.with_explicit(self._inner_sharding(x))
        return (shard.with_varying((*x.varying, *self.names)),)

    def _inner_sharding(self, x: ArrayType) -> ExplicitSharding | None:
        sums = (x.explicit.unreduced, x.explicit.reduced) if x.explicit else ((), ())
        for state, of_type, of_spec in zip(("unreduced", "reduced"), sums, (self.unreduced, self.reduced), strict=True):
            axes = [axis for axis in of_type if axis in self.manual]
            if set(axes) != set(of_spec):
                raise ShardingTypeError(f"{x} should be {state} along {list(of_spec)}, as its spec says")
        return x.explicit.inside_region(self.manual, self.tracked) if x.explicit else None

    def outer_varying(self, varying: Axes) -> Axes:
        return tuple(axis for axis in varying if axis not in self.names)

    def factors(self, x: ArrayType) -> FactorRule:
        plain = ArrayType(x.shape, x.dtype)
        array, shard, sizes = self.factor_dims(Split(self.dims, self.counts).out_types(plain)[0].shape)
        return FactorRule((array,), (shard,), sizes)


@final
@record
class Join(_ShardBoundary):
    """A result, joined from the shards of all devices.

    Attributes:
        names: the region's axes, over which the result no longer varies.
        mesh: the enclosing mesh, whose Explicit axes the result's type has; None if types do not record them.
        reduced: the axes along which the result is reduced.
    """

    name = "join"
    leaves_region = True
    dims: tuple[Axes, ...]
    counts: tuple[int, ...]
    names: Axes = ()
    mesh: Mesh | AbstractMesh | None = field(default=None, repr=False)
    unreduced: Axes = field(default=(), repr=False)
    reduced: Axes = field(default=(), repr=False)

    @property
    def result_pin(self) -> Pin:
        return self.pin

    @property
    def terms_leaving(self) -> Axes:
        return self.unreduced

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if len(self.dims) != x.ndim:
            raise TypeError(f"{x} does not have {len(self.dims)} dims")
        array = x.with_shape(tuple(size * count for size, count in zip(x.shape, self.counts, strict=True)))
        if self.mesh is not None:
            inner = x.explicit or ExplicitSharding(self.mesh, ((),) * x.ndim)
            dims = [(*axes, *more) for axes, more in zip(self.dims, inner.dims, strict=True)]
            sums, copies = ([axis for axis in of if axis not in self.names] for of in (inner.unreduced, inner.reduced))
            sums, copies = [*sums, *self.unreduced], [*copies, *self.reduced]
            mesh = self.mesh
            if inner.scoped:  # restore the axis types outside the region
                types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
                manual = {axis: types[axis] for axis in inner.mesh.manual_axes if axis in types}
                mesh = inner.mesh.abstract.update_axis_types(manual)
            array = array.with_explicit(ExplicitSharding.from_dims(mesh, dims, sums, copies, inner.scoped))
        return (array.with_varying(axis for axis in x.varying if axis not in self.names),)

    def factors(self, x: ArrayType) -> FactorRule:
        array, shard, sizes = self.factor_dims(x.shape)
        return FactorRule((shard,), (array,), sizes)


def _single_factor_dims(type: ArrayType) -> Dims:
    """Return dims of one factor each."""
    return tuple((dim,) for dim in range(type.ndim))


@final
@record
class Argument(BoundaryOp):
    """An argument of a program, in the layout that is chosen for it.

    The operand, if there is one, is the program output that is passed as this argument to the next call, such as the
    updated parameters of a training step. It must have the layout of the argument.
    """

    name = "argument"
    type: ArrayType

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return (self.type,)

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = _single_factor_dims(self.type)
        return FactorRule((dims,) * len(types), (dims,), self.type.shape)
