"""sort and top_k.

To sort along a sharded dim, one all-to-all moves complete rows to single devices, and another restores the layout. If
there are too few rows, the operands are all-gathered instead. For top_k, each device computes the k largest elements of
its shard, and only these candidates are all-gathered.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_integer, lowest, numpy_carrier
from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.jax_checks import check_unsharded
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.collective.whole_rows import RowExchange
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.select import Select, lower_compare
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Slice, valid_mask
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.traffic import Traffic, all_gather, one_after_another

INDEX = np.dtype(np.int32)
_CUB_SIZE = 16385  # XLA sorts rows of at least so many elements with CUB
_MIN_K = 17  # XLA's GPU kernel for k of up to 16 drops NaN, so compute at least 17 and slice


@final
@record
class Sort(Op):
    """Sort all operands along `dim` by the lexicographic order of the first `keys` operands. The sort is stable.

    NaN compares greater than all numbers, and 0.0 equals -0.0. Complex numbers are compared by real part, then by
    imaginary part. With `descending` the order is reversed, so that NaN comes first; the sort is still stable.
    """

    fusion = Fusion(overwrites=True)
    name = "sort"
    accepts_keys = True
    single = False
    dim: int
    keys: int = 1
    descending: bool = False

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if not types:
            raise TypeError("sort: needs at least one operand")
        if len({type.shape for type in types}) != 1:
            raise TypeError(f"sort: operands must have one shape, not {', '.join(map(str, types))}")
        if not 0 <= self.dim < types[0].ndim:
            raise TypeError(f"sort: dim {self.dim} does not exist in {types[0]}")
        if not 1 <= self.keys <= len(types):
            raise TypeError(
                f"sort: the number of keys must be from 1 to {len(types)}, the number of operands, not {self.keys}"
            )
        return types

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(types[0].ndim))
        tables = (dims,) * len(types)
        return FactorRule(tables, tables, types[0].shape, exchange=frozenset({self.dim}))

    def check_as_jax(self, *types: ArrayType) -> None:
        for type in types:
            check_unsharded(self.name, type, (self.dim,))

    def exchange_traffic(self, factor: int, count: int, *types: ArrayType) -> Traffic:
        exchange = RowExchange.from_shape(types[0].shape, self.dim, (), count)
        shard_size = -(-types[0].shape[self.dim] // count)
        row_bytes = [shard_size * type.dtype.itemsize for type in types]
        return one_after_another(*[exchange.traffic(nbytes, nbytes) for nbytes in row_bytes])

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        axes, count = context.sharding_of(self.dim)
        if not axes:
            return self(*operands)
        exchange = RowExchange.from_shape(context.out_shapes[0], self.dim, axes, count)
        rows = [exchange.gather(x, context.global_types[0].shape[self.dim]) for x in operands]
        sorted_rows = Sort(1, self.keys, self.descending)(*rows)
        return tuple(
            exchange.scatter(x, shape[self.dim]) for x, shape in zip(sorted_rows, context.out_shapes, strict=True)
        )

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        index = Iota(primals[0].type.shape, self.dim, INDEX)()
        *results, order = self(*primals, index)
        out_tangents = [None if tangent is None else take_along_dim(tangent, order, self.dim) for tangent in tangents]
        return tuple(results), out_tangents

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)]
        return Sort(self.dim + 1, self.keys, self.descending)(*batched), (0,) * len(batched)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        def precedes(x: Sequence[Any], y: Sequence[Any]) -> Any:
            left, right = (_comparison_keys(hlo, z[: self.keys]) for z in ((y, x) if self.descending else (x, y)))
            result = None
            for a, b in reversed(list(zip(left, right, strict=True))):
                is_less = _is_less(hlo, a, b)
                if result is not None:
                    is_tie = _logical(hlo, "not", _logical(hlo, "or", is_less, _is_less(hlo, b, a)))
                    is_less = _logical(hlo, "or", is_less, _logical(hlo, "and", is_tie, result))
                result = is_less
            return result

        return tuple(hlo.sort(operands, self.dim, precedes))

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        ranks = []
        for x in operands[: self.keys]:
            wide = x.astype(numpy_carrier(x.dtype))
            for part in (wide.real, wide.imag) if x.dtype.kind == "c" else (wide,):
                _, rank = np.unique(part, return_inverse=True)
                ranks.append(rank.reshape(x.shape) * (-1 if self.descending else 1))
        order = np.lexsort(ranks[::-1], self.dim)
        return tuple(np.take_along_axis(x, order, self.dim) for x in operands)


def _comparison_keys(hlo: Hlo, elements: Sequence[Any]) -> list[Any]:
    """Convert elements to the real numbers by which they are compared."""
    keys = []
    for x in elements:
        if x.type.dtype.kind == "c":
            part = x.type.with_dtype(np.float32 if x.type.dtype == np.complex64 else np.float64)
            keys += [hlo.op(f"stablehlo.{name}", (x,), part) for name in ("real", "imag")]
        elif is_float(x.type.dtype) and numpy_carrier(x.type.dtype) != x.type.dtype:
            keys.append(hlo.op("stablehlo.convert", (x,), x.type.with_dtype(numpy_carrier(x.type.dtype))))
        else:
            keys.append(x)
    return keys


def _is_less(hlo: Hlo, x: HloValue, y: HloValue) -> Any:
    """Lower `x < y`, with NaN greater than all numbers."""
    less = lower_compare(hlo, "LT", x, y)
    if not is_float(x.type.dtype):
        return less
    before_nan = _logical(hlo, "and", lower_compare(hlo, "EQ", x, x), lower_compare(hlo, "NE", y, y))
    return _logical(hlo, "or", less, before_nan)


def _logical(hlo: Hlo, how: str, *operands: HloValue) -> Any:
    return hlo.op(f"stablehlo.{how}", operands, operands[0].type)


@final
@record
class TopK(Op):
    """The `k` largest elements along the last dim in descending order, and their indices. Lower indices win ties.

    NaN compares greater than all numbers, and 0.0 greater than -0.0.
    """

    name = "top_k"
    single = False
    k: int

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if not x.ndim:
            raise TypeError(f"top_k: needs an array of rank 1 or more, not {x}")
        if not 0 <= self.k <= x.shape[-1]:
            raise TypeError(f"top_k: k must be from 0 to {x.shape[-1]}, the size of the last dim of {x}, not {self.k}")
        if x.dtype.kind == "c":
            raise TypeError(f"top_k: complex numbers have no order: {x}")
        shape = (*x.shape[:-1], self.k)
        return x.with_shape(shape), ArrayType(shape, INDEX)

    def factors(self, x: ArrayType) -> FactorRule:
        lead = tuple((dim,) for dim in range(x.ndim - 1))
        last, k_factor = x.ndim - 1, x.ndim
        result = (*lead, (k_factor,))
        return FactorRule(
            ((*lead, (last,)),),
            (result, result),
            (*x.shape, self.k),
            need_replication=frozenset({k_factor}),
            exchange=frozenset({last}),
        )

    def check_as_jax(self, x: ArrayType) -> None:
        check_unsharded(self.name, x, (x.ndim - 1,))

    def fused_bytes(self, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> float:
        return sum(type.nbytes for type in operands)

    def workspace_bytes(self, *types: ArrayType) -> int | None:
        """XLA sorts all elements with their indices, and slices the result.

        Rows that are longer than CUB's threshold are not sorted in place: CUB reads the indices, writes other arrays,
        and needs scratch memory of the same size.
        """
        (x,) = types
        indices = x.size * INDEX.itemsize
        return indices if x.shape[-1] < _CUB_SIZE else indices + 2 * (x.nbytes + indices)

    def exchange_traffic(self, factor: int, count: int, *types: ArrayType) -> Traffic:
        (x,) = types
        candidates = min(self.k, -(-x.shape[-1] // count)) * x.size // max(1, x.shape[-1])
        gathered = [all_gather(candidates * dtype.itemsize, count) for dtype in (x.dtype, INDEX)]
        return one_after_another(*gathered)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        last = x.type.ndim - 1
        axes, count = context.sharding_of(last, 0)
        if not axes or not self.k:
            return self(x)
        local_shape = x.type.shape
        is_valid = valid_mask(context, local_shape, last, 0)
        # Padding has the highest indices, so that it loses all ties with elements of the array.
        x = x if is_valid is None else Select()(is_valid, x, full_like(x, lowest(x.type.dtype)))
        values, indices = TopK(min(self.k, local_shape[last]))(x)
        indices = Add()(indices, Broadcast(indices.type.shape, ())(context.offset(last, INDEX, 0)))
        candidates, candidate_indices = (AllGather(last, axes, count)(y) for y in (values, indices))
        # Equal candidates are in index order, so that lower indices still win ties.
        values, positions = self(candidates)
        return values, take_along_dim(candidate_indices, positions, last)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        values, indices = self(x)
        return (values, indices), (take_along_dim(dx, indices, x.type.ndim - 1), None)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(batch_dim_at(operands[0], dims[0], 0, axis.size)), (0, 0)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        out = self.out_types(x.type)
        if not x.type.size or not self.k:
            return tuple(hlo.constant(0, type.strong()) for type in out)
        wide = _comparable(x.type.dtype)
        if wide != x.type.dtype:
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide))
        if is_float(wide):  # replace NaN with a negative sign, which XLA treats as the smallest number
            nan = hlo.constant(np.nan, x.type.strong())
            x = hlo.op("stablehlo.select", (lower_compare(hlo, "NE", x, x), nan, x), x.type)
        k = min(max(self.k, _MIN_K), x.type.shape[-1])
        types = [ArrayType((*x.type.shape[:-1], k), dtype) for dtype in (wide, INDEX)]
        start, step = (0,) * x.type.ndim, (1,) * x.type.ndim
        values, indices = (
            Slice(start, out[1].shape, step).lower(hlo, y)
            for y in hlo.many("chlo.top_k", (x,), types, f"k = {k} : i64")
        )
        return values if wide == out[0].dtype else hlo.op("stablehlo.convert", (values,), out[0]), indices

    def reference(self, x: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        key = x.astype(np.int8 if x.dtype == np.bool_ else numpy_carrier(x.dtype))
        if is_float(x.dtype):
            bits = key.view(f"i{key.dtype.itemsize}")
            highest = np.iinfo(bits.dtype).max
            # The bits of negative floats are in descending order.
            key = np.where(np.isnan(key), highest, np.where(bits < 0, bits ^ highest, bits))
        indices = np.argsort(~key, -1, kind="stable")[..., : self.k]
        return np.take_along_axis(x, indices, -1), indices.astype(INDEX)


def _comparable(dtype: DType) -> DType:
    """Return a dtype that represents all values of `dtype` and in which top_k is fast."""
    narrow = dtype == np.bool_ or (is_integer(dtype) and dtype.itemsize <= 2)
    return np.dtype(np.float32) if narrow else numpy_carrier(dtype)


def take_along_dim(x: Operand, indices: Operand, dim: int) -> Any:
    """Gather elements of `x` along `dim`; the other dims are batch dims. Indices must be unique and in range."""
    batch_dims = tuple(d for d in range(x.type.ndim) if d != dim)
    sizes = tuple(min(1, size) for size in x.type.shape)
    gather = Gather((), (dim,), batch_dims, batch_dims, (dim,), sizes, unique=True)
    return gather(x, Reshape((*indices.type.shape, 1))(indices))
