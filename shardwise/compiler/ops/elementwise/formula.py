"""Functions of `Expr` that several ops are composed of: extrema, polynomials and loops."""

from collections.abc import Sequence

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
