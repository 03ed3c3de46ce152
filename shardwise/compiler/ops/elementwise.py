"""Ops that work on each element alone: the family, and add sub mul div rem neg stop_gradient select compare
convert. More of it: extremum, transcendental, powers, special, rounding, parts, bitwise.

Operands have equal shapes (the functions in `methods` broadcast and promote first). The family fills in all rules but
the derivative, the numpy meaning and the name in StableHLO.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, Unknown, quiet
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import (
    ArrayType,
    DType,
    carrier,
    integer_range,
    is_float,
    is_inexact,
    is_integer,
    is_key,
    short_name,
)
from shardwise.compiler.ops import shape  # iota counts in integers and converts
from shardwise.compiler.shardings.factors import FactorRule

# What arithmetic means for booleans.
LOGICAL = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}


@final
@record
class Kinds:
    """The element types that an op takes, in words for its error."""

    words: str
    holds: Callable[[DType], bool]


ANY = Kinds("numbers or booleans", lambda dtype: True)
NUMBERS = Kinds("numbers", lambda dtype: dtype != np.bool_)
REALS = Kinds("integers or floats", lambda dtype: is_integer(dtype) or is_float(dtype))
INEXACT = Kinds("floats or complex numbers", is_inexact)
FLOATS = Kinds("floats", is_float)


class Elementwise(Op):
    """Operands of one shape; the result has it too."""

    cheap = True
    arity: ClassVar[int] = 2
    takes: ClassVar[Kinds] = ANY
    hlo_name: ClassVar[str]
    dialect: ClassVar[str] = "stablehlo"

    def out_type(self, *types: ArrayType) -> ArrayType:
        if len(types) != self.arity:
            raise TypeError(f"{self.name}: needs {self.arity} operand{'s' * (self.arity > 1)}, not {len(types)}")
        return self.agreed(*types)

    def agreed(self, *types: ArrayType) -> ArrayType:
        """The type of the result, given as many operands as there should be."""
        shapes = {type.shape for type in types}
        dtypes = {type.dtype for type in types}
        if len(shapes) != 1 or len(dtypes) != 1:
            raise TypeError(
                f"{self.name}: operands must have one shape and one dtype, not {', '.join(map(str, types))}"
            )
        if not self.takes.holds(types[0].dtype):
            raise TypeError(f"{self.name}: needs {self.takes.words}, not {types[0]}")
        return ArrayType(types[0].shape, types[0].dtype, all(type.weak for type in types))

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(types[0].shape, len(types))

    def padding(self, fills: Sequence[Any]) -> Any:
        return None if any(fill is None for fill in fills) else self.reference(*map(np.asarray, fills))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        target = next(dim for dim in dims if dim is not None)
        return self(*(shape.batch_at(x, dim, target, axis.size) for x, dim in zip(operands, dims, strict=True))), target

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        out = self.out_type(*(x.type for x in operands))
        # XLA folds true + true of constants to false: booleans get the logical ops by their own names.
        name = LOGICAL.get(self.hlo_name, self.hlo_name) if out.dtype == np.bool_ else self.hlo_name
        return hlo.op(f"{self.dialect}.{name}", operands, out)


class Unary(Elementwise):
    """One operand. `meaning` is numpy's function: narrow types are computed in wide ones, and rounded once."""

    arity = 1
    takes = INEXACT
    meaning: ClassVar[Any]

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        """The tangent of the result `y` of `x`, of which `dx` is the tangent; None where the slope is zero."""
        raise self.missing("tangent")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        return y, self.tangent(dx, x, y)

    @quiet
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        return np.asarray(self.meaning(x.astype(carrier(x.dtype)))).astype(x.dtype)


def like(x: Any, number: Any) -> Any:
    """An array of one number, with the type of `x`. (Operators would promote by the user's settings.)"""
    return shape.full(x.type.shape, number, x.type.dtype, x.type.weak)


