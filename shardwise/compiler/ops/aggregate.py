"""Reductions other than sum: reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor, and argmax argmin."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import ml_dtypes
import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, quiet
from shardwise.compiler.ir.types import ArrayType, DType, carrier, integer_range, is_float, is_integer, short_name
from shardwise.compiler.ops import shape
from shardwise.compiler.ops.bitwise import BITS, And, Or, Xor
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Div, Mul, Select, compared
from shardwise.compiler.ops.extremum import Max, Min
from shardwise.compiler.ops.reduce import Reduction, Sum
from shardwise.compiler.ops.slicing import Pad, Slice
from shardwise.compiler.shardings.factors import FactorRule


def lowest(dtype: DType) -> Any:
    """What every element is at least."""
    if dtype == np.bool_:
        return False
    if is_integer(dtype):
        return integer_range(dtype)[0]
    if dtype.kind == "c":
        return complex(-np.inf, -np.inf)
    return -np.inf if has_infinity(dtype) else ml_dtypes.finfo(dtype).min  # type: ignore[no-untyped-call]


def highest(dtype: DType) -> Any:
    """What every element is at most."""
    if dtype == np.bool_:
        return True
    return integer_range(dtype)[1] if is_integer(dtype) else -lowest(dtype)


def has_infinity(dtype: DType) -> bool:
    return short_name(dtype) != "f8_e4m3fn"


class Extreme(Reduction):
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
@dataclass(frozen=True)
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
@dataclass(frozen=True)
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
@dataclass(frozen=True)
class ReduceProd(Reduction):
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


class BitReduction(Reduction):
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
@dataclass(frozen=True)
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
@dataclass(frozen=True)
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
@dataclass(frozen=True)
class ReduceXor(BitReduction):
    """The bits that an odd number of the elements along `dims` have."""

    name = "reduce_xor"

    def pair(self) -> Op:
        return Xor()

    def start(self, dtype: DType) -> Any:
        return 0


class ArgExtreme(Op):
    """Where along `dim` the first of the largest or the smallest elements is, counted in `dtype`. NaN is more extreme
    than any number.
    """

    wins: ClassVar[str]  # how the extreme compares with others
    dim: int
    dtype: DType

    def start(self, dtype: DType) -> Any:
        """The element that is the least extreme."""
        raise self.missing("start")

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
        return replace(rule, reduce={}, whole=frozenset({self.dim}))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = shape.batch_at(operands[0], dims[0], 0, axis.size)
        return type(self)(self.dim + 1, self.dtype)(x), 0  # type: ignore[call-arg]

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        if is_float(x.type.dtype):
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(carrier(x.type.dtype)))
        counted = np.dtype(np.int64 if self.dtype.itemsize > np.dtype(np.int32).itemsize else np.int32)
        index = shape.Iota(x.type.shape, self.dim, counted).lower(hlo)
        starts = [hlo.constant(self.start(x.type.dtype), ArrayType((), x.type.dtype)), _zero(hlo, counted)]
        # Value and index are carried together: an extreme that is found first and looked up after may not be there
        # again, once XLA has computed the operand twice, with other roundings.
        _, found = hlo.reduce([x, index], starts, (self.dim,), lambda a, b: self._winner(hlo, *a, *b))
        return found if found.type == out else hlo.op("stablehlo.convert", (found,), out)

    def _winner(self, hlo: Hlo, x: Any, i: Any, y: Any, j: Any) -> list[Any]:
        def logical(how: str, left: Any, right: Any) -> Any:
            return hlo.op(f"stablehlo.{how}", (left, right), left.type)

        wins, ties = compared(hlo, self.wins, x, y), compared(hlo, "EQ", x, y)
        if is_float(x.type.dtype):
            x_is_nan, y_is_nan = compared(hlo, "NE", x, x), compared(hlo, "NE", y, y)
            wins = logical("or", wins, logical("and", x_is_nan, compared(hlo, "EQ", y, y)))
            ties = logical("or", ties, logical("and", x_is_nan, y_is_nan))
        wins = logical("or", wins, logical("and", ties, compared(hlo, "LT", i, j)))
        return [hlo.op("stablehlo.select", (wins, a, b), a.type) for a, b in ((x, y), (i, j))]


def _zero(hlo: Hlo, dtype: DType) -> Any:
    return hlo.constant(0, ArrayType((), dtype))


@final
@dataclass(frozen=True)
class Argmax(ArgExtreme):
    """Where the first of the largest elements is."""

    name = "argmax"
    wins = "GT"
    dim: int
    dtype: DType

    def start(self, dtype: DType) -> Any:
        return lowest(dtype)

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.argmax(x.astype(carrier(x.dtype)), self.dim)).astype(self.dtype)


@final
@dataclass(frozen=True)
class Argmin(ArgExtreme):
    """Where the first of the smallest elements is."""

    name = "argmin"
    wins = "LT"
    dim: int
    dtype: DType

    def start(self, dtype: DType) -> Any:
        return highest(dtype)

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.argmin(x.astype(carrier(x.dtype)), self.dim)).astype(self.dtype)
