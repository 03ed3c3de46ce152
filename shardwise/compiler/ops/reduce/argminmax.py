"""argmax and argmin.

Along sharded dims each device finds the extremum of its shard with its global index. The devices all-gather these pairs
and reduce them once more (`extremum_with_index`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.dtypes import (
    DType,
    highest,
    integer_range,
    is_float,
    is_integer,
    lowest,
    numpy_carrier,
    short_name,
)
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.select import Compare, Select, lower_compare
from shardwise.compiler.ops.reduce.base import check_dims
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape, i64_array_attribute
from shardwise.compiler.ops.shape.slicing import global_indices, valid_mask
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.traffic import Traffic, all_gather, one_after_another


@final
@record
class ExtremumWithIndex(Op):
    """The largest (`direction` is "GT") or smallest ("LT") value along `dims`, with its index, which is an operand.

    Among equal values, the value with the lowest index is chosen. NaN compares beyond every number.
    """

    name = "extremum_with_index"
    single = False
    dims: tuple[int, ...]
    direction: str

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, index = types
        check_dims(self.name, self.dims, x)
        if x.shape != index.shape or not is_integer(index.dtype):
            raise TypeError(f"extremum_with_index: each element of {x} needs an integer index, not {index}")
        if x.dtype.kind == "c":
            raise TypeError(f"extremum_with_index: complex numbers have no order: {x}")
        return x.without(self.dims), index.without(self.dims)

    def neutral(self, dtype: DType) -> Any:
        """Return the neutral element: the lowest or the highest value."""
        return lowest(dtype) if self.direction == "GT" else highest(dtype)

    def factors(self, x: ArrayType, index: ArrayType) -> FactorRule:
        rule = FactorRule.reducing(x.shape, self.dims, None)
        return FactorRule(rule.operands * 2, rule.results * 2, rule.sizes, need_replication=frozenset(self.dims))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, index), (dx, _) = primals, tangents
        y, y_index = self(x, index)
        kept = tuple(dim for dim in range(x.type.ndim) if dim not in self.dims)
        same = [Compare("EQ")(a, Broadcast(x.type.shape, kept)(b)) for a, b in ((x, y), (index, y_index))]
        is_extremum = And()(*same)
        return (y, y_index), (Sum(self.dims)(Select()(is_extremum, dx, zeros_like(x))), None)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x, index = (batch_dim_at(y, dim, 0, axis.size) for y, dim in zip(operands, dims, strict=True))
        return ExtremumWithIndex(_shift(self.dims), self.direction)(x, index), (0, 0)

    def lower(self, hlo: Hlo, x: HloValue, index: HloValue) -> Any:
        out = self.out_types(x.type, index.type)
        if is_float(x.type.dtype):
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(numpy_carrier(x.type.dtype)))
        last_index = integer_range(index.type.dtype)[1]
        starts = [
            hlo.constant(start, ArrayType((), y.type.dtype))
            for start, y in ((self.neutral(x.type.dtype), x), (last_index, index))
        ]
        # Reduce value and index together. Searching for the extremum afterwards could fail, because XLA may compute the
        # operand twice, with different rounding.
        y, y_index = hlo.reduce([x, index], starts, self.dims, lambda a, b: self._choose(hlo, *a, *b))
        return y if y.type.dtype == out[0].dtype else hlo.op("stablehlo.convert", (y,), out[0]), y_index

    def _choose(self, hlo: Hlo, x: HloValue, i: HloValue, y: HloValue, j: HloValue) -> list[Any]:
        def logical(name: str, left: HloValue, right: HloValue) -> Any:
            return hlo.op(f"stablehlo.{name}", (left, right), left.type)

        chosen, ties = lower_compare(hlo, self.direction, x, y), lower_compare(hlo, "EQ", x, y)
        if is_float(x.type.dtype):
            x_is_nan, y_is_nan = lower_compare(hlo, "NE", x, x), lower_compare(hlo, "NE", y, y)
            chosen = logical("or", chosen, logical("and", x_is_nan, lower_compare(hlo, "EQ", y, y)))
            ties = logical("or", ties, logical("and", x_is_nan, y_is_nan))
        chosen = logical("or", chosen, logical("and", ties, lower_compare(hlo, "LT", i, j)))
        return [hlo.op("stablehlo.select", (chosen, a, b), a.type) for a, b in ((x, y), (i, j))]

    def reference(self, x: NumpyArray, index: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        x, index = (_flatten_dims(y, self.dims) for y in (x, index))
        order = np.argsort(index.astype(np.int64), -1, kind="stable")  # the first extremum then has the lowest index
        wide = np.take_along_axis(x.astype(numpy_carrier(x.dtype)), order, -1)
        position = (np.argmax if self.direction == "GT" else np.argmin)(wide, -1, keepdims=True)
        at = np.take_along_axis(order, position, -1)
        y, i = (np.squeeze(np.take_along_axis(z, at, -1), -1) for z in (x, index))
        return y, i


class ArgExtremum(Op):
    """The index along `dims` of the first largest or smallest element, as `dtype`. NaN compares beyond every number.

    Along several dims, this is the row-major flat index over these dims.
    """

    direction: ClassVar[str]  # how the extremum compares with other elements
    dims: tuple[int, ...]
    dtype: DType

    def out_type(self, x: ArrayType) -> ArrayType:
        check_dims(self.name, self.dims, x)
        if not is_integer(self.dtype):
            raise TypeError(f"{self.name}: the dtype of indices must be an integer dtype, not {short_name(self.dtype)}")
        if x.dtype.kind == "c":
            raise TypeError(f"{self.name}: complex numbers have no order: {x}")
        for dim in self.dims:
            if not x.shape[dim]:
                raise TypeError(f"{self.name}: dim {dim} of {x} is empty")
        return ArrayType(x.without(self.dims).shape, self.dtype)

    def factors(self, x: ArrayType) -> FactorRule:
        rule = FactorRule.reducing(x.shape, self.dims, None)
        return replace(rule, reduce={}, exchange=frozenset(self.dims))

    def fused_bytes(self, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> float:
        return sum(type.nbytes for type in operands)

    def exchange_traffic(self, factor: int, count: int, *types: ArrayType) -> Traffic:
        (x,) = types
        size = self.out_type(x).size
        return one_after_another(*[all_gather(size * dtype.itemsize, count) for dtype in (x.dtype, self._index_dtype)])

    @property
    def _index_dtype(self) -> DType:
        return np.dtype(np.int64 if self.dtype.itemsize > np.dtype(np.int32).itemsize else np.int32)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        """Find the extremum of each shard with its global index, all-gather these pairs, and reduce them."""
        (x,) = operands
        axes = tuple(axis for dim in self.dims for axis in context.sharding_of(dim, 0)[0])
        if not axes:
            return self(x)
        shape, sizes = x.type.shape, [context.global_types[0].shape[dim] for dim in self.dims]
        index: Any = None
        for dim, size in zip(self.dims, sizes, strict=True):
            position = global_indices(context, shape, dim, 0)
            position = position if self._index_dtype == np.int32 else Convert(self._index_dtype)(position)
            index = position if index is None else (Expr(index) * size + Expr(position)).array
        pairs = ExtremumWithIndex(self.dims, self.direction)
        for dim in self.dims:
            valid = valid_mask(context, shape, dim, 0)
            if valid is not None:  # padding gets the highest index, because the lowest is chosen among equal values
                x = Select()(valid, x, full_like(x, pairs.neutral(x.type.dtype)))
                index = Select()(valid, index, full_like(index, integer_range(self._index_dtype)[1]))
        gather = AllGather(0, axes, context.mesh.extent(axes))
        gathered = [gather(Reshape((1, *y.type.shape))(y)) for y in pairs(x, index)]
        _, result = ExtremumWithIndex((0,), self.direction)(*gathered)
        return result if self.dtype == result.type.dtype else Convert(self.dtype)(result)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = batch_dim_at(operands[0], dims[0], 0, axis.size)
        return type(self)(_shift(self.dims), self.dtype)(x), 0  # type: ignore[call-arg]

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        out = self.out_type(x.type)
        sizes = tuple(x.type.shape[dim] for dim in self.dims)
        position = Iota((math.prod(sizes),), 0, self._index_dtype).lower(hlo)
        attributes = f"broadcast_dimensions = {i64_array_attribute(self.dims)}"
        index_type = x.type.with_dtype(self._index_dtype).strong()
        index = Reshape(sizes).lower(hlo, position)
        index = hlo.op("stablehlo.broadcast_in_dim", (index,), index_type, attributes)
        _, result = ExtremumWithIndex(self.dims, self.direction).lower(hlo, x, index)
        return result if result.type == out else hlo.op("stablehlo.convert", (result,), out)

    def reference(self, x: NumpyArray) -> NumpyArray:
        flat = _flatten_dims(x, self.dims).astype(numpy_carrier(x.dtype))
        return np.asarray((np.argmax if self.direction == "GT" else np.argmin)(flat, -1)).astype(self.dtype)


@final
@record
class Argmax(ArgExtremum):
    """The index of the first largest element."""

    name = "argmax"
    direction = "GT"
    dims: tuple[int, ...]
    dtype: DType


@final
@record
class Argmin(ArgExtremum):
    """The index of the first smallest element."""

    name = "argmin"
    direction = "LT"
    dims: tuple[int, ...]
    dtype: DType


def _shift(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dims after a batch dim is added in front."""
    return tuple(dim + 1 for dim in dims)


def _flatten_dims(x: NumpyArray, dims: tuple[int, ...]) -> NumpyArray:
    """Move `dims` to the end and flatten them."""
    moved = np.moveaxis(x, dims, range(x.ndim - len(dims), x.ndim))
    return moved.reshape((*moved.shape[: x.ndim - len(dims)], -1))
