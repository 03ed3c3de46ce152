"""Elementwise bitwise and logical ops: and, or, xor, not, mulhi, shifts, population_count, clz, bitcast_convert."""

from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.dtypes import SMALL_INTEGERS, DType, integer_range, is_integer, numpy_carrier, short_name
from shardwise.compiler.ir.fusion import CHEAP_ON_CPU
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import DtypeSet, Elementwise
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.shardings.factors import FactorRule

SUB_BYTE_DTYPES = {*SMALL_INTEGERS, "f4_e2m1fn"}


def is_real_number(dtype: DType) -> bool:
    """Whether an element is one number, and not a boolean or complex number."""
    return dtype.kind != "c" and dtype != np.bool_


BITS = DtypeSet("integers or booleans", lambda dtype: dtype == np.bool_ or is_integer(dtype))
INTEGERS = DtypeSet("integers", is_integer)
REAL_NUMBERS = DtypeSet("real numbers", is_real_number)


class Bitwise(Elementwise):
    """An op on integers or booleans, without a derivative. `numpy_function` computes the reference."""

    accepts = BITS
    numpy_function: ClassVar[Any]

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        dtype = operands[0].dtype
        return np.asarray(self.numpy_function(*(x.astype(numpy_carrier(dtype)) for x in operands))).astype(dtype)


@final
@record
class And(Bitwise):
    """Bitwise AND."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "and"
    numpy_function = np.bitwise_and


@final
@record
class Or(Bitwise):
    """Bitwise OR."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "or"
    numpy_function = np.bitwise_or


@final
@record
class Xor(Bitwise):
    """Bitwise XOR."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "xor"
    numpy_function = np.bitwise_xor


@final
@record
class Not(Bitwise):
    """Bitwise NOT."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "not"
    arity = 1
    numpy_function = np.bitwise_not


@final
@record
class MulHigh(Bitwise):
    """The high half of the double-width product `x * y`."""

    name = "mulhi"
    accepts = INTEGERS

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        type = self.out_type(*(x.type for x in operands))
        width = bit_width(type.dtype)
        signedness = "u" if integer_range(type.dtype)[0] == 0 else "i"
        if width == 64:
            return _mul_high_64(hlo, *operands)
        wide = type.with_dtype(np.dtype(f"{signedness}8"))
        product = hlo.op("stablehlo.multiply", [hlo.op("stablehlo.convert", (x,), wide) for x in operands], wide)
        shift = "logical" if signedness == "u" else "arithmetic"
        high = hlo.op(f"stablehlo.shift_right_{shift}", (product, hlo.constant(width, wide.strong())), wide)
        return hlo.op("stablehlo.convert", (high,), type)

    def reference(self, *operands: NumpyArray) -> Any:
        x, y = (operand.astype(numpy_carrier(operand.dtype)).astype(object) for operand in operands)
        width = bit_width(operands[0].dtype)
        return np.asarray((x * y) >> width).astype(numpy_carrier(operands[0].dtype)).astype(operands[0].dtype)


def _mul_high_64(hlo: Hlo, x: HloValue, y: HloValue) -> Any:
    """Compute the high 64 bits of a 128-bit product from the products of 32-bit halves."""
    signed = x.type.dtype.kind == "i"
    type = x.type.strong()
    thirty_two, low_half = hlo.constant(32, type), hlo.constant(2**32 - 1, type)

    def binary(name: str, a: HloValue, b: HloValue) -> Any:
        return hlo.op(f"stablehlo.{name}", (a, b), type)

    def high_half(a: HloValue) -> Any:
        return binary("shift_right_arithmetic" if signed else "shift_right_logical", a, thirty_two)

    x_low, y_low = (binary("and", a, low_half) for a in (x, y))
    x_high, y_high = high_half(x), high_half(y)
    # No sum overflows: each adds at most two 32-bit halves to a product of halves.
    low = binary("shift_right_logical", binary("multiply", x_low, y_low), thirty_two)
    middle = binary("add", binary("multiply", x_high, y_low), low)
    rest = binary("add", binary("multiply", x_low, y_high), binary("and", middle, low_half))
    return binary("add", binary("add", binary("multiply", x_high, y_high), high_half(middle)), high_half(rest))


class Shift(Bitwise):
    """Shift by the second operand. A shift by a negative amount, or by the width or more, shifts all bits out."""

    accepts = INTEGERS

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        x, shift = operands
        width = bit_width(x.dtype)
        amount = shift.astype(numpy_carrier(shift.dtype))
        inside = (amount >= 0) & (amount < width)
        return self.shift(x, np.where(inside, amount, 0).astype(np.uint64), inside, width).astype(x.dtype)

    def shift(self, x: NumpyArray, amount: NumpyArray, inside: NumpyArray, width: int) -> NumpyArray:
        raise self.missing_rule("shift")


@final
@record
class ShiftLeft(Shift):
    """Shift left."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "shift_left"

    def shift(self, x: NumpyArray, amount: NumpyArray, inside: NumpyArray, width: int) -> NumpyArray:
        return np.where(inside, unsigned(x) << amount, np.uint64(0))


@final
@record
class ShiftRightLogical(Shift):
    """Shift right and fill with zeros."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "shift_right_logical"

    def shift(self, x: NumpyArray, amount: NumpyArray, inside: NumpyArray, width: int) -> NumpyArray:
        return np.where(inside, unsigned(x) >> amount, np.uint64(0))


@final
@record
class ShiftRightArithmetic(Shift):
    """Shift right and fill with copies of the sign bit."""

    fusion = CHEAP_ON_CPU
    name = hlo_name = "shift_right_arithmetic"

    def shift(self, x: NumpyArray, amount: NumpyArray, inside: NumpyArray, width: int) -> NumpyArray:
        unused = np.uint64(64 - width)
        high = (unsigned(x) << unused).view(np.int64)  # moves the sign bit to the top
        return high >> np.where(inside, amount + unused, np.uint64(63)).astype(np.int64)


