"""Constants: full, and arrays that a program closes over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.fusion import ALWAYS_FUSED
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, Scalar, ScalarLike
from shardwise.compiler.shardings.factors import FactorRule


class Nullary(Op):
    """An op without operands. It has no derivative and no batch dim. It is recomputed where needed if `cheap`."""

    fusion = ALWAYS_FUSED
    cheap_to_recompute = is_constant = True

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(), None

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return ()

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(), None


@final
@record
class Full(Nullary):
    """An array whose elements are all `value`. `weak` is the weak type of a Python scalar."""

    name = "full"
    shape: tuple[int, ...]
    value: Scalar
    weak: bool = False

    @property
    def is_zero(self) -> bool:
        """Whether the elements are zeros."""
        return not self.value.array.any()

    def out_type(self) -> ArrayType:
        return ArrayType(self.shape, self.value.dtype, self.weak)

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(self.shape, 0)

    def padding(self, fills: Sequence[Any]) -> Any:
        return self.value.array

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return Full(context.out_shapes[0], self.value, self.weak)()

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        return hlo.constant(self.value.array, self.out_type())

    def reference(self, *operands: NumpyArray) -> NumpyArray:
        return np.full(self.shape, self.value.array)


@final
@record
class ArrayConstant(Nullary):
    """A concrete array that a program closes over. It becomes an input before layouts are planned.

    `array` is any object with a `type`, compared by identity.
    """

    name = "array_constant"
    cheap_to_recompute = False  # it is an input, and not recomputed
    array: "IdentityKey"

    def out_type(self) -> ArrayType:
        return self.array.value.type  # type: ignore[no-any-return]

    def reference(self, *operands: NumpyArray) -> NumpyArray:
        return np.asarray(self.array.value)


@final
@dataclass(frozen=True, eq=False)
class IdentityKey:
    """Wrap an unhashable object and compare it by identity."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def hashable(value: object) -> Any:
    """Return a static value, wrapped to compare by identity if it is not hashable."""
    try:
        hash(value)
    except TypeError:
        return IdentityKey(value)
    return value


def full(shape: tuple[int, ...], value: ScalarLike, dtype: DTypeLike, weak: bool = False) -> Any:
    """Return an array filled with `value`."""
    return Full(shape, Scalar.from_value(value, dtype), weak)()


def zeros_like(x: Operand) -> Any:
    """Return zeros with the shape and dtype of `x`."""
    return full(x.type.shape, 0, x.type.dtype)
