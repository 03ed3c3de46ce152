"""Formulas on arrays, for rules that compute: `(x - 1) * log(x)` for `Mul()(Sub()(x, like(x, 1)), Log()(x))`.

Operators of arrays and tracers promote by the user's settings. Those of a `Term` do not: a number beside it gets its
type, and two terms must have one type.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ops.control import while_loop
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Sub
from shardwise.compiler.ops.elementwise.base import like
from shardwise.compiler.ops.elementwise.bitwise import And, Not, Or
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.rounding import Floor
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Cos, Exp, Log, Log1p, Sin


@final
class Term:
    """An array in a formula."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any):
        self.array = array

    def _beside(self, other: Any) -> Any:
        return other.array if isinstance(other, Term) else like(self.array, other)

    def __add__(self, other: Any) -> "Term":
        return Term(Add()(self.array, self._beside(other)))

    def __radd__(self, other: Any) -> "Term":
        return Term(Add()(self._beside(other), self.array))

    def __sub__(self, other: Any) -> "Term":
        return Term(Sub()(self.array, self._beside(other)))

    def __rsub__(self, other: Any) -> "Term":
        return Term(Sub()(self._beside(other), self.array))

    def __mul__(self, other: Any) -> "Term":
        return Term(Mul()(self.array, self._beside(other)))

    def __rmul__(self, other: Any) -> "Term":
        return Term(Mul()(self._beside(other), self.array))

    def __truediv__(self, other: Any) -> "Term":
        return Term(Div()(self.array, self._beside(other)))

    def __rtruediv__(self, other: Any) -> "Term":
        return Term(Div()(self._beside(other), self.array))

    def __neg__(self) -> "Term":
        return Term(Neg()(self.array))

    def _compared(self, direction: str, other: Any) -> "Term":
        return Term(Compare(direction)(self.array, self._beside(other)))

    def __eq__(self, other: object) -> "Term":  # type: ignore[override]
        return self._compared("EQ", other)

    def __ne__(self, other: object) -> "Term":  # type: ignore[override]
        return self._compared("NE", other)

    def __lt__(self, other: Any) -> "Term":
        return self._compared("LT", other)

    def __le__(self, other: Any) -> "Term":
        return self._compared("LE", other)

    def __gt__(self, other: Any) -> "Term":
        return self._compared("GT", other)

    def __ge__(self, other: Any) -> "Term":
        return self._compared("GE", other)

    def __and__(self, other: "Term") -> "Term":
        return Term(And()(self.array, other.array))

    def __or__(self, other: "Term") -> "Term":
        return Term(Or()(self.array, other.array))

    def __invert__(self) -> "Term":
        return Term(Not()(self.array))

    def filled(self, number: Any) -> "Term":
        """A term of one number, with this one's type."""
        return Term(like(self.array, number))

    @property
    def dtype(self) -> Any:
        return self.array.type.dtype


def function(op: Op) -> Callable[[Term], Term]:
    """An op of one operand, in formulas."""
    return lambda x: Term(op(x.array))


absolute, floor, sqrt = function(Abs()), function(Floor()), function(Sqrt())
exp, log, log1p, sin, cos = function(Exp()), function(Log()), function(Log1p()), function(Sin()), function(Cos())


def minimum(x: Term, other: Any) -> Term:
    return Term(Min()(x.array, x._beside(other)))


def maximum(x: Term, other: Any) -> Term:
    return Term(Max()(x.array, x._beside(other)))


def where(which: Term, yes: Any, no: Any) -> Term:
    """One of the two may be a number."""
    term = yes if isinstance(yes, Term) else no
    return Term(Select()(which.array, term._beside(yes), term._beside(no)))


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """The sum of coefficients, from the lowest, times powers of `x`."""
    total = x.filled(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def repeated(
    name: str, start: Sequence[Term], goes_on: Callable[..., Term], step: Callable[..., Sequence[Term]]
) -> list[Term]:
    """Terms that `step` replaces as long as any element of `goes_on` is true of them."""
    arrays = while_loop.repeated(
        name,
        [term.array for term in start],
        lambda *values: goes_on(*map(Term, values)).array,
        lambda *values: [term.array for term in step(*map(Term, values))],
    )
    return list(map(Term, arrays))
