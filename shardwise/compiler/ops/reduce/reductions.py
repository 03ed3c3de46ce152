"""Reductions other than sum: reduce_max, reduce_min, reduce_prod, reduce_and, reduce_or, reduce_xor.

Along sharded dims each device reduces its shard. If an all-reduce can combine the results (such as the maxima of
floats), they stay partial until they are needed. Otherwise the devices all-gather them and reduce once more.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.dtypes import DType, accumulation_dtype, has_infinity, highest, is_float, lowest, numpy_carrier
from shardwise.compiler.ir.op import Hlo, HloValue, LocalContext, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.elementwise.arithmetic import Div
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BITS
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr
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
from shardwise.compiler.traffic import Traffic, all_gather


class GatheredReduce(Reduce):
    """A reduction that all-gathers the results of the shards if no all-reduce can combine them."""

    def factors(self, x: ArrayType) -> FactorRule:
        rule = super().factors(x)
        return rule if rule.reduce else replace(rule, need_replication=frozenset(), exchange=frozenset(self.dims))

    def exchange_traffic(self, factor: int, count: int, *types: ArrayType) -> Traffic:
        return all_gather(self.out_type(*types).size * accumulation_dtype(types[0].dtype).itemsize, count)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        out = self.out_type(x.type)
        sharded = [dim for dim in self.dims if context.sharding_of(dim, 0)[0]]
        if not sharded or self.across_shards(out.dtype):
            return self(x)
        wide = accumulation_dtype(out.dtype)
        if wide != out.dtype:
            x = Convert(wide, x.type.weak)(x)
        for dim in sharded:
            valid = valid_mask(context, x.type.shape, dim, 0)
            x = x if valid is None else Select()(valid, x, full_like(x, self.reduction.neutral(wide)))
        local = self(x)
        axes = tuple(axis for dim in sharded for axis in context.sharding_of(dim, 0)[0])
        count = math.prod(context.sharding_of(dim, 0)[1] for dim in sharded)
        result = type(self)((0,))(AllGather(0, axes, count)(Reshape((1, *local.type.shape))(local)))
        return result if wide == out.dtype else Convert(out.dtype, out.weak)(result)


class ReduceExtremum(GatheredReduce):
    """Maximum or minimum of the elements along `dims`. NaN propagates. Ties share the derivative evenly."""

    elementwise_op: ClassVar[Op]  # its lowering orders complex numbers and propagates NaN

    def combine(self, hlo: Hlo, a: HloValue, b: HloValue) -> Any:
        return self.elementwise_op.lower(hlo, a, b)

    def across_shards(self, dtype: DType) -> Reduction | None:
        # There is no all-reduce of complex numbers. For floats, the fill of the padding must be infinite.
        return self.reduction if dtype.kind != "c" and (not is_float(dtype) or has_infinity(dtype)) else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        if not all(x.type.shape[dim] for dim in self.dims):
            return y, None  # the result of an empty reduction is a constant
        is_extremum = Compare("EQ")(x, broadcast_reduced(y, x.type.shape, self.dims))
        count = Sum(self.dims)(Convert(x.type.dtype)(is_extremum))
        total = Sum(self.dims)(Select()(is_extremum, dx, zeros_like(x)))
        return y, Div()(total, count)


@final
@record
class ReduceMax(ReduceExtremum):
    """The maximum along `dims`. The maximum of no elements is the lowest number."""

    name = "reduce_max"
    reduction = MAX
    elementwise_op = Max()

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.max(x.astype(numpy_carrier(x.dtype)), self.dims, initial=lowest(x.dtype))).astype(x.dtype)


@final
@record
class ReduceMin(ReduceExtremum):
    """The minimum along `dims`. The minimum of no elements is the highest number."""

    name = "reduce_min"
    reduction = MIN
    elementwise_op = Min()

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.min(x.astype(numpy_carrier(x.dtype)), self.dims, initial=highest(x.dtype))).astype(x.dtype)


@final
@record
class ReduceProd(GatheredReduce):
    """The product along `dims`. Booleans are combined with AND."""

    name = "reduce_prod"
    reduction = PROD

    def across_shards(self, dtype: DType) -> Reduction | None:
        return MIN if dtype == np.bool_ else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Multiply the two halves repeatedly: x₀x₂ · x₁x₃. Without a division, it works for zeros and infinities."""
        (x,), (dx,) = primals, tangents
        y = self(x)
        wide = numpy_carrier(x.type.dtype)
        product, tangent = (self._flatten_dims(z if wide == z.type.dtype else Convert(wide)(z)) for z in (x, dx))
        while (count := product.type.shape[-1]) > 1:
            half = -(-count // 2)
            left, right = map(Expr, _halves(product, half, 1))
            dleft, dright = map(Expr, _halves(tangent, half, 0))
            product, tangent = (left * right).array, (dleft * right + left * dright).array
        tangent = Sum((tangent.type.ndim - 1,))(tangent)  # at most one element remains
        return y, tangent if wide == y.type.dtype else Convert(y.type.dtype)(tangent)

    def _flatten_dims(self, x: Operand) -> Any:
        """Merge the reduced dims of `x` into one trailing dim."""
        kept = tuple(dim for dim in range(x.type.ndim) if dim not in self.dims)
        transposed = permute(x, (*kept, *self.dims))
        sizes = tuple(x.type.shape[dim] for dim in kept)
        count = x.type.without(kept).size
        return Reshape((*sizes, count))(transposed)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.prod(x, self.dims, dtype=numpy_carrier(x.dtype))).astype(x.dtype)


def _halves(x: Operand, half: int, fill: int) -> tuple[Any, Any]:
    """Split the last dim into its first `half` elements and the others, padded with `fill` to the same size."""
    lead, count = x.type.shape[:-1], x.type.shape[-1]
    zeros, ones = (0,) * len(lead), (1,) * (len(lead) + 1)
    left, right = (Slice((*zeros, a), (*lead, b), ones)(x) for a, b in ((0, half), (half, count)))
    if 2 * half > count:
        edges = (0,) * (len(lead) + 1)
        right = Pad(edges, (*zeros, 2 * half - count), edges)(right, full((), fill, x.type.dtype))
    return left, right


class BitReduction(GatheredReduce):
    """A bitwise reduction of integers or booleans, without a derivative."""

    def out_type(self, x: ArrayType) -> ArrayType:
        if not BITS.contains(x.dtype):
            raise TypeError(f"{self.name}: needs {BITS.description}, not {x}")
        return super().out_type(x)

    @ignore_float_errors
    def reference(self, x: NumpyArray) -> NumpyArray:
        start = np.asarray(self.reduction.neutral(x.dtype)).astype(numpy_carrier(x.dtype))
        result = self.reduction.ufunc.reduce(x.astype(numpy_carrier(x.dtype)), self.dims, initial=start)
        return np.asarray(result).astype(x.dtype)


@final
@record
class ReduceAnd(BitReduction):
    """Bitwise AND of the elements along `dims`."""

    name = "reduce_and"
    reduction = AND

    def across_shards(self, dtype: DType) -> Reduction | None:
        return MIN if dtype == np.bool_ else None


@final
@record
class ReduceOr(BitReduction):
    """Bitwise OR of the elements along `dims`."""

    name = "reduce_or"
    reduction = OR

    def across_shards(self, dtype: DType) -> Reduction | None:
        return MAX if dtype == np.bool_ else None


@final
@record
class ReduceXor(BitReduction):
    """Bitwise XOR of the elements along `dims`."""

    name = "reduce_xor"
    reduction = XOR
