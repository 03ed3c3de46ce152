"""Reductions other than sum: reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor, and argmax argmin.

Along dims that are cut, each device reduces its piece. Where a collective joins such results by name (a maximum of
floats), they are terms that it joins when they are needed. Else the devices exchange them, one slice each, and every
device reduces those once more.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, Shard, quiet
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import (
    ArrayType,
    DType,
    carrier,
    has_infinity,
    highest,
    integer_range,
    is_float,
    is_integer,
    lowest,
    reduced_in,
    short_name,
)
from shardwise.compiler.ops import shape
from shardwise.compiler.ops.bitwise import BITS, And, Or, Xor
from shardwise.compiler.ops.collective import AllGather
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Div, Mul, Select, compared, like
from shardwise.compiler.ops.extremum import Max, Min
from shardwise.compiler.ops.reduce import Reduction, Sum
from shardwise.compiler.ops.slicing import Pad, Slice, counted, within
from shardwise.compiler.shardings.factors import FactorRule


class Aggregate(Reduction):
    """A reduction that finds its pieces' results by an exchange where no collective joins them."""

    def factors(self, x: ArrayType) -> FactorRule:
        rule = super().factors(x)
        return rule if rule.reduce else replace(rule, whole=frozenset(), exchange=frozenset(self.dims))

    def exchanged(self, factor: int, count: int, *types: ArrayType) -> float:
        return float((count - 1) * self.out_type(*types).size * reduced_in(types[0].dtype).itemsize)

    def localize(self, shard: Shard, *operands: Any) -> Any:
        (x,) = operands
        out = self.out_type(x.type)
        cut = [dim for dim in self.dims if shard.cut(dim, 0)[0]]
        if not cut or self.how(out.dtype):
            return self(x)
        wide = reduced_in(out.dtype)
        if wide != out.dtype:
            x = Convert(wide, x.type.weak)(x)
        for dim in cut:
            inside = within(shard, x.type.shape, dim, 0)
            x = x if inside is None else Select()(inside, x, like(x, self.start(wide)))
        found = self(x)
        axes = tuple(axis for dim in cut for axis in shard.cut(dim, 0)[0])
        count = math.prod(shard.cut(dim, 0)[1] for dim in cut)
        found = type(self)((0,))(AllGather(0, axes, count)(shape.Reshape((1, *found.type.shape))(found)))
        return found if wide == out.dtype else Convert(out.dtype, out.weak)(found)


class Extreme(Aggregate):
    """The largest or the smallest of the elements along `dims`; NaN where any is. Equal ones share its derivative."""

    kind: ClassVar[str]

    def how(self, dtype: DType) -> str | None:
        # Complex numbers have no such collective; and what would pad a float must be infinite.
        return self.kind if dtype.kind != "c" and (not is_float(dtype) or has_infinity(dtype)) else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        if not all(x.type.shape[dim] for dim in self.dims):
            return y, None  # of none, it is a constant
        wins = Compare("EQ")(x, self.spread(y, x))
        count = Sum(self.dims)(Convert(x.type.dtype)(wins))
        moved = Sum(self.dims)(Select()(wins, dx, shape.zeros_like(x)))
        return y, Div()(moved, count)


@final
@record
class ReduceMax(Extreme):
    """The largest of the elements along `dims`: of none, the lowest number."""

    name = "reduce_max"
    kind = "max"

    def pair(self) -> Op:
        return Max()

    def start(self, dtype: DType) -> Any:
        return lowest(dtype)

    @quiet
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.max(x.astype(carrier(x.dtype)), self.dims, initial=lowest(x.dtype))).astype(x.dtype)


@final
@record
class ReduceMin(Extreme):
    """The smallest of the elements along `dims`: of none, the highest number."""

    name = "reduce_min"
    kind = "min"

    def pair(self) -> Op:
        return Min()

    def start(self, dtype: DType) -> Any:
        return highest(dtype)

    @quiet
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.min(x.astype(carrier(x.dtype)), self.dims, initial=highest(x.dtype))).astype(x.dtype)


@final
@record
class ReduceProd(Aggregate):
    """The product of the elements along `dims`; of booleans, whether all are true."""

    name = "reduce_prod"

    def pair(self) -> Op:
        return Mul()

    def start(self, dtype: DType) -> Any:
        return 1

    def how(self, dtype: DType) -> str | None:
        return "min" if dtype == np.bool_ else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """By halves: x₀x₁ · x₂x₃. Nothing is divided, so zeros and infinities do no harm."""
        (x,), (dx,) = primals, tangents
        y = self(x)
        wide = carrier(x.type.dtype)
        here, there = (self._in_a_row(z if wide == z.type.dtype else Convert(wide)(z)) for z in (x, dx))
        while (count := here.type.shape[-1]) > 1:
            half = -(-count // 2)
            (left, right), (dleft, dright) = _halves(here, half, 1), _halves(there, half, 0)
            here, there = Mul()(left, right), Add()(Mul()(dleft, right), Mul()(left, dright))
        moved = Sum((there.type.ndim - 1,))(there)  # of one element, or of none
        return y, moved if wide == y.type.dtype else Convert(y.type.dtype)(moved)

    def _in_a_row(self, x: Any) -> Any:
        """`x` with the reduced dims as one, the last."""
        kept = tuple(dim for dim in range(x.type.ndim) if dim not in self.dims)
        moved = shape.permuted(x, (*kept, *self.dims))
        sizes = tuple(x.type.shape[dim] for dim in kept)
        count = x.type.without(kept).size
        return shape.Reshape((*sizes, count))(moved)

    @quiet
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.prod(x, self.dims, dtype=carrier(x.dtype))).astype(x.dtype)


