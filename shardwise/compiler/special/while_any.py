"""A loop over expressions, for series and iterations in the formulas of special functions."""

from collections.abc import Callable, Sequence

from shardwise.compiler.control import while_loop
from shardwise.compiler.ops.elementwise.expr import Expr


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