@final
@record
class PopulationCount(Bitwise):
    """The number of bits that are set."""

    name = "population_count"
    hlo_name = "popcnt"
    arity = 1
    accepts = INTEGERS

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        if short_name(x.type.dtype) not in ("i2", "i4"):
            return super().lower(hlo, x)
        wide = x.type.with_dtype(np.int32)  # XLA would also count the sign-extended bits of the byte
        ones = hlo.constant(2 ** bit_width(x.type.dtype) - 1, wide)
        bits = hlo.op("stablehlo.and", (hlo.op("stablehlo.convert", (x,), wide), ones), wide)
        return hlo.op("stablehlo.convert", (hlo.op("stablehlo.popcnt", (bits,), wide),), x.type)

    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        bits = unsigned(x)
        ones = [(bits >> np.uint64(position)) & np.uint64(1) for position in range(bit_width(x.dtype))]
        return np.sum(ones, 0).astype(x.dtype)


@final
@record
class Clz(Bitwise):
    """The number of leading zero bits."""

    name = "clz"
    hlo_name = "count_leading_zeros"
    arity = 1
    accepts = INTEGERS

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        count = super().lower(hlo, x)
        if short_name(x.type.dtype)[0] == "u":
            return count
        zero = hlo.constant(0, x.type)  # XLA's constant folding counts the bits of a negative number in 64 bits
        return hlo.op("stablehlo.select", (lower_compare(hlo, "LT", x, zero), zero, count), x.type)

    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        bits, width = unsigned(x), bit_width(x.dtype)
        return np.sum([bits < np.uint64(1) << np.uint64(position) for position in range(width)], 0).astype(x.dtype)


@final
@record
class BitcastConvert(Elementwise):
    """Reinterpret the bits as `dtype`.

    A narrower dtype adds a trailing dim for the parts of an element, low bits first. A wider dtype removes the trailing
    dim, which holds the parts.
    """

    fusion = CHEAP_ON_CPU
    name = "bitcast_convert"
    hlo_name = "bitcast_convert"
    arity = 1
    accepts = REAL_NUMBERS
    dtype: DType

    def result_type(self, *types: ArrayType) -> ArrayType:
        x = super().result_type(*types)
        if not is_real_number(self.dtype):
            raise TypeError(
                f"bitcast_convert: the dtype must be of {self.accepts.description}, not {short_name(self.dtype)}"
            )
        parts = self.parts(x)
        if parts > 0:
            return ArrayType((*x.shape, parts), self.dtype)
        if parts == 0:
            return ArrayType(x.shape, self.dtype)
        if x.shape[-1:] != (-parts,):
            raise TypeError(
                f"bitcast_convert: the last dim of {x} must be {-parts}, the elements in one {short_name(self.dtype)}"
            )
        return ArrayType(x.shape[:-1], self.dtype)

    def parts(self, x: ArrayType) -> int:
        """Return how many new elements replace one element; -n if n elements form a new one, 0 if widths are equal."""
        before, after = element_bits(x.dtype), element_bits(self.dtype)
        return 0 if before == after else before // after if before > after else -(after // before)

    def factors(self, *types: ArrayType) -> FactorRule:
        (x,) = types
        if not self.parts(x):
            return super().factors(x)
        longer = max(x.shape, self.out_type(x).shape, key=len)
        dims = [tuple((dim,) for dim in range(rank)) for rank in (x.ndim, self.out_type(x).ndim)]
        return FactorRule((dims[0],), (dims[1],), longer, need_replication=frozenset({len(longer) - 1}))

    def padding(self, fills: Sequence[Any]) -> Any:
        equal_widths = fills[0] is not None and element_bits(fills[0].dtype) == element_bits(self.dtype)
        return super().padding(fills) if equal_widths else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(batch_dim_at(operands[0], dims[0], 0, axis.size)), 0

    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        out = self.out_type(ArrayType(x.shape, x.dtype))
        return from_bits(to_bits(np.ascontiguousarray(x).reshape(-1)), self.dtype).reshape(out.shape)


def element_bits(dtype: DType) -> int:
    """Return the number of bits of an element."""
    name = short_name(dtype)
    return int(name[1]) if name in SUB_BYTE_DTYPES else 8 * dtype.itemsize  # such as u4 and f4_e2m1fn


def to_bits(x: NumpyArray) -> NumpyArray:
    """Return the bits of all elements in one row, low bits first. numpy stores sub-byte elements in bytes."""
    bits = np.unpackbits(x.view(np.uint8), bitorder="little").reshape(x.size, -1)
    return bits[:, : element_bits(x.dtype)].reshape(-1)


def from_bits(bits: NumpyArray, dtype: DType) -> NumpyArray:
    """Return the elements with these bits. This is the inverse of `to_bits`."""
    of_elements = bits.reshape(-1, element_bits(dtype))
    padded = np.pad(of_elements, ((0, 0), (0, 8 * dtype.itemsize - element_bits(dtype))))
    return np.packbits(padded.reshape(-1), bitorder="little").view(dtype)


def bit_width(dtype: DType) -> int:
    """Return the number of bits of an integer dtype."""
    low, high = integer_range(dtype)
    return (high - low).bit_length()


def unsigned(x: NumpyArray) -> NumpyArray:
    """Return the bits of integers as the low bits of uint64."""
    width = bit_width(x.dtype)
    mask = np.uint64(2**width - 1)
    return (
        x.astype(numpy_carrier(x.dtype)).astype(np.int64 if x.dtype != np.uint64 else np.uint64).astype(np.uint64)
        & mask
    )