def _halves(x: Any, half: int, rest: int) -> tuple[Any, Any]:
    """The first `half` elements of the last dim, and the others: filled up with `rest` to as many."""
    lead, count = x.type.shape[:-1], x.type.shape[-1]
    zeros, ones = (0,) * len(lead), (1,) * (len(lead) + 1)
    left, right = (Slice((*zeros, a), (*lead, b), ones)(x) for a, b in ((0, half), (half, count)))
    if 2 * half > count:
        edges = (0,) * (len(lead) + 1)
        right = Pad(edges, (*zeros, 2 * half - count), edges)(right, shape.full((), rest, x.type.dtype))
    return left, right


class BitReduction(Aggregate):
    """Integers or booleans: no derivative."""

    def out_type(self, x: ArrayType) -> ArrayType:
        if not BITS.holds(x.dtype):
            raise TypeError(f"{self.name}: needs {BITS.words}, not {x}")
        return super().out_type(x)

    @quiet
    def reference(self, x: NumpyArray) -> NumpyArray:
        start = np.asarray(self.start(x.dtype)).astype(carrier(x.dtype))
        found = self.pair().meaning.reduce(x.astype(carrier(x.dtype)), self.dims, initial=start)  # type: ignore[attr-defined]
        return np.asarray(found).astype(x.dtype)


@final
@record
class ReduceAnd(BitReduction):
    """The bits that all elements along `dims` have."""

    name = "reduce_and"

    def pair(self) -> Op:
        return And()

    def start(self, dtype: DType) -> Any:
        return True if dtype == np.bool_ else -1

    def how(self, dtype: DType) -> str | None:
        return "min" if dtype == np.bool_ else None


@final
@record
class ReduceOr(BitReduction):
    """The bits that any element along `dims` has."""

    name = "reduce_or"

    def pair(self) -> Op:
        return Or()

    def start(self, dtype: DType) -> Any:
        return 0

    def how(self, dtype: DType) -> str | None:
        return "max" if dtype == np.bool_ else None


@final
@record
class ReduceXor(BitReduction):
    """The bits that an odd number of the elements along `dims` have."""

    name = "reduce_xor"

    def pair(self) -> Op:
        return Xor()

    def start(self, dtype: DType) -> Any:
        return 0


