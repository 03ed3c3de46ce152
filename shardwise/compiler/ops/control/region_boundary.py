"""Ties: the ways in which a value crosses the border of an op that holds programs (a loop, a branch).

    enter     an operand that the programs take as it is
    unstack   an operand of which a program takes one slice after the other
    carry     an operand that a program takes, replaces and takes again; what it is in the end is a result
    stack     a result, stacked from what a program gives time after time
    merge     a result that one of several programs gives
    decide    a scalar on which depends what runs next
    split     an operand of which the devices of a manual region take a piece each
    join      a result, of which each device of a manual region gives a piece

Ties are ops for planning: layouts are chosen in one flat list of equations, in which an equation for each tie stands
for the border. They say how dims hang together across it, and never run.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, final

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin


class BoundaryOp(Op):
    """`leading`: how many dims its outer values have in front of those that its inner ones have."""

    single = False
    leading: ClassVar[int] = 0

    def outer_varying(self, varying: tuple[str, ...]) -> tuple[str, ...]:
        """The axes over which an operand varies, where what the programs take varies over these."""
        return varying


class _SameType(BoundaryOp):
    """All values have one type."""

    results: int

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if len(set(types)) != 1:
            raise TypeError(f"{' and '.join(map(str, dict.fromkeys(types)))} should be one type")
        return types[:1] * self.results

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = _each_dim(types[0])
        return FactorRule((dims,) * len(types), (dims,) * self.results, types[0].shape)


@final
@record
class Enter(_SameType):
    """An operand that `results` programs take."""

    name = "enter"
    results: int

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0]


@final
@record
class Carry(_SameType):
    """(what it starts as, what a program makes of it) → what each program takes, and what it is in the end.

    It may travel as terms of a sum: then the sum is taken once, after the loop.
    """

    name = "carry"
    results: int

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)


@final
@record
class Merge(_SameType):
    """One of the operands."""

    name = "merge"
    results: ClassVar[int] = 1  # type: ignore[misc]

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(types))),)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0] if all(fill is not None and fill == fills[0] for fill in fills) else None


@final
@record
class Unstack(BoundaryOp):
    """Slices along dim 0, which stays whole."""

    name = "unstack"
    leading = 1
    length: int

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if not x.ndim or x.shape[0] != self.length:
            raise TypeError(f"{x} does not have {self.length} slices along its first dim")
        return (x.without((0,)),)

    def factors(self, x: ArrayType) -> FactorRule:
        dims = _each_dim(x)
        return FactorRule((dims,), (dims[1:],), x.shape, need_replication=frozenset({0}))

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0]


@final
@record
class Stack(BoundaryOp):
    """Slices joined along a new dim 0, which stays whole."""

    name = "stack"
    leading = 1
    length: int

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        return (x.with_shape((self.length, *x.shape)),)

    def factors(self, x: ArrayType) -> FactorRule:
        dims = _each_dim(x.with_shape((self.length, *x.shape)))
        return FactorRule((dims[1:],), (dims,), (self.length, *x.shape), need_replication=frozenset({0}))

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0] if fills else None


@final
@record
class Predicate(BoundaryOp):
    """Every device must see the same value, whole: devices that went different ways would wait for each other."""

    name = "predicate"

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if x.ndim:
            raise TypeError(f"{x} should be a scalar")
        return ()

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule(((),), (), ())


class _ShardBoundary(BoundaryOp):
    """A whole value and one device's piece of it: `dims` has the mesh axes that cut each dim, `counts` into how many.

    A dim that is cut is two factors: the number of the piece, which these axes cut into single ones, and the place in
    it, which other axes may cut further.
    """

    dims: tuple[tuple[str, ...], ...]
    counts: tuple[int, ...]

    @property
    def pin(self) -> Pin:
        return Pin(Layout(self.dims))

    def shard_index_factor(self, dim: int) -> int:
        """The factor of a dim that is cut which numbers the pieces."""
        return 2 * dim

    @property
    def shard_index_factors(self) -> frozenset[int]:
        """The factors that number pieces."""
        return frozenset(self.shard_index_factor(dim) for dim, axes in enumerate(self.dims) if axes)

    def tables(self, piece: tuple[int, ...]) -> tuple[Dims, Dims, tuple[int, ...]]:
        """The factors of the whole and of the piece, and their sizes."""
        inside = tuple((2 * dim + 1,) for dim in range(len(piece)))
        whole = tuple((2 * dim, 2 * dim + 1) if axes else (2 * dim + 1,) for dim, axes in enumerate(self.dims))
        sizes = tuple(size for pair in zip(self.counts, piece, strict=True) for size in pair)
        return whole, inside, sizes

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0] if fills else None


@final
@record
class Split(_ShardBoundary):
    """The piece of a whole. `names`: the axes over which it varies, as types call them."""

    name = "split"
    dims: tuple[tuple[str, ...], ...]
    counts: tuple[int, ...]
    names: tuple[str, ...] = ()

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if len(self.dims) != x.ndim or any(size % count for size, count in zip(x.shape, self.counts, strict=True)):
            raise TypeError(f"{x} does not divide into {self.counts} pieces")
        piece = x.with_shape(tuple(size // count for size, count in zip(x.shape, self.counts, strict=True)))
        return (piece.with_varying((*x.varying, *self.names)),)

    def outer_varying(self, varying: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in varying if axis not in self.names)

    def factors(self, x: ArrayType) -> FactorRule:
        whole, piece, sizes = self.tables(self.out_types(x)[0].shape)
        return FactorRule((whole,), (piece,), sizes)


@final
@record
class Join(_ShardBoundary):
    """The whole of pieces. `names`: the axes of the region, over which the whole does not vary any more."""

    name = "join"
    dims: tuple[tuple[str, ...], ...]
    counts: tuple[int, ...]
    names: tuple[str, ...] = ()

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if len(self.dims) != x.ndim:
            raise TypeError(f"{x} does not have {len(self.dims)} dims")
        whole = x.with_shape(tuple(size * count for size, count in zip(x.shape, self.counts, strict=True)))
        return (whole.with_varying(axis for axis in x.varying if axis not in self.names),)

    def factors(self, x: ArrayType) -> FactorRule:
        whole, piece, sizes = self.tables(x.shape)
        return FactorRule((piece,), (whole,), sizes)


def _each_dim(type: ArrayType) -> Dims:
    return tuple((dim,) for dim in range(type.ndim))
