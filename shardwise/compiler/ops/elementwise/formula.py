"""Functions of `Expr` that several ops are composed of: extrema, polynomials and loops."""

from collections.abc import Callable, Sequence

from shardwise.compiler.ops.control import while_loop
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.min_max import Max, Min


def minimum(x: Expr, other: Expr | float) -> Expr:
    return Expr(Min()(x.array, x.operand(other)))


def maximum(x: Expr, other: Expr | float) -> Expr:
    return Expr(Max()(x.array, x.operand(other)))


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Evaluate a polynomial by Horner's scheme. The coefficient of the lowest power comes first."""
    total = x.full_like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def while_any(
    name: str, start: Sequence[Expr], condition: Callable[..., Expr], body: Callable[..., Sequence[Expr]]
) -> list[Expr]:
    """Apply `body` repeatedly while any element of `condition` is true; return the final carry."""
    arrays = while_loop.while_any(
        name,
        [expr.array for expr in start],
        lambda *carry: condition(*map(Expr, carry)).array,
        lambda *carry: [expr.array for expr in body(*map(Expr, carry))],
    )
    return list(map(Expr, arrays))