@final
@record
class Winner(Op):
    """Of values and their numbers, the pair along `dim` whose value is the largest (`wins` is "GT") or the smallest
    ("LT"); of equal ones the one with the lowest number. NaN is more extreme than any number.
    """

    name = "winner"
    single = False
    dim: int
    wins: str

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, index = types
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"winner: dim {self.dim} does not exist in {x}")
        if x.shape != index.shape or not is_integer(index.dtype):
            raise TypeError(f"winner: each element of {x} needs an integer as its number, not {index}")
        if x.dtype.kind == "c":
            raise TypeError(f"winner: complex numbers have no order: {x}")
        return x.without((self.dim,)), index.without((self.dim,))

    def start(self, dtype: DType) -> Any:
        """The value that is the least extreme."""
        return lowest(dtype) if self.wins == "GT" else highest(dtype)

    def factors(self, x: ArrayType, index: ArrayType) -> FactorRule:
        rule = FactorRule.reducing(x.shape, (self.dim,), "")
        return FactorRule(rule.operands * 2, rule.results * 2, rule.sizes, whole=frozenset({self.dim}))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, index), (dx, _) = primals, tangents
        y, found = self(x, index)
        kept = tuple(dim for dim in range(x.type.ndim) if dim != self.dim)
        same = [Compare("EQ")(a, shape.Broadcast(x.type.shape, kept)(b)) for a, b in ((x, y), (index, found))]
        is_it = And()(*same)
        return (y, found), (Sum((self.dim,))(Select()(is_it, dx, shape.zeros_like(x))), None)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x, index = (shape.batch_at(y, dim, 0, axis.size) for y, dim in zip(operands, dims, strict=True))
        return Winner(self.dim + 1, self.wins)(x, index), (0, 0)

    def lower(self, hlo: Hlo, x: Any, index: Any) -> Any:
        out = self.out_types(x.type, index.type)
        if is_float(x.type.dtype):
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(carrier(x.type.dtype)))
        last = integer_range(index.type.dtype)[1]
        starts = [
            hlo.constant(start, ArrayType((), y.type.dtype))
            for start, y in ((self.start(x.type.dtype), x), (last, index))
        ]
        # Value and number are carried together: an extreme that is found first and looked up after may not be there
        # again, once XLA has computed the operand twice, with other roundings.
        y, found = hlo.reduce([x, index], starts, (self.dim,), lambda a, b: self._better(hlo, *a, *b))
        return y if y.type.dtype == out[0].dtype else hlo.op("stablehlo.convert", (y,), out[0]), found

    def _better(self, hlo: Hlo, x: Any, i: Any, y: Any, j: Any) -> list[Any]:
        def logical(how: str, left: Any, right: Any) -> Any:
            return hlo.op(f"stablehlo.{how}", (left, right), left.type)

        wins, ties = compared(hlo, self.wins, x, y), compared(hlo, "EQ", x, y)
        if is_float(x.type.dtype):
            x_is_nan, y_is_nan = compared(hlo, "NE", x, x), compared(hlo, "NE", y, y)
            wins = logical("or", wins, logical("and", x_is_nan, compared(hlo, "EQ", y, y)))
            ties = logical("or", ties, logical("and", x_is_nan, y_is_nan))
        wins = logical("or", wins, logical("and", ties, compared(hlo, "LT", i, j)))
        return [hlo.op("stablehlo.select", (wins, a, b), a.type) for a, b in ((x, y), (i, j))]

    def reference(self, x: NumpyArray, index: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        numbers = index.astype(np.int64)
        order = np.argsort(numbers, self.dim, kind="stable")  # the first extreme is then the one that wins
        wide = np.take_along_axis(x.astype(carrier(x.dtype)), order, self.dim)
        found = (np.argmax if self.wins == "GT" else np.argmin)(wide, self.dim, keepdims=True)
        at = np.take_along_axis(order, found, self.dim)
        y, i = (np.squeeze(np.take_along_axis(z, at, self.dim), self.dim) for z in (x, index))
        return y, i


class ArgExtreme(Op):
    """Where along `dim` the first of the largest or the smallest elements is, counted in `dtype`. NaN is more extreme
    than any number.
    """

    wins: ClassVar[str]  # how the extreme compares with others
    dim: int
    dtype: DType

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"{self.name}: dim {self.dim} does not exist in {x}")
        if not is_integer(self.dtype):
            raise TypeError(f"{self.name}: indices are integers, not {short_name(self.dtype)}")
        if x.dtype.kind == "c":
            raise TypeError(f"{self.name}: complex numbers have no order: {x}")
        if not x.shape[self.dim]:
            raise TypeError(f"{self.name}: dim {self.dim} of {x} is empty")
        return ArrayType(x.without((self.dim,)).shape, self.dtype)

    def factors(self, x: ArrayType) -> FactorRule:
        rule = FactorRule.reducing(x.shape, (self.dim,), "")
        return replace(rule, reduce={}, exchange=frozenset({self.dim}))

    def exchanged(self, factor: int, count: int, *types: ArrayType) -> float:
        (x,) = types
        return float((count - 1) * self.out_type(x).size * (x.dtype.itemsize + np.dtype(np.int32).itemsize))

    def localize(self, shard: Shard, *operands: Any) -> Any:
        """Each device finds its own; then they exchange these, each with its place in the whole."""
        (x,) = operands
        axes, count = shard.cut(self.dim, 0)
        if not axes:
            return self(x)
        winner, piece = Winner(self.dim, self.wins), x.type.shape
        index, inside = counted(shard, piece, self.dim, 0), within(shard, piece, self.dim, 0)
        if inside is not None:  # of equal ones the lowest number wins: padding has the highest
            x = Select()(inside, x, like(x, winner.start(x.type.dtype)))
            index = Select()(inside, index, like(index, integer_range(np.dtype(np.int32))[1]))
        row = (*piece[: self.dim], 1, *piece[self.dim + 1 :])
        gathered = [AllGather(self.dim, axes, count)(shape.Reshape(row)(y)) for y in winner(x, index)]
        _, found = winner(*gathered)
        return found if self.dtype == np.int32 else Convert(self.dtype)(found)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = shape.batch_at(operands[0], dims[0], 0, axis.size)
        return type(self)(self.dim + 1, self.dtype)(x), 0  # type: ignore[call-arg]

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        counted = np.dtype(np.int64 if self.dtype.itemsize > np.dtype(np.int32).itemsize else np.int32)
        index = shape.Iota(x.type.shape, self.dim, counted).lower(hlo)
        _, found = Winner(self.dim, self.wins).lower(hlo, x, index)
        return found if found.type == out else hlo.op("stablehlo.convert", (found,), out)


@final
@record
class Argmax(ArgExtreme):
    """Where the first of the largest elements is."""

    name = "argmax"
    wins = "GT"
    dim: int
    dtype: DType

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.argmax(x.astype(carrier(x.dtype)), self.dim)).astype(self.dtype)


@final
@record
class Argmin(ArgExtreme):
    """Where the first of the smallest elements is."""

    name = "argmin"
    wins = "LT"
    dim: int
    dtype: DType

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.argmin(x.astype(carrier(x.dtype)), self.dim)).astype(self.dtype)
