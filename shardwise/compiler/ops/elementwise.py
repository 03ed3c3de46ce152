"""Ops that work on each element alone: add mul neg exp max select compare convert.

Operands have equal shapes (the functions in `methods` broadcast and promote first). The family fills in all rules but
the derivative, the numpy meaning and the name in StableHLO.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.ir.op import Hlo, NumpyArray, Op, Unknown
from shardwise.compiler.ir.types import ArrayType, DType, is_float, is_inexact, is_integer, short_name
from shardwise.compiler.ops.shape import batch_at, full, zeros_like
from shardwise.compiler.shardings.factors import FactorRule


class Elementwise(Op):
    """Operands of one shape; the result has it too."""

    cheap = True
    hlo_name: ClassVar[str]

    def out_type(self, *types: ArrayType) -> ArrayType:
        shapes = {type.shape for type in types}
        dtypes = {type.dtype for type in types}
        if len(shapes) != 1 or len(dtypes) != 1:
            raise TypeError(
                f"{self.name}: operands must have one shape and one dtype, not {', '.join(map(str, types))}"
            )
        return ArrayType(types[0].shape, types[0].dtype, all(type.weak for type in types))

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(types[0].shape, len(types))

    def padding(self, fills: Sequence[Any]) -> Any:
        return None if any(fill is None for fill in fills) else self.reference(*map(np.asarray, fills))

    def vmap(self, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        target = next(dim for dim in dims if dim is not None)
        return self(*(batch_at(x, dim, target, size) for x, dim in zip(operands, dims, strict=True))), target

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        return hlo.op(f"stablehlo.{self.hlo_name}", operands, self.out_type(*(x.type for x in operands)))


def add_tangents(a: Any, b: Any) -> Any:
    """The sum of two tangents or cotangents, of which None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return Add()(a, b)


@final
@dataclass(frozen=True)
class Add(Elementwise):
    """`x + y`; of booleans, or."""

    name = hlo_name = "add"

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), add_tangents(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return tuple(cotangent if isinstance(x, Unknown) else None for x in operands)

    def reference(self, *operands: NumpyArray) -> Any:
        return np.add(*operands)


@final
@dataclass(frozen=True)
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

    def reference(self, *operands: NumpyArray) -> Any:
        return np.multiply(*operands)


@final
@dataclass(frozen=True)
class Div(Elementwise):
    """`x / y`, of floats and complex numbers."""

    name = "div"
    hlo_name = "divide"

    def out_type(self, *types: ArrayType) -> ArrayType:
        if not is_inexact(types[0].dtype):
            raise TypeError(f"div: needs floats or complex numbers, not {types[0]}")
        return super().out_type(*types)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        z = self(x, y)
        by_x = None if dx is None else self(dx, y)
        return z, add_tangents(by_x, None if dy is None else Mul()(dy, Neg()(self(z, y))))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return self(cotangent, operands[1]), None

    def reference(self, *operands: NumpyArray) -> Any:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.divide(*operands)


@final
@dataclass(frozen=True)
class Neg(Elementwise):
    """`-x`."""

    name = "neg"
    hlo_name = "negate"

    def out_type(self, *types: ArrayType) -> ArrayType:
        if types[0].dtype == np.bool_:
            raise TypeError("neg: a boolean has no negative; use logical not")
        return super().out_type(*types)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (self(cotangent),)

    def reference(self, *operands: NumpyArray) -> Any:
        return np.negative(*operands)


@final
@dataclass(frozen=True)
class Exp(Elementwise):
    """e to the power of each element."""

    name = "exp"
    hlo_name = "exponential"

    def out_type(self, *types: ArrayType) -> ArrayType:
        if not is_inexact(types[0].dtype):
            raise TypeError(f"exp: needs floats or complex numbers, not {types[0]}")
        return super().out_type(*types)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        y = self(*primals)
        return y, Mul()(tangents[0], y)

    def reference(self, *operands: NumpyArray) -> Any:
        with np.errstate(over="ignore"):
            return np.exp(*operands)


@final
@dataclass(frozen=True)
class Max(Elementwise):
    """The larger of two; NaN where either is. The derivative at a tie is shared by both."""

    name = "max"
    hlo_name = "maximum"

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        x, y = primals
        dx, dy = (zeros_like(x) if tangent is None else tangent for tangent in tangents)
        half = full(x.type.shape, 0.5, x.type.dtype)
        tie = Mul()(Add()(dx, dy), half)
        select, wins, ties = Select(), Compare("GT")(x, y), Compare("EQ")(x, y)
        return self(x, y), select(wins, dx, select(ties, tie, dy))

    def reference(self, *operands: NumpyArray) -> Any:
        return np.maximum(*operands)


@final
@dataclass(frozen=True)
class Select(Elementwise):
    """Where the first operand is true the second, else the third."""

    name = hlo_name = "select"

    def out_type(self, *types: ArrayType) -> ArrayType:
        which, *cases = types
        if which.dtype != np.bool_ or which.shape != cases[0].shape:
            raise TypeError(f"select: needs booleans of shape {cases[0].shape} to choose by, not {which}")
        return super().out_type(*cases)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((1, 2),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        which, *cases = primals
        zero = zeros_like(cases[0])
        return self(*primals), self(which, *(zero if tangent is None else tangent for tangent in tangents[1:]))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        which, x, y = operands
        zero = zeros_like(cotangent)
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
@dataclass(frozen=True)
class Compare(Elementwise):
    """`x < y` and its kin, by `direction`: EQ NE LT LE GT GE. NaN compares unequal to all."""

    name = hlo_name = "compare"
    direction: str

    def out_type(self, *types: ArrayType) -> ArrayType:
        if self.direction not in DIRECTIONS:
            raise TypeError(f"compare: direction {self.direction!r} is not one of {', '.join(DIRECTIONS)}")
        return ArrayType(super().out_type(*types).shape, np.bool_)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), None

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        dtype = operands[0].type.dtype
        signed = is_integer(dtype) and dtype.kind != "u" and short_name(dtype) != "u4"
        kind = "FLOAT" if is_inexact(dtype) else "SIGNED" if signed else "UNSIGNED"
        attributes = (
            f"comparison_direction = #stablehlo<comparison_direction {self.direction}>, "
            f"compare_type = #stablehlo<comparison_type {kind}>"
        )
        return hlo.op("stablehlo.compare", operands, self.out_type(*(x.type for x in operands)), attributes)

    def reference(self, *operands: NumpyArray) -> Any:
        return DIRECTIONS[self.direction](*operands)


@final
@dataclass(frozen=True)
class Convert(Elementwise):
    """Each element as `dtype`."""

    name = hlo_name = "convert"
    dtype: DType
    weak: bool = False

    def out_type(self, *types: ArrayType) -> ArrayType:
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

    def reference(self, *operands: NumpyArray) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):
            return operands[0].astype(self.dtype)
