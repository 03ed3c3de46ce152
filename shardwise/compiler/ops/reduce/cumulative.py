"""Running totals along a dim: cumulative (sum, product, maximum, minimum, log of a sum of powers) and recurrence.

Along a dim that is cut, each device totals its own piece, all devices exchange one slice (the total of each piece), and
each adds to its piece what comes before it.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, accumulation_dtype, is_float, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ops.collective.collectives import AllGather, DeviceIndex
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Sub
from shardwise.compiler.ops.elementwise.base import ANY, INEXACT, NUMBERS, DtypeSet, full_like
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp, Log1p
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import Full, full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Pad, Reverse, Slice, slice_along, valid_mask
from shardwise.compiler.reduction import LOGSUMEXP, MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.shardings.factors import FactorRule

Apply = Callable[..., Any]  # an op and its operands → its result, in the open frame or in StableHLO


def _log_of_sum(apply: Apply, x: Any, y: Any) -> Any:
    larger, apart = apply(Max(), x, y), apply(Sub(), x, y)
    found = apply(Add(), larger, apply(Log1p(), apply(Exp(), apply(Neg(), apply(Abs(), apart)))))
    # Where both are the same infinity, their difference is NaN.
    return apply(Select(), apply(Compare("NE"), apart, apart), apply(Add(), x, y), found)


# How each reduction combines two elements, and the element types that it accepts.
COMBINERS: dict[Reduction, tuple[Callable[[Apply, Any, Any], Any], DtypeSet]] = {
    SUM: (lambda apply, x, y: apply(Add(), x, y), NUMBERS),
    PROD: (lambda apply, x, y: apply(Mul(), x, y), NUMBERS),
    MAX: (lambda apply, x, y: apply(Max(), x, y), ANY),
    MIN: (lambda apply, x, y: apply(Min(), x, y), ANY),
    LOGSUMEXP: (_log_of_sum, DtypeSet("floats", is_float)),
}


class PrefixScan(Op):
    """Operands of one type, and a result that has it too. Element i is made of the elements up to i along `dim`, or,
    where `reverse`, of those from i on. Small floats are totalled in f32.
    """

    dim: int
    reverse: bool

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(types[0].ndim))
        return FactorRule((dims,) * len(types), (dims,), types[0].shape, exchange=frozenset({self.dim}))

    def starts(self, dtype: DType) -> list[Any]:
        """For each operand, the element that changes nothing."""
        raise self.missing_rule("starts")

    def join(self, apply: Apply, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        """The totals of two neighbouring stretches as one. The last is the result."""
        raise self.missing_rule("join")

    def totals(self, *operands: Any) -> list[Any]:
        """The running totals of all that `join` joins."""
        raise self.missing_rule("totals")

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        slices = sum(type.nbytes / max(1, type.shape[self.dim]) for type in types)
        return (count - 1) * slices * accumulation_dtype(types[0].dtype).itemsize / types[0].dtype.itemsize

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        axes, count = context.sharding_of(self.dim)
        piece = context.out_shapes[0][self.dim]
        if not axes or not piece:
            return self(*operands)
        out = self.out_type(*context.global_types)
        wide = accumulation_dtype(out.dtype)
        starts = self.starts(wide)
        # An operand may be padded to another size than the result.
        window = TakeWindow(self.dim, axes, count, 0, piece, piece)
        xs = [x if x.type.shape[self.dim] == piece else window(x) for x in operands]
        xs = [x if x.type.dtype == wide else Convert(wide, x.type.weak)(x) for x in xs]
        if self.reverse:
            xs = [self._without_padding(context, x, start) for x, start in zip(xs, starts, strict=True)]
        totals = self.totals(*xs)
        end = (0, 1) if self.reverse else (piece - 1, piece)
        gathered = [AllGather(self.dim, axes, count)(slice_along(total, self.dim, *end)) for total in totals]
        # What the devices before this one have in all: with the others left out, the total of the whole row.
        shape = gathered[0].type.shape
        here = Broadcast(shape, ())(DeviceIndex(axes)())
        is_before = Compare("GT" if self.reverse else "LT")(Iota(shape, self.dim, np.dtype(np.int32))(), here)
        row = [Select()(is_before, x, full_like(x, start)) for x, start in zip(gathered, starts, strict=True)]
        last = (0, 1) if self.reverse else (count - 1, count)
        before = [self._spread(slice_along(x, self.dim, *last), piece) for x in self.totals(*row)]
        found = self.join(_applied, before, totals)[-1]
        return found if wide == out.dtype else Convert(out.dtype, out.weak)(found)

    def _without_padding(self, context: LocalContext, x: Any, start: Any) -> Any:
        """`x` with `start` past its end: where totals run from there, the padding is the first they see."""
        inside = valid_mask(context, x.type.shape, self.dim)
        return x if inside is None else Select()(inside, x, full_like(x, start))

    def _spread(self, x: Any, size: int) -> Any:
        """One slice, repeated along `dim`."""
        shape = x.type.shape
        kept = tuple(dim for dim in range(len(shape)) if dim != self.dim)
        row = Reshape(tuple(shape[dim] for dim in kept))(x)
        return Broadcast((*shape[: self.dim], size, *shape[self.dim + 1 :]), kept)(row)

    def shifted(self, x: Any, start: Any, back: bool = False) -> Any:
        """Element i of the result is the one that comes before element i; after it where `back`. One end is `start`."""
        low, high = [0] * x.type.ndim, [0] * x.type.ndim
        low[self.dim], high[self.dim] = (-1, 1) if self.reverse != back else (1, -1)
        if not x.type.shape[self.dim]:
            return x
        value = full((), start, x.type.dtype, x.type.weak)
        return Pad(tuple(low), tuple(high), (0,) * len(low))(x, value)

    def lowered(self, hlo: Hlo, operands: Sequence[Any]) -> list[Any]:
        """All totals, in StableHLO."""
        out = self.out_type(*(x.type for x in operands))
        wide = accumulation_dtype(out.dtype)
        if wide != out.dtype:
            operands = [hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide)) for x in operands]
        starts = [hlo.constant(start, ArrayType((), wide)) for start in self.starts(wide)]

        def join(earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
            return self.join(lambda op, *xs: op.lower(hlo, *xs), earlier, later)

        if self.reverse:
            operands = [Reverse((self.dim,)).lower(hlo, x) for x in operands]
        found = _prefixes(hlo, operands, starts, self.dim, join)
        if self.reverse:
            found = [Reverse((self.dim,)).lower(hlo, x) for x in found]
        return found if wide == out.dtype else [hlo.op("stablehlo.convert", (x,), out) for x in found]


def _applied(op: Op, *operands: Any) -> Any:
    return op(*operands)


BLOCK = 8


def _prefixes(
    hlo: Hlo,
    operands: Sequence[Any],
    starts: Sequence[Any],
    dim: int,
    join: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """The totals up to each element, by blocks: those inside each block, and before each the total of the blocks
    before it. Measured beside a tree of neighbours, windows as long as the dim, and a loop: on CPU as fast as the
    tree and compiled in a third of its time, on GPU as fast as windows; a loop wins on CPU and is hopeless on GPU.
    """
    shape = operands[0].type.shape
    size = shape[dim]
    if size < 2:
        return list(operands)
    if size <= BLOCK:
        return hlo.reduce_window(operands, starts, dim, size, join)
    before, after = shape[:dim], shape[dim + 1 :]
    zeros = [0] * len(shape)
    blocks = -(-size // BLOCK)
    high = list(zeros)
    high[dim] = blocks * BLOCK - size
    filled = [
        Pad(tuple(zeros), tuple(high), tuple(zeros)).lower(hlo, x, start)
        for x, start in zip(operands, starts, strict=True)
    ]
    apart = [Reshape((*before, blocks, BLOCK, *after)).lower(hlo, x) for x in filled]
    inside = hlo.reduce_window(apart, starts, dim + 1, BLOCK, join)
    first, last = [0] * len(inside[0].type.shape), list(inside[0].type.shape)
    first[dim + 1] = BLOCK - 1
    ends = [Slice(tuple(first), tuple(last), (1,) * len(first)).lower(hlo, x) for x in inside]
    ends = [Reshape((*before, blocks, *after)).lower(hlo, x) for x in ends]
    low, high = list(zeros), list(zeros)
    low[dim], high[dim] = 1, -1
    earlier = [
        Pad(tuple(low), tuple(high), tuple(zeros)).lower(hlo, x, start)
        for x, start in zip(_prefixes(hlo, ends, starts, dim, join), starts, strict=True)
    ]
    kept = tuple(d + (d > dim) for d in range(len(shape)))
    spread = [Broadcast(inside[0].type.shape, kept).lower(hlo, x) for x in earlier]
    together = [Reshape((*before, blocks * BLOCK, *after)).lower(hlo, x) for x in join(spread, inside)]
    if blocks * BLOCK == size:
        return together
    return [Slice(tuple(zeros), shape, (1,) * len(shape)).lower(hlo, x) for x in together]


@final
@record
class Cumulative(PrefixScan):
    """Element i is the total of the elements up to i along `dim`; of those from i on where `reverse`. `how`: "sum",
    "prod", "max", "min" (NaN from the first one on) or "logsumexp", the logarithm of the sum of powers of e.
    """

    name = "cumulative"
    dim: int
    reduction: Reduction
    reverse: bool = False

    def out_type(self, x: ArrayType) -> ArrayType:
        if self.reduction not in COMBINERS:
            raise TypeError(f"cumulative: no cumulative {self.reduction}; supported: {', '.join(map(str, COMBINERS))}")
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"cumulative: dim {self.dim} does not exist in {x}")
        takes = COMBINERS[self.reduction][1]
        if not takes.contains(x.dtype):
            raise TypeError(f"cumulative: {self.reduction} needs {takes.description}, not {x}")
        return x

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if self.reduction is SUM else ()

    def starts(self, dtype: DType) -> list[Any]:
        return [self.reduction.neutral(dtype)]

    def join(self, apply: Apply, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        return [COMBINERS[self.reduction][0](apply, *earlier, *later)]

    def totals(self, *operands: Any) -> list[Any]:
        return [self(*operands)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        if self.reduction is SUM:
            return y, self(dx)
        before = self.shifted(y, self.starts(y.type.dtype)[0])
        # The total is made of the one before and of the element: how it moves with each of the two.
        if self.reduction is PROD:
            kept, moved = x, Mul()(dx, before)
        elif self.reduction is LOGSUMEXP:
            kept, moved = _share(before, y), Mul()(dx, _share(x, y))
        else:
            stays, wins = Compare("EQ")(before, y), Compare("EQ")(x, y)
            # Equal ones share. What loses gets zero by selection: a weight of zero makes NaN of an infinite tangent.
            weight = Select()(Compare("EQ")(before, x), full_like(x, 0.5), full_like(x, 1))
            kept = Select()(stays, weight, full_like(x, 0))
            moved = Select()(wins, Mul()(dx, weight), zeros_like(x))
        return y, Recurrence(self.dim, self.reverse)(kept, moved)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (Cumulative(self.dim, self.reduction, not self.reverse)(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        assert dim is not None
        return Cumulative(self.dim + (self.dim >= dim), self.reduction, self.reverse)(x), dim

    def lower(self, hlo: Hlo, x: Any) -> Any:
        (found,) = self.lowered(hlo, [x])
        return found

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        def turned(y: NumpyArray) -> NumpyArray:
            return np.flip(y, self.dim) if self.reverse else y

        found = self.reduction.ufunc.accumulate(turned(x).astype(numpy_carrier(x.dtype)), self.dim)
        return turned(np.asarray(found).astype(x.dtype))


def _share(x: Any, y: Any) -> Any:
    """How much of e**y is e**x: of an infinity, all of it is each that is the same."""
    return Exp()(Select()(Compare("EQ")(x, y), zeros_like(x), Sub()(x, y)))


@final
@record
class Recurrence(PrefixScan):
    """Of operands a and b, `y[i] = a[i] * y[i - 1] + b[i]` along `dim`, from `y[0] = b[0]`; where `reverse`, from the
    end. The derivatives of all totals are recurrences, and those of a recurrence are too.
    """

    name = "recurrence"
    dim: int
    reverse: bool = False

    def out_type(self, a: ArrayType, b: ArrayType) -> ArrayType:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise TypeError(f"recurrence: operands must have one shape and one dtype, not {a} and {b}")
        if not 0 <= self.dim < a.ndim:
            raise TypeError(f"recurrence: dim {self.dim} does not exist in {a}")
        if not INEXACT.contains(a.dtype):
            raise TypeError(f"recurrence: needs {INEXACT.description}, not {a}")
        return ArrayType(a.shape, a.dtype, a.weak and b.weak)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((1,),)

    def starts(self, dtype: DType) -> list[Any]:
        return [1, -0.0]

    def join(self, apply: Apply, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        """Over a stretch, y becomes `a y + b`; over two, that of the later of that of the earlier.

        An infinite `a` after nothing does not multiply the nothing, which is known by its negative zero.
        """
        (a, b), (c, d) = earlier, later
        one, low = (apply(Full(b.type.shape, Scalar.of(value, b.type.dtype))) for value in (1, -np.inf))
        is_zero = apply(Compare("EQ"), apply(Div(), one, b), low)
        nothing = apply(And(), apply(Compare("EQ"), a, one), is_zero)
        return [apply(Mul(), a, c), apply(Select(), nothing, d, apply(Add(), apply(Mul(), c, b), d))]

    def totals(self, *operands: Any) -> list[Any]:
        return [Cumulative(self.dim, PROD, self.reverse)(operands[0]), self(*operands)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (a, b), (da, db) = primals, tangents
        y = self(a, b)
        moved = db
        if da is not None:
            by_a = Mul()(da, self.shifted(y, 0))
            moved = by_a if db is None else Add()(by_a, db)
        return y, self(a, moved)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        a, _ = operands
        after = self.shifted(a, 0, back=True)
        return None, Recurrence(self.dim, not self.reverse)(after, cotangent)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        a, b = (batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True))
        return Recurrence(self.dim + 1, self.reverse)(a, b), 0

    def lower(self, hlo: Hlo, a: Any, b: Any) -> Any:
        return self.lowered(hlo, [a, b])[1]

    @ignore_float_errors
    def reference(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        rows = [np.moveaxis(x.astype(numpy_carrier(x.dtype)), self.dim, 0) for x in (a, b)]
        out = np.empty_like(rows[1])
        factor, last = (np.full(out.shape[1:], start, out.dtype) for start in self.starts(out.dtype))
        places = range(len(out))
        for i in reversed(places) if self.reverse else places:
            nothing = (factor == 1) & (1 / last == -np.inf)  # as `join` has it
            factor, last = factor * rows[0][i], np.where(nothing, rows[1][i], rows[0][i] * last + rows[1][i])
            out[i] = last
        return np.moveaxis(out, 0, self.dim).astype(a.dtype)
