"""argmax and argmin."""

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
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select, lower_compare
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import global_indices, valid_mask
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class ExtremumWithIndex(Op):
    """The largest (`direction` is "GT") or smallest ("LT") value along `dim`, and its index, which is an operand.

    Among equal values the one with the lowest index is chosen. NaN compares beyond every number.
    """

    name = "extremum_with_index"
    single = False
    dim: int
    direction: str

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, index = types
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"extremum_with_index: dim {self.dim} does not exist in {x}")
        if x.shape != index.shape or not is_integer(index.dtype):
            raise TypeError(f"extremum_with_index: each element of {x} needs an integer as its number, not {index}")
        if x.dtype.kind == "c":
            raise TypeError(f"extremum_with_index: complex numbers have no order: {x}")
        return x.without((self.dim,)), index.without((self.dim,))

    def start(self, dtype: DType) -> Any:
        """The value that is the least extreme."""
        return lowest(dtype) if self.direction == "GT" else highest(dtype)

    def factors(self, x: ArrayType, index: ArrayType) -> FactorRule:
        rule = FactorRule.reducing(x.shape, (self.dim,), None)
        return FactorRule(rule.operands * 2, rule.results * 2, rule.sizes, need_replication=frozenset({self.dim}))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, index), (dx, _) = primals, tangents
        y, found = self(x, index)
        kept = tuple(dim for dim in range(x.type.ndim) if dim != self.dim)
        same = [Compare("EQ")(a, Broadcast(x.type.shape, kept)(b)) for a, b in ((x, y), (index, found))]
        is_it = And()(*same)
        return (y, found), (Sum((self.dim,))(Select()(is_it, dx, zeros_like(x))), None)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x, index = (batch_dim_at(y, dim, 0, axis.size) for y, dim in zip(operands, dims, strict=True))
        return ExtremumWithIndex(self.dim + 1, self.direction)(x, index), (0, 0)

    def lower(self, hlo: Hlo, x: Any, index: Any) -> Any:
        out = self.out_types(x.type, index.type)
        if is_float(x.type.dtype):
            x = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(numpy_carrier(x.type.dtype)))
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

        wins, ties = lower_compare(hlo, self.direction, x, y), lower_compare(hlo, "EQ", x, y)
        if is_float(x.type.dtype):
            x_is_nan, y_is_nan = lower_compare(hlo, "NE", x, x), lower_compare(hlo, "NE", y, y)
            wins = logical("or", wins, logical("and", x_is_nan, lower_compare(hlo, "EQ", y, y)))
            ties = logical("or", ties, logical("and", x_is_nan, y_is_nan))
        wins = logical("or", wins, logical("and", ties, lower_compare(hlo, "LT", i, j)))
        return [hlo.op("stablehlo.select", (wins, a, b), a.type) for a, b in ((x, y), (i, j))]

    def reference(self, x: NumpyArray, index: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        numbers = index.astype(np.int64)
        order = np.argsort(numbers, self.dim, kind="stable")  # the first extreme is then the one that wins
        wide = np.take_along_axis(x.astype(numpy_carrier(x.dtype)), order, self.dim)
        found = (np.argmax if self.direction == "GT" else np.argmin)(wide, self.dim, keepdims=True)
        at = np.take_along_axis(order, found, self.dim)
        y, i = (np.squeeze(np.take_along_axis(z, at, self.dim), self.dim) for z in (x, index))
        return y, i


class ArgExtremum(Op):
    """Where along `dim` the first of the largest or the smallest elements is, counted in `dtype`. NaN is more extreme
    than any number.
    """

    direction: ClassVar[str]  # how the extreme compares with others
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
        rule = FactorRule.reducing(x.shape, (self.dim,), None)
        return replace(rule, reduce={}, exchange=frozenset({self.dim}))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        (x,) = types
        return float((count - 1) * self.out_type(x).size * (x.dtype.itemsize + np.dtype(np.int32).itemsize))

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        """Each device finds its own; then they exchange these, each with its place in the whole."""
        (x,) = operands
        axes, count = context.sharding_of(self.dim, 0)
        if not axes:
            return self(x)
        winner, piece = ExtremumWithIndex(self.dim, self.direction), x.type.shape
        index, inside = global_indices(context, piece, self.dim, 0), valid_mask(context, piece, self.dim, 0)
        if inside is not None:  # of equal ones the lowest number wins: padding has the highest
            x = Select()(inside, x, full_like(x, winner.start(x.type.dtype)))
            index = Select()(inside, index, full_like(index, integer_range(np.dtype(np.int32))[1]))
        row = (*piece[: self.dim], 1, *piece[self.dim + 1 :])
        gathered = [AllGather(self.dim, axes, count)(Reshape(row)(y)) for y in winner(x, index)]
        _, found = winner(*gathered)
        return found if self.dtype == np.int32 else Convert(self.dtype)(found)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = batch_dim_at(operands[0], dims[0], 0, axis.size)
        return type(self)(self.dim + 1, self.dtype)(x), 0  # type: ignore[call-arg]

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        index_dtype = np.dtype(np.int64 if self.dtype.itemsize > np.dtype(np.int32).itemsize else np.int32)
        index = Iota(x.type.shape, self.dim, index_dtype).lower(hlo)
        _, found = ExtremumWithIndex(self.dim, self.direction).lower(hlo, x, index)
        return found if found.type == out else hlo.op("stablehlo.convert", (found,), out)


@final
@record
class Argmax(ArgExtremum):
    """Where the first of the largest elements is."""

    name = "argmax"
    direction = "GT"
    dim: int
    dtype: DType

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.argmax(x.astype(numpy_carrier(x.dtype)), self.dim)).astype(self.dtype)


@final
@record
class Argmin(ArgExtremum):
    """Where the first of the smallest elements is."""

    name = "argmin"
    direction = "LT"
    dim: int
    dtype: DType

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(np.argmin(x.astype(numpy_carrier(x.dtype)), self.dim)).astype(self.dtype)
