"""Elementwise ops on bits: and or xor not, mulhi, shifts, population_count clz, bitcast_convert. Of booleans, logic."""

from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.dtypes import SMALL_INTEGERS, DType, integer_range, is_integer, numpy_carrier, short_name
from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import DtypeSet, Elementwise
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.shardings.factors import FactorRule

PARTS_OF_BYTES = {*SMALL_INTEGERS, "f4_e2m1fn"}


def has_bytes(dtype: DType) -> bool:
    """Whether an element is one number that fills its bytes."""
    return dtype.kind != "c" and dtype != np.bool_ and short_name(dtype) not in PARTS_OF_BYTES


BITS = DtypeSet("integers or booleans", lambda dtype: dtype == np.bool_ or is_integer(dtype))
INTEGERS = DtypeSet("integers", is_integer)
WHOLE_BYTES = DtypeSet("numbers of 8 bits or more with one part", has_bytes)


class Bitwise(Elementwise):
    """Integers: no derivatives. `meaning` is numpy's function."""

    accepts = BITS
    numpy_function: ClassVar[Any]

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        dtype = operands[0].dtype
        return np.asarray(self.numpy_function(*(x.astype(numpy_carrier(dtype)) for x in operands))).astype(dtype)


@final
@record
class And(Bitwise):
    """The bits that both have."""

    name = hlo_name = "and"
    numpy_function = np.bitwise_and


@final
@record
class Or(Bitwise):
    """The bits that either has."""

    name = hlo_name = "or"
    numpy_function = np.bitwise_or


@final
@record
class Xor(Bitwise):
    """The bits that one of them has."""

    name = hlo_name = "xor"
    numpy_function = np.bitwise_xor


@final
@record
class Not(Bitwise):
    """The bits that it does not have."""

    name = hlo_name = "not"
    arity = 1
    numpy_function = np.bitwise_not


@final
@record
class MulHigh(Bitwise):
    """The high half of the bits of `x * y`, which has twice as many as either."""

    name = "mulhi"
    accepts = INTEGERS

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        type = self.out_type(*(x.type for x in operands))
        width = bit_width(type.dtype)
        kind = "u" if integer_range(type.dtype)[0] == 0 else "i"
        if width == 64:
            return _high_of_halves(hlo, *operands)
        wide = type.with_dtype(np.dtype(f"{kind}8"))
        product = hlo.op("stablehlo.multiply", [hlo.op("stablehlo.convert", (x,), wide) for x in operands], wide)
        how = "logical" if kind == "u" else "arithmetic"
        high = hlo.op(f"stablehlo.shift_right_{how}", (product, hlo.constant(width, wide.strong())), wide)
        return hlo.op("stablehlo.convert", (high,), type)

    def reference(self, *operands: NumpyArray) -> Any:
        x, y = (operand.astype(numpy_carrier(operand.dtype)).astype(object) for operand in operands)
        width = bit_width(operands[0].dtype)
        return np.asarray((x * y) >> width).astype(numpy_carrier(operands[0].dtype)).astype(operands[0].dtype)


def _high_of_halves(hlo: Hlo, x: Any, y: Any) -> Any:
    """The high 64 bits of a product of 64-bit integers, of the products of their halves of 32 bits."""
    signed = x.type.dtype.kind == "i"
    type = x.type.strong()
    thirty_two, low_half = hlo.constant(32, type), hlo.constant(2**32 - 1, type)

    def of(name: str, a: Any, b: Any) -> Any:
        return hlo.op(f"stablehlo.{name}", (a, b), type)

    def carried(a: Any) -> Any:
        return of("shift_right_arithmetic" if signed else "shift_right_logical", a, thirty_two)

    x_low, y_low = (of("and", a, low_half) for a in (x, y))
    x_high, y_high = carried(x), carried(y)
    # No sum overflows: each is a product of halves and at most two more halves.
    low = of("shift_right_logical", of("multiply", x_low, y_low), thirty_two)
    middle = of("add", of("multiply", x_high, y_low), low)
    rest = of("add", of("multiply", x_low, y_high), of("and", middle, low_half))
    return of("add", of("add", of("multiply", x_high, y_high), carried(middle)), carried(rest))


class Shift(Bitwise):
    """Bits moved by the second operand. A shift by the width or more, or by less than 0, moves all of them out."""

    accepts = INTEGERS

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        x, by = operands
        width = bit_width(x.dtype)
        amount = by.astype(numpy_carrier(by.dtype))
        inside = (amount >= 0) & (amount < width)
        return self.shifted(x, np.where(inside, amount, 0).astype(np.uint64), inside, width).astype(x.dtype)

    def shifted(self, x: NumpyArray, by: NumpyArray, inside: NumpyArray, width: int) -> NumpyArray:
        raise self.missing_rule("shifted")


@final
@record
class ShiftLeft(Shift):
    """Towards the high bits; zeros come in."""

    name = hlo_name = "shift_left"

    def shifted(self, x: NumpyArray, by: NumpyArray, inside: NumpyArray, width: int) -> NumpyArray:
        return np.where(inside, unsigned(x) << by, np.uint64(0))


