"""Outputs that nobody pinned lie as the nearest pinned value that they are made of."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((4, 2), ("data", "model"))
ROWS, COLUMNS, WHOLE = P("data", None), P(None, "data"), P(None, None)


def sharded(spec, *shape, dtype=np.float32):
    return sw.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, spec))


def layouts(function, *args):
    return [str(row.layout) for row in sw.jit(function).lower(*args).plan.outputs]


def constrained(x, spec):
    return lax.with_sharding_constraint(x, NamedSharding(MESH, spec))


X, Y = sharded(ROWS, 16, 16), sharded(COLUMNS, 16, 16)
R = sharded(WHOLE, 16, 16)


@pytest.mark.parametrize(
    ("function", "args", "spec"),
    [
        (lambda p, g: p - 0.1 * (g @ g), (R, X), WHOLE),
        (lambda p, m: p - 0.1 * m, (R, X), WHOLE),
        (lambda p, m: 0.1 * p - m, (R, X), ROWS),
        (lambda x, y: x + jnp.tanh(y), (X, Y), ROWS),
        (lambda x, y: jnp.where(x > 0, y, 0), (X, Y), COLUMNS),
        (lambda x: x, (X,), ROWS),
        (lambda x: constrained(x, COLUMNS) * 2, (X,), COLUMNS),
        (lambda x: constrained(x, WHOLE) * 2, (X,), WHOLE),
        (lambda x, w: x + (x @ w), (X, R), ROWS),
    ],
    ids=[
        "parameters of a product",
        "parameters of moments that are cut",
        "the nearer one",
        "the nearer of two cuts",
        "a choice is no element",
        "itself",
        "a constraint",
        "a constraint to be whole",
        "a residual",
    ],
)
def test_the_nearest(function, args, spec):
    assert layouts(function, *args) == [f"P{tuple(spec)}"]


def test_where_two_are_as_near_the_cost_decides():
    """Whole and cut: cutting is free, so that it stays cut. The other way round would be a gather."""
    assert layouts(jnp.add, R, X) == [str(ROWS)]
    assert layouts(jnp.add, X, R) == [str(ROWS)]


def test_other_types_and_shapes_are_not_followed():
    half = sharded(WHOLE, 16, 16, dtype=np.float16)
    assert layouts(lambda p, x: p.astype(jnp.float32) + 2 * x, half, X) == [str(ROWS)]
    assert layouts(lambda b, x: jnp.broadcast_to(b, (16, 16)) + 2 * x, sharded(P(None), 16), X) == [str(ROWS)]


def test_a_pin_of_the_output_comes_first():
    step = sw.jit(lambda p: p * 2, out_shardings=NamedSharding(MESH, COLUMNS))
    assert [str(row.layout) for row in step.lower(X).plan.outputs] == [str(COLUMNS)]


def test_what_nobody_placed_is_not_followed():
    """A numpy array is brought to the devices whole; that says nothing about results."""
    whole = np.ones((16, 16), np.float32)
    assert layouts(lambda p, x: p + 2 * x, whole, X) == [str(ROWS)]
    assert layouts(lambda p, x: p + 2 * x, R, X) == [str(WHOLE)]


class TestLoops:
    def test_steps_in_a_loop(self):
        """Parameters that a loop carries from step to step are whole at its end, as they started."""

        def train(p, xs):
            return lax.scan(lambda p, x: (p - 0.1 * (x.T @ x), None), p, xs)[0]

        assert layouts(train, R, sharded(P(None, "data", None), 3, 8, 16)) == [str(WHOLE)]

    def test_a_carry_that_meets_others_in_the_loop_is_left_to_the_cost(self):
        def scaled(x, ys):
            return lax.scan(lambda c, y: (c * y, None), x, ys)[0]

        assert layouts(scaled, R, sharded(P(None, "data", None), 3, 16, 16)) == [str(ROWS)]

    def test_stacks_lie_as_what_they_are_made_of_slice_by_slice(self):
        def doubled(xs):
            return lax.scan(lambda c, x: (c, 2 * x), 0.0, xs)[1]

        assert layouts(doubled, sharded(P(None, None, "data"), 3, 8, 16)) == ["P(None, None, 'data')"]

    def test_what_does_not_come_out_element_by_element_is_free(self):
        def state(h, w, xs):
            return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), h, xs)[0]

        args = sharded(WHOLE, 8, 16), sharded(WHOLE, 16, 16), sharded(P(None, "data", None), 3, 8, 16)
        assert layouts(state, *args) == [str(ROWS)]


def test_the_reason_says_whom_it_follows():
    plan = sw.jit(lambda p, m: p - 0.1 * m).lower(R, X).plan
    (row,) = plan.collectives
    assert row.kind == "all_gather"
    assert "output 0, which follows `p`, needs P(None, None)" in row.reason
