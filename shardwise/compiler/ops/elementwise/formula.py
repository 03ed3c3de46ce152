"""Formulas on arrays, for rules that compute: `(x - 1) * log(x)` for `Mul()(Sub()(x, like(x, 1)), Log()(x))`.

Operators of arrays and tracers promote by the user's settings. Those of a `Expr` do not: a number beside it gets its
type, and two terms must have one type.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.control import while_loop
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, Not, Or
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.rounding import Floor
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Cos, Exp, Log, Log1p, Sin


@final
class Expr:
    """An array in a formula."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any):
        self.array = array

    def _beside(self, other: Any) -> Any:
        return other.array if isinstance(other, Expr) else full_like(self.array, other)

    def __add__(self, other: Any) -> "Expr":
        return Expr(Add()(self.array, self._beside(other)))

    def __radd__(self, other: Any) -> "Expr":
        return Expr(Add()(self._beside(other), self.array))

    def __sub__(self, other: Any) -> "Expr":
        return Expr(Sub()(self.array, self._beside(other)))

    def __rsub__(self, other: Any) -> "Expr":
        return Expr(Sub()(self._beside(other), self.array))

    def __mul__(self, other: Any) -> "Expr":
        return Expr(Mul()(self.array, self._beside(other)))

    def __rmul__(self, other: Any) -> "Expr":
        return Expr(Mul()(self._beside(other), self.array))

    def __truediv__(self, other: Any) -> "Expr":
        return Expr(Div()(self.array, self._beside(other)))

    def __rtruediv__(self, other: Any) -> "Expr":
        return Expr(Div()(self._beside(other), self.array))

    def __neg__(self) -> "Expr":
        return Expr(Neg()(self.array))

    def _compared(self, direction: str, other: Any) -> "Expr":
        return Expr(Compare(direction)(self.array, self._beside(other)))

    def __eq__(self, other: object) -> "Expr":  # type: ignore[override]
        return self._compared("EQ", other)

    def __ne__(self, other: object) -> "Expr":  # type: ignore[override]
        return self._compared("NE", other)

    def __lt__(self, other: Any) -> "Expr":
        return self._compared("LT", other)

    def __le__(self, other: Any) -> "Expr":
        return self._compared("LE", other)

    def __gt__(self, other: Any) -> "Expr":
        return self._compared("GT", other)

    def __ge__(self, other: Any) -> "Expr":
        return self._compared("GE", other)

    def __and__(self, other: "Expr") -> "Expr":
        return Expr(And()(self.array, other.array))

    def __or__(self, other: "Expr") -> "Expr":
        return Expr(Or()(self.array, other.array))

    def __invert__(self) -> "Expr":
        return Expr(Not()(self.array))

    def full_like(self, number: Any) -> "Expr":
        """A term of one number, with this one's type."""
        return Expr(full_like(self.array, number))

    @property
    def dtype(self) -> Any:
        return self.array.type.dtype


def unary_function(op: Op) -> Callable[[Expr], Expr]:
    """An op of one operand, in formulas."""
    return lambda x: Expr(op(x.array))


absolute, floor, sqrt = unary_function(Abs()), unary_function(Floor()), unary_function(Sqrt())
exp, log, log1p, sin, cos = (
    unary_function(Exp()),
    unary_function(Log()),
    unary_function(Log1p()),
    unary_function(Sin()),
    unary_function(Cos()),
)


def minimum(x: Expr, other: Any) -> Expr:
    return Expr(Min()(x.array, x._beside(other)))


def maximum(x: Expr, other: Any) -> Expr:
    return Expr(Max()(x.array, x._beside(other)))


def where(which: Expr, yes: Any, no: Any) -> Expr:
    """One of the two may be a number."""
    term = yes if isinstance(yes, Expr) else no
    return Expr(Select()(which.array, term._beside(yes), term._beside(no)))


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """The sum of coefficients, from the lowest, times powers of `x`."""
    total = x.full_like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def while_any(
    name: str, start: Sequence[Expr], goes_on: Callable[..., Expr], step: Callable[..., Sequence[Expr]]
) -> list[Expr]:
    """Terms that `step` replaces as long as any element of `goes_on` is true of them."""
    arrays = while_loop.while_any(
        name,
        [term.array for term in start],
        lambda *values: goes_on(*map(Expr, values)).array,
        lambda *values: [term.array for term in step(*map(Expr, values))],
    )
    return list(map(Expr, arrays))