@final
@record
class ShiftRightLogical(Shift):
    """Towards the low bits; zeros come in."""

    name = hlo_name = "shift_right_logical"

    def shifted(self, x: NumpyArray, by: NumpyArray, inside: NumpyArray, width: int) -> NumpyArray:
        return np.where(inside, unsigned(x) >> by, np.uint64(0))


@final
@record
class ShiftRightArithmetic(Shift):
    """Towards the low bits; copies of the highest bit come in."""

    name = hlo_name = "shift_right_arithmetic"

    def shifted(self, x: NumpyArray, by: NumpyArray, inside: NumpyArray, width: int) -> NumpyArray:
        spread = np.uint64(64 - width)
        high = (unsigned(x) << spread).view(np.int64)  # the highest bit as the sign
        return high >> np.where(inside, by + spread, np.uint64(63)).astype(np.int64)


@final
@record
class PopulationCount(Bitwise):
    """How many bits are ones."""

    name = "population_count"
    hlo_name = "popcnt"
    arity = 1
    accepts = INTEGERS

    def lower(self, hlo: Hlo, x: Any) -> Any:
        if short_name(x.type.dtype) not in ("i2", "i4"):
            return super().lower(hlo, x)
        wide = x.type.with_dtype(np.int32)  # XLA would count the bits of its sign as far as a byte goes
        ones = hlo.constant(2 ** bit_width(x.type.dtype) - 1, wide)
        found = hlo.op("stablehlo.and", (hlo.op("stablehlo.convert", (x,), wide), ones), wide)
        return hlo.op("stablehlo.convert", (hlo.op("stablehlo.popcnt", (found,), wide),), x.type)

    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        bits = unsigned(x)
        ones = [(bits >> np.uint64(place)) & np.uint64(1) for place in range(bit_width(x.dtype))]
        return np.sum(ones, 0).astype(x.dtype)


@final
@record
class Clz(Bitwise):
    """How many zeros stand before the highest one."""

    name = "clz"
    hlo_name = "count_leading_zeros"
    arity = 1
    accepts = INTEGERS

    def lower(self, hlo: Hlo, x: Any) -> Any:
        found = super().lower(hlo, x)
        if short_name(x.type.dtype)[0] == "u":
            return found
        zero = hlo.constant(0, x.type)  # XLA counts those of a negative constant in 64 bits
        return hlo.op("stablehlo.select", (lower_compare(hlo, "LT", x, zero), zero, found), x.type)

    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        bits, width = unsigned(x), bit_width(x.dtype)
        return np.sum([bits < np.uint64(1) << np.uint64(place) for place in range(width)], 0).astype(x.dtype)


@final
@record
class BitcastConvert(Elementwise):
    """The same bits as `dtype`. Where that is narrower, a last dim counts its parts, low bits first; where it is wider,
    the last dim holds the parts and goes away.
    """

    name = "bitcast_convert"
    hlo_name = "bitcast_convert"
    arity = 1
    accepts = WHOLE_BYTES
    dtype: DType

    def result_type(self, *types: ArrayType) -> ArrayType:
        x = super().result_type(*types)
        if not has_bytes(self.dtype):
            raise TypeError(f"bitcast_convert: makes {self.accepts.description}, not {short_name(self.dtype)}")
        parts = self.parts(x)
        if parts > 0:
            return ArrayType((*x.shape, parts), self.dtype)
        if parts == 0:
            return ArrayType(x.shape, self.dtype)
        if x.shape[-1:] != (-parts,):
            raise TypeError(
                f"bitcast_convert: {-parts} elements make one {short_name(self.dtype)}: the last dim of {x}"
            )
        return ArrayType(x.shape[:-1], self.dtype)

    def parts(self, x: ArrayType) -> int:
        """Into how many parts an element falls; negative where so many make one element, 0 where each is one."""
        before, after = x.dtype.itemsize, self.dtype.itemsize
        return 0 if before == after else before // after if before > after else -(after // before)

    def factors(self, *types: ArrayType) -> FactorRule:
        (x,) = types
        if not self.parts(x):
            return super().factors(x)
        longer = max(x.shape, self.out_type(x).shape, key=len)
        dims = [tuple((dim,) for dim in range(rank)) for rank in (x.ndim, self.out_type(x).ndim)]
        return FactorRule((dims[0],), (dims[1],), longer, need_replication=frozenset({len(longer) - 1}))

    def padding(self, fills: Sequence[Any]) -> Any:
        return None if fills[0] is None or fills[0].dtype.itemsize != self.dtype.itemsize else super().padding(fills)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(batch_dim_at(operands[0], dims[0], 0, axis.size)), 0

    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        out = self.out_type(ArrayType(x.shape, x.dtype))
        return np.ascontiguousarray(x).reshape(-1).view(self.dtype).reshape(out.shape)


def bit_width(dtype: DType) -> int:
    low, high = integer_range(dtype)
    return (high - low).bit_length()


def unsigned(x: NumpyArray) -> NumpyArray:
    """The bits of integers, as the low bits of 64."""
    width = bit_width(x.dtype)
    mask = np.uint64(2**width - 1)
    return (
        x.astype(numpy_carrier(x.dtype)).astype(np.int64 if x.dtype != np.uint64 else np.uint64).astype(np.uint64)
        & mask
    )
