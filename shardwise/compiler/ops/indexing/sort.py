"""Elements in order along a dim: sort and top_k.

Along a dim that is cut, a sort brings whole rows to single devices (an exchange of all with all, where there are rows
enough; else everything is gathered) and takes them back. The largest k need less: each device finds its own k, and only
these are exchanged.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_integer, lowest, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op
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

INDEX = np.dtype(np.int32)
_ENOUGH = 17  # XLA's GPU kernel for up to 16 of many drops NaN: more are found another way


@final
@record
class Sort(Op):
    """All operands with their elements along `dim` in the order of the first `keys` of them: of the first, where that
    is equal of the second, and so on; where all are equal, as before.

    NaN comes after all numbers, and 0.0 equals -0.0. Complex numbers go by real part, then by imaginary part.
    `descending`: the other way round, NaN first; but what is equal stays as before.
    """

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
            raise TypeError(f"sort: of {len(types)} operands 1 to {len(types)} can be keys, not {self.keys}")
        return types

    def factors(self, *types: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(types[0].ndim))
        tables = (dims,) * len(types)
        return FactorRule(tables, tables, types[0].shape, exchange=frozenset({self.dim}))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        piece = -(-types[0].shape[self.dim] // count) * sum(type.dtype.itemsize for type in types)
        return RowExchange.of(types[0].shape, self.dim, (), count).bytes_sent(piece, piece)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        axes, count = context.sharding_of(self.dim)
        if not axes:
            return self(*operands)
        rows = RowExchange.of(context.out_shapes[0], self.dim, axes, count)
        whole = [rows.gather(x, context.global_types[0].shape[self.dim]) for x in operands]
        found = Sort(1, self.keys, self.descending)(*whole)
        return tuple(rows.scatter(row, shape[self.dim]) for row, shape in zip(found, context.out_shapes, strict=True))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        index = Iota(primals[0].type.shape, self.dim, INDEX)()
        *found, order = self(*primals, index)
        moved = [None if tangent is None else take_along_dim(tangent, order, self.dim) for tangent in tangents]
        return tuple(found), moved

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)]
        return Sort(self.dim + 1, self.keys, self.descending)(*batched), (0,) * len(batched)

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        def comes_first(x: Sequence[Any], y: Sequence[Any]) -> Any:
            left, right = (_keys(hlo, z[: self.keys]) for z in ((y, x) if self.descending else (x, y)))
            found = None
            for a, b in reversed(list(zip(left, right, strict=True))):
                first = _is_less(hlo, a, b)
                if found is not None:
                    tied = _logical(hlo, "not", _logical(hlo, "or", first, _is_less(hlo, b, a)))
                    first = _logical(hlo, "or", first, _logical(hlo, "and", tied, found))
                found = first
            return found

        return tuple(hlo.sort(operands, self.dim, comes_first))

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        ranks = []
        for x in operands[: self.keys]:
            wide = x.astype(numpy_carrier(x.dtype))
            for part in (wide.real, wide.imag) if x.dtype.kind == "c" else (wide,):
                _, rank = np.unique(part, return_inverse=True)
                ranks.append(rank.reshape(x.shape) * (-1 if self.descending else 1))
        order = np.lexsort(ranks[::-1], self.dim)
        return tuple(np.take_along_axis(x, order, self.dim) for x in operands)


def _keys(hlo: Hlo, elements: Sequence[Any]) -> list[Any]:
    """The numbers by which elements are compared."""
    found = []
    for x in elements:
        if x.type.dtype.kind == "c":
            part = x.type.with_dtype(np.float32 if x.type.dtype == np.complex64 else np.float64)
            found += [hlo.op(f"stablehlo.{name}", (x,), part) for name in ("real", "imag")]
        elif is_float(x.type.dtype) and numpy_carrier(x.type.dtype) != x.type.dtype:
            found.append(hlo.op("stablehlo.convert", (x,), x.type.with_dtype(numpy_carrier(x.type.dtype))))
        else:
            found.append(x)
    return found


def _is_less(hlo: Hlo, x: Any, y: Any) -> Any:
    less = lower_compare(hlo, "LT", x, y)
    if not is_float(x.type.dtype):
        return less
    before_nan = _logical(hlo, "and", lower_compare(hlo, "EQ", x, x), lower_compare(hlo, "NE", y, y))
    return _logical(hlo, "or", less, before_nan)


def _logical(hlo: Hlo, how: str, *operands: Any) -> Any:
    return hlo.op(f"stablehlo.{how}", operands, operands[0].type)


@final
@record
class TopK(Op):
    """The `k` largest elements along the last dim, largest first, and where they are; of equal ones the first.

    NaN is larger than any number, and 0.0 than -0.0.
    """

    name = "top_k"
    single = False
    k: int

    def out_types(self, x: ArrayType) -> tuple[ArrayType, ...]:  # type: ignore[override]
        if not x.ndim:
            raise TypeError(f"top_k: {x} has no dim to choose along")
        if not 0 <= self.k <= x.shape[-1]:
            raise TypeError(f"top_k: of {x.shape[-1]} elements along the last dim of {x} it cannot choose {self.k}")
        if x.dtype.kind == "c":
            raise TypeError(f"top_k: complex numbers have no order: {x}")
        shape = (*x.shape[:-1], self.k)
        return x.with_shape(shape), ArrayType(shape, INDEX)

    def factors(self, x: ArrayType) -> FactorRule:
        lead = tuple((dim,) for dim in range(x.ndim - 1))
        last, chosen = x.ndim - 1, x.ndim
        result = (*lead, (chosen,))
        return FactorRule(
            ((*lead, (last,)),),
            (result, result),
            (*x.shape, self.k),
            need_replication=frozenset({chosen}),
            exchange=frozenset({last}),
        )

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        (x,) = types
        candidates = min(self.k, -(-x.shape[-1] // count)) * x.size // max(1, x.shape[-1])
        return float((count - 1) * candidates * (x.dtype.itemsize + INDEX.itemsize))

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        (x,) = operands
        last = x.type.ndim - 1
        axes, count = context.sharding_of(last, 0)
        if not axes or not self.k:
            return self(x)
        piece = x.type.shape
        inside = valid_mask(context, piece, last, 0)
        # Padding comes after all that is as small, so none of it is chosen while there is anything else.
        x = x if inside is None else Select()(inside, x, full_like(x, lowest(x.type.dtype)))
        values, places = TopK(min(self.k, piece[last]))(x)
        places = Add()(places, Broadcast(places.type.shape, ())(context.offset(last, INDEX, 0)))
        gathered = [AllGather(last, axes, count)(y) for y in (values, places)]
        # The candidates lie in the order of their places, so that of equal ones the first is still the first.
        found, at = self(gathered[0])
        return found, take_along_dim(gathered[1], at, last)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        found, places = self(x)
        return (found, places), (take_along_dim(dx, places, x.type.ndim - 1), None)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(batch_dim_at(operands[0], dims[0], 0, axis.size)), (0, 0)

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_types(x.type)
        if not x.type.size or not self.k:
            return tuple(hlo.constant(0, type.strong()) for type in out)
        wide = _comparable(x.type.dtype)
        if wide != x.type.dtype:
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(wide))
        if is_float(wide):  # NaN may have either sign, and a negative one would be the smallest
            nan = hlo.constant(np.nan, x.type.strong())
            x = hlo.op("stablehlo.select", (lower_compare(hlo, "NE", x, x), nan, x), x.type)
        k = min(max(self.k, _ENOUGH), x.type.shape[-1])
        types = [ArrayType((*x.type.shape[:-1], k), dtype) for dtype in (wide, INDEX)]
        start, step = (0,) * x.type.ndim, (1,) * x.type.ndim
        found, places = (
            Slice(start, out[1].shape, step).lower(hlo, y)
            for y in hlo.many("chlo.top_k", (x,), types, f"k = {k} : i64")
        )
        return found if wide == out[0].dtype else hlo.op("stablehlo.convert", (found,), out[0]), places

    def reference(self, x: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        key = x.astype(np.int8 if x.dtype == np.bool_ else numpy_carrier(x.dtype))
        if is_float(x.dtype):
            bits = key.view(f"i{key.dtype.itemsize}")
            highest = np.iinfo(bits.dtype).max
            # Negative floats count downwards by their bits.
            key = np.where(np.isnan(key), highest, np.where(bits < 0, bits ^ highest, bits))
        places = np.argsort(~key, -1, kind="stable")[..., : self.k]
        return np.take_along_axis(x, places, -1), places.astype(INDEX)


def _comparable(dtype: DType) -> DType:
    """A type that holds all of `dtype` and that devices are quick to choose in, where there is one."""
    narrow = dtype == np.bool_ or (is_integer(dtype) and dtype.itemsize <= 2)
    return np.dtype(np.float32) if narrow else numpy_carrier(dtype)


def take_along_dim(x: Any, places: Any, dim: int) -> Any:
    """Along `dim` the elements of `x` at `places`, which are all different, and inside; other dims go along."""
    others = tuple(d for d in range(x.type.ndim) if d != dim)
    one = tuple(min(1, size) for size in x.type.shape)
    gather = Gather((), (dim,), others, others, (dim,), one, unique=True)
    return gather(x, Reshape((*places.type.shape, 1))(places))
