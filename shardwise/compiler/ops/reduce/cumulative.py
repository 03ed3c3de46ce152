"""Prefix scans along a dim: cumulative sum, product, maximum, minimum and logsumexp, and linear recurrence.

Along a sharded dim, each device scans its shard, all-gathers the totals of all shards, and combines its scan with the
total of the preceding shards.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, accumulation_dtype, is_float, numpy_carrier
from shardwise.compiler.ir.jax_checks import check_unsharded
from shardwise.compiler.ir.op import (
    BatchAxis,
    Hlo,
    HloValue,
    LocalContext,
    NumpyArray,
    Op,
    Primal,
    ignore_float_errors,
    known,
)
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, Scalar, ScalarLike
from shardwise.compiler.ops.collective.collectives import AllGather, DeviceIndex
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Sub, add_tangents
from shardwise.compiler.ops.elementwise.base import ANY, INEXACT, NUMBERS, DtypeSet, full_like
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp, Log1p, exp
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import Full, full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse, Slice, slice_along, valid_mask
from shardwise.compiler.reduction import LOGSUMEXP, MAX, MIN, PROD, SUM, Reduction
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.traffic import Traffic, all_gather

Apply = Callable[..., Any]  # (op, *operands) -> result: applies the op in the current frame, or lowers it


def _logaddexp(apply: Apply, x: Operand | HloValue, y: Operand | HloValue) -> Any:
    larger, difference = apply(Max(), x, y), apply(Sub(), x, y)
    result = apply(Add(), larger, apply(Log1p(), apply(Exp(), apply(Neg(), apply(Abs(), difference)))))
    # The difference of two equal infinities is NaN.
    return apply(Select(), apply(Compare("NE"), difference, difference), apply(Add(), x, y), result)


# How each reduction combines two elements, and the dtypes that it accepts.
COMBINERS: dict[Reduction, tuple[Callable[[Apply, Any, Any], Any], DtypeSet]] = {
    SUM: (lambda apply, x, y: apply(Add(), x, y), NUMBERS),
    PROD: (lambda apply, x, y: apply(Mul(), x, y), NUMBERS),
    MAX: (lambda apply, x, y: apply(Max(), x, y), ANY),
    MIN: (lambda apply, x, y: apply(Min(), x, y), ANY),
    LOGSUMEXP: (_logaddexp, DtypeSet("floats", is_float)),
}


class PrefixScan(Op):
    """An inclusive prefix scan with an associative `combine`. Operands and result have the same type.

    Element i of the result depends on the elements up to i along `dim`; with `reverse`, on the elements from i on.
    Floats narrower than f32 are accumulated in f32.
    """

    dim: int
    reverse: bool

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(types[0].ndim))
        return FactorRule((dims,) * len(types), (dims,), types[0].shape, exchange=frozenset({self.dim}))

    def check_as_jax(self, *types: ArrayType) -> None:
        for type in types:
            check_unsharded(self.name, type, (self.dim,))

    def neutrals(self, dtype: DType) -> list[Any]:
        """Return the neutral element of each operand."""
        raise self.missing_rule("neutrals")

    def combine(self, apply: Apply, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        """Combine the totals of two adjacent ranges, one total per operand. The last is the result."""
        raise self.missing_rule("combine")

    def scans(self, *operands: Operand) -> list[Any]:
        """Return the scans of all totals that `combine` combines, one per operand."""
        raise self.missing_rule("scans")

    def exchange_traffic(self, factor: int, count: int, *types: ArrayType) -> Traffic:
        slices = sum(type.nbytes / max(1, type.shape[self.dim]) for type in types)
        return all_gather(slices * accumulation_dtype(types[0].dtype).itemsize / types[0].dtype.itemsize, count)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        axes, count = context.sharding_of(self.dim)
        shard_size = context.out_shapes[0][self.dim]
        if not axes or not shard_size:
            return self(*operands)
        out = self.out_type(*context.global_types)
        wide = accumulation_dtype(out.dtype)
        neutrals = self.neutrals(wide)
        # The operand and the result may have different padded sizes.
        window = TakeWindow(self.dim, axes, count, 0, shard_size, shard_size)
        xs = [x if x.type.shape[self.dim] == shard_size else window(x) for x in operands]
        xs = [x if x.type.dtype == wide else Convert(wide, x.type.weak)(x) for x in xs]
        if self.reverse:
            xs = [self._fill_padding(context, x, neutral) for x, neutral in zip(xs, neutrals, strict=True)]
        scans = self.scans(*xs)
        end = (0, 1) if self.reverse else (shard_size - 1, shard_size)
        gathered = [AllGather(self.dim, axes, count)(slice_along(scan, self.dim, *end)) for scan in scans]
        # The total of the preceding shards: mask the others with the neutral element, and scan.
        shape = gathered[0].type.shape
        device = Broadcast(shape, ())(DeviceIndex(axes)())
        is_before = Compare("GT" if self.reverse else "LT")(Iota(shape, self.dim, np.dtype(np.int32))(), device)
        masked = [Select()(is_before, x, full_like(x, neutral)) for x, neutral in zip(gathered, neutrals, strict=True)]
        last = (0, 1) if self.reverse else (count - 1, count)
        before = [self._repeat(slice_along(x, self.dim, *last), shard_size) for x in self.scans(*masked)]
        result = self.combine(_apply, before, scans)[-1]
        return result if wide == out.dtype else Convert(out.dtype, out.weak)(result)

    def _fill_padding(self, context: LocalContext, x: Operand, neutral: ScalarLike) -> Any:
        """Replace the padding of `x` by the neutral element, because a reverse scan starts at the padding."""
        valid = valid_mask(context, x.type.shape, self.dim)
        return x if valid is None else Select()(valid, x, full_like(x, neutral))

    def _repeat(self, x: Operand, size: int) -> Any:
        """Repeat a slice `size` times along `dim`."""
        shape = x.type.shape
        kept = tuple(dim for dim in range(len(shape)) if dim != self.dim)
        squeezed = Reshape(tuple(shape[dim] for dim in kept))(x)
        return Broadcast((*shape[: self.dim], size, *shape[self.dim + 1 :]), kept)(squeezed)

    def shift(self, x: Operand, fill: ScalarLike, back: bool = False) -> Any:
        """Shift by one element in scan order, or against it with `back`. The first or last element is `fill`."""
        low, high = [0] * x.type.ndim, [0] * x.type.ndim
        low[self.dim], high[self.dim] = (-1, 1) if self.reverse != back else (1, -1)
        if not x.type.shape[self.dim]:
            return x
        value = full((), fill, x.type.dtype, x.type.weak)
        return Pad(tuple(low), tuple(high), (0,) * len(low))(x, value)

    def lower_scans(self, hlo: Hlo, operands: Sequence[Any]) -> list[Any]:
        """Emit the scans of all operands in StableHLO."""
        out = self.out_type(*(x.type for x in operands))
        wide = accumulation_dtype(out.dtype)
        if wide != out.dtype:
            operands = [hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide)) for x in operands]
        neutrals = [hlo.constant(neutral, ArrayType((), wide)) for neutral in self.neutrals(wide)]

        def combine(earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
            return self.combine(lambda op, *xs: op.lower(hlo, *xs), earlier, later)

        if self.reverse:
            operands = [Reverse((self.dim,)).lower(hlo, x) for x in operands]

        def scan(operands: Sequence[Any], dim: int) -> list[Any]:
            return hlo.reduce_window(operands, neutrals, dim, operands[0].type.shape[dim], combine)

        def apply(op: Op, *xs: Any) -> Any:
            return op.lower(hlo, *xs)

        results = blocked_scan(apply, scan, operands, neutrals, self.dim, combine)
        if self.reverse:
            results = [Reverse((self.dim,)).lower(hlo, x) for x in results]
        return results if wide == out.dtype else [hlo.op("stablehlo.convert", (x,), out) for x in results]


def _apply(op: Op, *operands: Operand) -> Any:
    return op(*operands)


BLOCK = 8
# A reduce_window of n elements combines n² elements, and each level of blocks adds kernels to compile. There are so few
# totals that saving one level is worth a larger window. XLA's CPU backend splits windows larger than 16 itself.
TOTALS_BLOCK = 16


def blocked_scan(
    apply: Apply,
    scan: Callable[[Sequence[Any], int], list[Any]],
    operands: Sequence[Any],
    neutrals: Sequence[Any],
    dim: int,
    combine: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    largest_window: int = BLOCK,
) -> list[Any]:
    """Scan in blocks: scan each block, scan the totals of the blocks, and combine the two.

    Up to `largest_window` elements are scanned as one block. `apply` applies an op, and `scan` scans along a dim.

    Measured against alternatives: on CPU it is as fast as a tree of pairwise combinations and compiles in a third of
    the time; on GPU it is as fast as a reduce_window over the whole dim. A loop is the fastest on CPU but far too slow
    on GPU.
    """
    shape = operands[0].type.shape
    size = shape[dim]
    if size < 2:
        return list(operands)
    if size <= largest_window:
        return scan(operands, dim)
    before, after = shape[:dim], shape[dim + 1 :]
    zeros = [0] * len(shape)
    blocks = -(-size // BLOCK)
    high = list(zeros)
    high[dim] = blocks * BLOCK - size
    padded = [
        apply(Pad(tuple(zeros), tuple(high), tuple(zeros)), x, neutral)
        for x, neutral in zip(operands, neutrals, strict=True)
    ]
    blocked = [apply(Reshape((*before, blocks, BLOCK, *after)), x) for x in padded]
    inside = scan(blocked, dim + 1)
    first, last = [0] * len(inside[0].type.shape), list(inside[0].type.shape)
    first[dim + 1] = BLOCK - 1
    totals = [apply(Slice(tuple(first), tuple(last), (1,) * len(first)), x) for x in inside]
    totals = [apply(Reshape((*before, blocks, *after)), x) for x in totals]
    scanned_totals = blocked_scan(apply, scan, totals, neutrals, dim, combine, TOTALS_BLOCK)
    low, high = list(zeros), list(zeros)
    low[dim], high[dim] = 1, -1
    earlier = [
        apply(Pad(tuple(low), tuple(high), tuple(zeros)), x, neutral)
        for x, neutral in zip(scanned_totals, neutrals, strict=True)
    ]
    kept = tuple(d + (d > dim) for d in range(len(shape)))
    repeated = [apply(Broadcast(inside[0].type.shape, kept), x) for x in earlier]
    merged = [apply(Reshape((*before, blocks * BLOCK, *after)), x) for x in combine(repeated, inside)]
    if blocks * BLOCK == size:
        return merged
    return [apply(Slice(tuple(zeros), shape, (1,) * len(shape)), x) for x in merged]


@final
@record
class Cumulative(PrefixScan):
    """Cumulative reduction along `dim`; with `reverse`, from the end.

    `reduction` is SUM, PROD, MAX, MIN (NaN propagates) or LOGSUMEXP.
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
        dtypes = COMBINERS[self.reduction][1]
        if not dtypes.contains(x.dtype):
            raise TypeError(f"cumulative: {self.reduction} needs {dtypes.description}, not {x}")
        return x

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if self.reduction is SUM else ()

    def neutrals(self, dtype: DType) -> list[Any]:
        return [self.reduction.neutral(dtype)]

    def combine(self, apply: Apply, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        return [COMBINERS[self.reduction][0](apply, *earlier, *later)]

    def scans(self, *operands: Operand) -> list[Any]:
        return [self(*operands)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        if self.reduction is SUM:
            return y, self(dx)
        if self.reduction in (MAX, MIN):
            return y, self._tangent_of_extremum(x, dx)
        before = self.shift(y, self.neutrals(y.type.dtype)[0])
        # y[i] = combine(y[i - 1], x[i]), so the tangent is a recurrence in the two partial derivatives of `combine`.
        if self.reduction is PROD:
            slope, tangent = x, Mul()(dx, before)
        else:
            slope = _exp_difference(Expr(before), Expr(y)).array
            tangent = (Expr(dx) * _exp_difference(Expr(x), Expr(y))).array
        return y, Recurrence(self.dim, self.reverse)(slope, tangent)

    def _tangent_of_extremum(self, x: Operand, dx: Operand) -> Any:
        """Return the tangent of a cumulative maximum or minimum.

        Where two totals are equal, each contributes half of its tangent. The weights of several equal elements
        therefore depend on the order in which totals are combined. It is the order of `lax.associative_scan`, as in
        JAX.
        """

        def combine(earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
            (total,) = self.combine(_apply, earlier[:1], later[:1])
            is_tie = Expr(earlier[0]) == Expr(later[0])
            weight = where(is_tie, 0.5, Expr(total).full_like(1))
            # Select, not multiply, by zero: zero times an infinite tangent would be NaN.
            from_earlier, from_later = (
                where(Expr(value) == Expr(total), Expr(tangent) * weight, 0) for value, tangent in (earlier, later)
            )
            return [total, (from_earlier + from_later).array]

        operands = [Reverse((self.dim,))(operand) for operand in (x, dx)] if self.reverse else [x, dx]
        _, tangent = _tree_scan(operands, self.dim, combine)
        return Reverse((self.dim,))(tangent) if self.reverse else tangent

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (Cumulative(self.dim, self.reduction, not self.reverse)(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = operands, dims
        assert dim is not None
        return Cumulative(self.dim + (self.dim >= dim), self.reduction, self.reverse)(x), dim

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        (result,) = self.lower_scans(hlo, [x])
        return result

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        def flip(y: NumpyArray) -> NumpyArray:
            return np.flip(y, self.dim) if self.reverse else y

        result = self.reduction.ufunc.accumulate(flip(x).astype(numpy_carrier(x.dtype)), self.dim)
        return flip(np.asarray(result).astype(x.dtype))


def _tree_scan(
    operands: Sequence[Any], dim: int, combine: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
) -> list[Any]:
    """Scan by combining adjacent pairs, scanning their totals, and combining totals with the elements in between."""
    size = operands[0].type.shape[dim]
    if size < 2:
        return list(operands)

    def every_second(start: int, stop: int) -> list[Any]:
        return [slice_along(x, dim, start, stop, 2) for x in operands]

    at_odd = _tree_scan(combine(every_second(0, size - 1), every_second(1, size)), dim, combine)
    at_even = every_second(0, 1)
    if size > 2:
        earlier = [slice_along(x, dim, 0, (size - 1) // 2) for x in at_odd]
        later = combine(earlier, every_second(2, size))
        at_even = [Concatenate(dim)(*pair) for pair in zip(at_even, later, strict=True)]
    return [_interleave(*pair, dim) for pair in zip(at_even, at_odd, strict=True)]


def _interleave(even: Operand, odd: Operand, dim: int) -> Any:
    """Interleave two arrays. `even` has as many elements as `odd`, or one more."""
    zeros = (0,) * even.type.ndim
    is_dim = [number == dim for number in range(even.type.ndim)]
    has_equal_sizes = even.type.shape[dim] == odd.type.shape[dim]
    zero = full((), 0, even.type.dtype, even.type.weak)
    at_even = Pad(zeros, tuple(int(here and has_equal_sizes) for here in is_dim), tuple(map(int, is_dim)))(even, zero)
    high = tuple(int(here and not has_equal_sizes) for here in is_dim)
    at_odd = Pad(tuple(map(int, is_dim)), high, tuple(map(int, is_dim)))(odd, zero)
    return Add()(at_even, at_odd)


def _exp_difference(x: Expr, y: Expr) -> Expr:
    """Return `exp(x - y)`, and 1 where both are the same infinity."""
    return exp(where(x == y, 0, x - y))


@final
@record
class Recurrence(PrefixScan):
    """The linear recurrence `y[i] = a[i] * y[i - 1] + b[i]` along `dim`, with `y[0] = b[0]`.

    With `reverse` it runs from the end. The tangents of all cumulative reductions, and of recurrences, are recurrences.
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

    def neutrals(self, dtype: DType) -> list[Any]:
        return [1, -0.0]

    def combine(self, apply: Apply, earlier: Sequence[Any], later: Sequence[Any]) -> list[Any]:
        """Compose the affine maps `a y + b` of two adjacent ranges.

        The neutral element (1, -0.0) must not be multiplied by an infinite `a`. It is recognized by its negative zero.
        """
        (a, b), (c, d) = earlier, later
        one, low = (apply(Full(b.type.shape, Scalar.from_value(value, b.type.dtype))) for value in (1, -np.inf))
        is_zero = apply(Compare("EQ"), apply(Div(), one, b), low)
        is_neutral = apply(And(), apply(Compare("EQ"), a, one), is_zero)
        return [apply(Mul(), a, c), apply(Select(), is_neutral, d, apply(Add(), apply(Mul(), c, b), d))]

    def scans(self, *operands: Operand) -> list[Any]:
        return [Cumulative(self.dim, PROD, self.reverse)(operands[0]), self(*operands)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (a, b), (da, db) = primals, tangents
        y = self(a, b)
        tangent = db
        if da is not None:
            tangent = add_tangents(Mul()(da, self.shift(y, 0)), db)
        return y, self(a, tangent)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        a, _ = operands
        after = self.shift(known(a), 0, back=True)
        return None, Recurrence(self.dim, not self.reverse)(after, cotangent)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        a, b = (batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True))
        return Recurrence(self.dim + 1, self.reverse)(a, b), 0

    def lower(self, hlo: Hlo, a: HloValue, b: HloValue) -> Any:
        return self.lower_scans(hlo, [a, b])[1]

    @ignore_float_errors
    def reference(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        rows = [np.moveaxis(x.astype(numpy_carrier(x.dtype)), self.dim, 0) for x in (a, b)]
        out = np.empty_like(rows[1])
        factor, last = (np.full(out.shape[1:], neutral, out.dtype) for neutral in self.neutrals(out.dtype))
        indices = range(len(out))
        for i in reversed(indices) if self.reverse else indices:
            is_neutral = (factor == 1) & (1 / last == -np.inf)  # as in `combine`
            factor, last = factor * rows[0][i], np.where(is_neutral, rows[1][i], rows[0][i] * last + rows[1][i])
            out[i] = last
        return np.moveaxis(out, 0, self.dim).astype(a.dtype)
