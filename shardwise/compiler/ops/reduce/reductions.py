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

from shardwise.compiler.dtypes import DType, accumulation_dtype, has_infinity, highest, is_float, lowest, numpy_carrier
from shardwise.compiler.ir.op import Hlo, LocalContext, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BITS
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.broadcast import broadcast_reduced
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.ops.shape.slicing import Pad, Slice, valid_mask
from shardwise.compiler.reduction import AND, MAX, MIN, OR, PROD, XOR, Reduction
from shardwise.compiler.shardings.factors import FactorRule


class GatheredReduce(Reduce):
    """A reduction that finds its pieces' results by an exchange where no collective joins them."""

    def factors(self, x: ArrayType) -> FactorRule:
        rule = super().factors(x)
        return rule if rule.reduce else replace(rule, need_replication=frozenset(), exchange=frozenset(self.dims))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        return float((count - 1) * self.out_type(*types).size * accumulation_dtype(types[0].dtype).itemsize)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        out = self.out_type(x.type)
        cut = [dim for dim in self.dims if context.sharding_of(dim, 0)[0]]
        if not cut or self.across_shards(out.dtype):
            return self(x)
        wide = accumulation_dtype(out.dtype)
        if wide != out.dtype:
            x = Convert(wide, x.type.weak)(x)
        for dim in cut:
            inside = valid_mask(context, x.type.shape, dim, 0)
            x = x if inside is None else Select()(inside, x, full_like(x, self.reduction.neutral(wide)))
        found = self(x)
        axes = tuple(axis for dim in cut for axis in context.sharding_of(dim, 0)[0])
        count = math.prod(context.sharding_of(dim, 0)[1] for dim in cut)
        found = type(self)((0,))(AllGather(0, axes, count)(Reshape((1, *found.type.shape))(found)))
        return found if wide == out.dtype else Convert(out.dtype, out.weak)(found)


class ReduceExtremum(GatheredReduce):
    """The largest or the smallest of the elements along `dims`; NaN where any is. Equal ones share its derivative."""

    pair: ClassVar[Op]  # the elementwise op; its lowering orders complex numbers and keeps NaN

    def combine(self, hlo: Hlo, a: Any, b: Any) -> Any:
        return self.pair.lower(hlo, a, b)

    def across_shards(self, dtype: DType) -> Reduction | None:
        # Complex numbers have no such collective; and what would pad a float must be infinite.
        return self.reduction if dtype.kind != "c" and (not is_float(dtype) or has_infinity(dtype)) else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        if not all(x.type.shape[dim] for dim in self.dims):
            return y, None  # of none, it is a constant
        wins = Compare("EQ")(x, broadcast_reduced(y, x.type.shape, self.dims))
        count = Sum(self.dims)(Convert(x.type.dtype)(wins))
        moved = Sum(self.dims)(Select()(wins, dx, zeros_like(x)))
        return y, Div()(moved, count)


@final
@record
class ReduceMax(ReduceExtremum):
    """The largest of the elements along `dims`: of none, the lowest number."""

    name = "reduce_max"
    reduction = MAX
    pair = Max()

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.max(x.astype(numpy_carrier(x.dtype)), self.dims, initial=lowest(x.dtype))).astype(x.dtype)


@final
@record
class ReduceMin(ReduceExtremum):
    """The smallest of the elements along `dims`: of none, the highest number."""

    name = "reduce_min"
    reduction = MIN
    pair = Min()

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.min(x.astype(numpy_carrier(x.dtype)), self.dims, initial=highest(x.dtype))).astype(x.dtype)


@final
@record
class ReduceProd(GatheredReduce):
    """The product of the elements along `dims`; of booleans, whether all are true."""

    name = "reduce_prod"
    reduction = PROD

    def across_shards(self, dtype: DType) -> Reduction | None:
        return MIN if dtype == np.bool_ else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """By halves: x₀x₁ · x₂x₃. Nothing is divided, so zeros and infinities do no harm."""
        (x,), (dx,) = primals, tangents
        y = self(x)
        wide = numpy_carrier(x.type.dtype)
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
        moved = permute(x, (*kept, *self.dims))
        sizes = tuple(x.type.shape[dim] for dim in kept)
        count = x.type.without(kept).size
        return Reshape((*sizes, count))(moved)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.prod(x, self.dims, dtype=numpy_carrier(x.dtype))).astype(x.dtype)


def _halves(x: Any, half: int, rest: int) -> tuple[Any, Any]:
    """The first `half` elements of the last dim, and the others: filled up with `rest` to as many."""
    lead, count = x.type.shape[:-1], x.type.shape[-1]
    zeros, ones = (0,) * len(lead), (1,) * (len(lead) + 1)
    left, right = (Slice((*zeros, a), (*lead, b), ones)(x) for a, b in ((0, half), (half, count)))
    if 2 * half > count:
        edges = (0,) * (len(lead) + 1)
        right = Pad(edges, (*zeros, 2 * half - count), edges)(right, full((), rest, x.type.dtype))
    return left, right


class BitReduction(GatheredReduce):
    """Integers or booleans: no derivative."""

    def out_type(self, x: ArrayType) -> ArrayType:
        if not BITS.contains(x.dtype):
            raise TypeError(f"{self.name}: needs {BITS.description}, not {x}")
        return super().out_type(x)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        start = np.asarray(self.reduction.neutral(x.dtype)).astype(numpy_carrier(x.dtype))
        found = self.reduction.ufunc.reduce(x.astype(numpy_carrier(x.dtype)), self.dims, initial=start)
        return np.asarray(found).astype(x.dtype)


@final
@record
class ReduceAnd(BitReduction):
    """The bits that all elements along `dims` have."""

    name = "reduce_and"
    reduction = AND

    def across_shards(self, dtype: DType) -> Reduction | None:
        return MIN if dtype == np.bool_ else None


@final
@record
class ReduceOr(BitReduction):
    """The bits that any element along `dims` has."""

    name = "reduce_or"
    reduction = OR

    def across_shards(self, dtype: DType) -> Reduction | None:
        return MAX if dtype == np.bool_ else None


@final
@record
class ReduceXor(BitReduction):
    """The bits that an odd number of the elements along `dims` have."""

    name = "reduce_xor"
    reduction = XOR
