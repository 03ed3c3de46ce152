"""Expr: operators on arrays for rules: `(x - 1) * log(x)` for `Mul()(Sub()(x, full_like(x, 1)), Log()(x))`.

The operators of arrays and tracers promote according to the user's settings. The operators of an `Expr` do not: a
Python number gets the type of the other operand, and two `Expr` operands must have the same type. Each operator applies
one op, so a formula determines the ops of its program and their order.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, final

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.types import ScalarLike
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Sub
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import And, Not, Or
from shardwise.compiler.ops.elementwise.select import Compare, Select

ExprLike: TypeAlias = "Expr | ScalarLike"


@final
class Expr:
    """An array with operators that apply ops without promotion."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Operand):
        self.array: Any = array  # typed `Any`, because higher layers use it as an `Array`

    def operand(self, other: ExprLike) -> Any:
        """Return the array of another expression, or an array of this type with all elements equal to a number."""
        return other.array if isinstance(other, Expr) else full_like(self.array, other)

    def __add__(self, other: ExprLike) -> "Expr":
        return Expr(Add()(self.array, self.operand(other)))

    def __radd__(self, other: ExprLike) -> "Expr":
        return Expr(Add()(self.operand(other), self.array))

    def __sub__(self, other: ExprLike) -> "Expr":
        return Expr(Sub()(self.array, self.operand(other)))

    def __rsub__(self, other: ExprLike) -> "Expr":
        return Expr(Sub()(self.operand(other), self.array))

    def __mul__(self, other: ExprLike) -> "Expr":
        return Expr(Mul()(self.array, self.operand(other)))

    def __rmul__(self, other: ExprLike) -> "Expr":
        return Expr(Mul()(self.operand(other), self.array))

    def __truediv__(self, other: ExprLike) -> "Expr":
        return Expr(Div()(self.array, self.operand(other)))

    def __rtruediv__(self, other: ExprLike) -> "Expr":
        return Expr(Div()(self.operand(other), self.array))

    def __neg__(self) -> "Expr":
        return Expr(Neg()(self.array))

    def _compare(self, direction: str, other: ExprLike) -> "Expr":
        return Expr(Compare(direction)(self.array, self.operand(other)))

    def __eq__(self, other: ExprLike) -> "Expr":  # type: ignore[override]
        return self._compare("EQ", other)

    def __ne__(self, other: ExprLike) -> "Expr":  # type: ignore[override]
        return self._compare("NE", other)

    def __lt__(self, other: ExprLike) -> "Expr":
        return self._compare("LT", other)

    def __le__(self, other: ExprLike) -> "Expr":
        return self._compare("LE", other)

    def __gt__(self, other: ExprLike) -> "Expr":
        return self._compare("GT", other)

    def __ge__(self, other: ExprLike) -> "Expr":
        return self._compare("GE", other)

    def __and__(self, other: ExprLike) -> "Expr":
        return Expr(And()(self.array, self.operand(other)))

    def __or__(self, other: ExprLike) -> "Expr":
        return Expr(Or()(self.array, self.operand(other)))

    def __invert__(self) -> "Expr":
        return Expr(Not()(self.array))

    def full_like(self, number: ScalarLike) -> "Expr":
        """Return an expression of the same type with all elements equal to `number`."""
        return Expr(full_like(self.array, number))

    @property
    def dtype(self) -> Any:
        return self.array.type.dtype


def apply(op: Op, *operands: Expr) -> Expr:
    """Apply an op with one result to expressions."""
    return Expr(op(*[x.array for x in operands]))


def unary_function(op_class: Callable[[], Op]) -> Callable[[Expr], Expr]:
    """Convert an op with one operand and no fields to a function of expressions."""
    return lambda x: apply(op_class(), x)


def where(condition: Expr, x: ExprLike, y: ExprLike) -> Expr:
    """Select `x` where the condition holds, else `y`. One of the two may be a Python number."""
    expr = x if isinstance(x, Expr) else y
    assert isinstance(expr, Expr)
    return Expr(Select()(condition.array, expr.operand(x), expr.operand(y)))