def add_tangents(a: Any, b: Any) -> Any:
    """The sum of two tangents or cotangents, of which None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return Add()(a, b)


@final
@record
class Add(Elementwise):
    """`x + y`; of booleans, or."""

    name = hlo_name = "add"

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), add_tangents(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return tuple(cotangent if isinstance(x, Unknown) else None for x in operands)

    @quiet
    def reference(self, *operands: NumpyArray) -> Any:
        return np.add(*operands)


@final
@record
class Sub(Elementwise):
    """`x - y`."""

    name = "sub"
    hlo_name = "subtract"

    def out_type(self, *types: ArrayType) -> ArrayType:
        found = super().out_type(*types)
        if found.dtype == np.bool_:
            raise TypeError("sub: booleans cannot be subtracted; use logical xor, or convert them to integers")
        return found

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        dx, dy = tangents
        if dx is None or dy is None:
            return self(*primals), Neg()(dy) if dx is None else dx
        return self(*primals), self(dx, dy)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, y = operands
        to_x = cotangent if isinstance(x, Unknown) else None
        return to_x, Neg()(cotangent) if isinstance(y, Unknown) else None

    @quiet
    def reference(self, *operands: NumpyArray) -> Any:
        return np.subtract(*operands)


@final
@record
class Mul(Elementwise):
    """`x * y`; of booleans, and."""

    name = "mul"
    hlo_name = "multiply"

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,), (1,))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        return self(x, y), add_tangents(None if dx is None else self(dx, y), None if dy is None else self(x, dy))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, y = operands
        return (self(cotangent, y), None) if isinstance(x, Unknown) else (None, self(x, cotangent))

    @quiet
    def reference(self, *operands: NumpyArray) -> Any:
        return np.multiply(*operands)


@final
@record
class Div(Elementwise):
    """`x / y`. Of integers the fraction is cut off; by 0 it is the number whose bits are all ones."""

    name = "div"
    hlo_name = "divide"
    takes = NUMBERS

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),) if is_inexact(types[0].dtype) else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        z = self(x, y)
        by_x = None if dx is None else self(dx, y)
        return z, add_tangents(by_x, None if dy is None else Mul()(dy, Neg()(self(z, y))))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return self(cotangent, operands[1]), None

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        x, y = operands
        if is_inexact(x.type.dtype):
            return super().lower(hlo, x, y)
        # XLA divides a constant by 0 with another result than it gives at run time.
        zero, one, ones = (hlo.constant(number, y.type) for number in (0, 1, -1))
        is_zero = compared(hlo, "EQ", y, zero)
        found = super().lower(hlo, x, hlo.op("stablehlo.select", (is_zero, one, y), y.type))
        return hlo.op("stablehlo.select", (is_zero, ones, found), found.type)

    @quiet
    def reference(self, *operands: NumpyArray) -> Any:
        if is_inexact(operands[0].dtype):
            return np.divide(*operands)
        x, y = (operand.astype(carrier(operand.dtype)) for operand in operands)
        by = np.where(y == 0, 1, y).astype(y.dtype)
        down = x // by
        quotient = down + ((x - down * by != 0) & ((x < 0) != (by < 0))).astype(x.dtype)
        return np.where(y == 0, ~np.zeros_like(x), quotient).astype(operands[0].dtype)


@final
@record
class Rem(Elementwise):
    """What is left of `x` once `y` is taken away as often as it goes: it has the sign of `x`. Of integers by 0, `x`."""

    name = "rem"
    hlo_name = "remainder"
    takes = REALS

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        z = self(x, y)
        times = None if dy is None else Div()(Sub()(z, x), y)
        return z, add_tangents(dx, None if dy is None else Mul()(dy, times))

    @quiet
    def reference(self, *operands: NumpyArray) -> Any:
        x, y = (operand.astype(carrier(operand.dtype)) for operand in operands)
        if is_integer(x.dtype):
            left = np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y).astype(y.dtype)))
        else:
            left = np.fmod(x, y)
        return np.asarray(left).astype(operands[0].dtype)


@final
@record
class Neg(Elementwise):
    """`-x`."""

    name = "neg"
    hlo_name = "negate"
    arity = 1

    def out_type(self, *types: ArrayType) -> ArrayType:
        found = super().out_type(*types)
        if found.dtype == np.bool_:
            raise TypeError("neg: a boolean has no negative; use logical not")
        return found

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (self(cotangent),)

    def reference(self, *operands: NumpyArray) -> Any:
        return np.negative(*operands)


@final
@record
class StopGradient(Elementwise):
    """The operand itself, through which no derivative flows."""

    name = "stop_gradient"
    takes_keys = True
    arity = 1

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower(self, hlo: Hlo, x: Any) -> Any:
        return x

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]


@final
@record
class Select(Elementwise):
    """Where the first operand is true the second, else the third."""

    name = hlo_name = "select"
    takes_keys = True
    arity = 3

    def agreed(self, *types: ArrayType) -> ArrayType:
        which, *cases = types
        if which.dtype != np.bool_ or which.shape != cases[0].shape:
            raise TypeError(f"select: needs booleans of shape {cases[0].shape} to choose by, not {which}")
        return super().agreed(*cases)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((1, 2),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        which, *cases = primals
        zero = shape.zeros_like(cases[0])
        return self(*primals), self(which, *(zero if tangent is None else tangent for tangent in tangents[1:]))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        which, x, y = operands
        zero = shape.zeros_like(cotangent)
        to_x = self(which, cotangent, zero) if isinstance(x, Unknown) else None
        return None, to_x, self(which, zero, cotangent) if isinstance(y, Unknown) else None

    def reference(self, *operands: NumpyArray) -> Any:
        return np.where(*operands)


DIRECTIONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@final
@record
class Compare(Elementwise):
    """`x < y` and its kin, by `direction`: EQ NE LT LE GT GE. NaN compares unequal to all.

    Complex numbers are ordered by real part, then by imaginary part; one with NaN in either is NaN.
    """

    name = hlo_name = "compare"
    takes_keys = True
    direction: str

    def out_type(self, *types: ArrayType) -> ArrayType:
        if self.direction not in DIRECTIONS:
            raise TypeError(f"compare: direction {self.direction!r} is not one of {', '.join(DIRECTIONS)}")
        if self.direction not in ("EQ", "NE") and is_key(types[0].dtype):
            raise TypeError(f"compare: keys are equal or not, and have no order: {types[0]}")
        return ArrayType(super().out_type(*types).shape, np.bool_)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        x, y = operands
        if x.type.dtype.kind != "c" or self.direction in ("EQ", "NE"):
            return compared(hlo, self.direction, x, y)
        part = part_type(x.type)
        (a, c), (b, d) = ([hlo.op(f"stablehlo.{name}", (z,), part) for z in operands] for name in ("real", "imag"))
        strict = compared(hlo, self.direction[0] + "T", a, c)

        def joined(how: str, left: Any, right: Any) -> Any:
            return hlo.op(f"stablehlo.{how}", (left, right), strict.type)

        ordered = joined("and", compared(hlo, "EQ", b, b), compared(hlo, "EQ", d, d))
        tie = joined("and", compared(hlo, "EQ", a, c), compared(hlo, self.direction, b, d))
        return joined("or", joined("and", strict, ordered), tie)

    @quiet
    def reference(self, *operands: NumpyArray) -> Any:
        return DIRECTIONS[self.direction](*operands)


def part_type(type: ArrayType) -> ArrayType:
    """The type of the real and of the imaginary parts of complex numbers."""
    return ArrayType(type.shape, np.float32 if type.dtype == np.complex64 else np.float64, type.weak)


def compared(hlo: Hlo, direction: str, x: Any, y: Any) -> Any:
    """One compare in StableHLO, which knows no order of complex numbers."""
    dtype = x.type.dtype
    signed = is_integer(dtype) and short_name(dtype)[0] != "u"
    kind = "FLOAT" if is_inexact(dtype) else "SIGNED" if signed else "UNSIGNED"
    attributes = (
        f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {kind}>"
    )
    return hlo.op("stablehlo.compare", (x, y), ArrayType(x.type.shape, np.bool_), attributes)


@final
@record
class Convert(Elementwise):
    """Each element as `dtype`. To bool: whether it differs from 0. A complex number gives its real part.

    A float becomes an integer by cutting its fraction off; past the range it is the range's end, and NaN is 0.
    """

    name = hlo_name = "convert"
    arity = 1
    dtype: DType
    weak: bool = False

    def agreed(self, *types: ArrayType) -> ArrayType:
        if is_key(self.dtype):
            raise TypeError(f"convert: {types[0]} cannot become keys; `random.wrap_key_data` makes them of their words")
        return ArrayType(types[0].shape, self.dtype, self.weak)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        # Rounding a term and rounding the sum differ: a partial sum may only widen.
        before = types[0].dtype
        widens = is_float(before) and is_float(self.dtype) and self.dtype.itemsize > before.itemsize
        return ((0,),) if widens or before == self.dtype else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents) if is_inexact(self.dtype) else None

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (Convert(operands[0].type.dtype)(cotangent),)

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        (x,) = operands
        if self.dtype == np.bool_:  # StableHLO looks at the real part alone
            return compared(hlo, "NE", x, hlo.constant(0, x.type.strong()))
        if x.type.dtype.kind == "c" and self.dtype.kind != "c":  # XLA crashes when it folds this convert
            x = hlo.op("stablehlo.real", (x,), part_type(x.type))
        return super().lower(hlo, x)

    @quiet
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        if self.dtype == np.bool_:
            return x != np.zeros((), x.dtype)
        x = x.real if x.dtype.kind == "c" and self.dtype.kind != "c" else x.astype(carrier(x.dtype))
        return _saturated(x, self.dtype) if is_float(x.dtype) and is_integer(self.dtype) else x.astype(self.dtype)


def _saturated(x: NumpyArray, dtype: DType) -> NumpyArray:
    """Floats as integers. What numpy makes of a number past the range depends on the machine."""
    low, high = integer_range(dtype)
    wide = np.uint64 if low == 0 else np.int64
    exact = np.where(np.isnan(x), 0, x.astype(np.float64))
    inside = (exact >= low) & (exact < float(high) + 1)
    ends = np.where(exact > 0, np.array(high, wide), np.array(low, wide))
    return np.where(inside, np.where(inside, exact, 0).astype(wide), ends).astype(dtype)
