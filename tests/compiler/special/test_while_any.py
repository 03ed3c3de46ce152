"""The loop of special functions: it runs until no element needs another iteration."""

import shardwise.numpy as jnp
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.special.while_any import while_any


def test_runs_until_the_slowest_element_has_converged():
    x = Expr(jnp.array([0.5, 3.0, 100.0]))
    halved, iterations = while_any(
        "halve",
        [x, x.full_like(0)],
        lambda x, count: x > 1,
        lambda x, count: [where(x > 1, x / 2, x), count + 1],
    )
    assert halved.array.tolist() == [0.5, 0.75, 0.78125]
    assert iterations.array.tolist() == [7, 7, 7]


def test_runs_no_iteration_if_no_element_needs_one():
    x = Expr(jnp.array([0.5, 1.0]))
    (same,) = while_any("halve", [x], lambda x: x > 1, lambda x: [x / 2])
    assert same.array.tolist() == [0.5, 1.0]
