"""An output without a pin gets the layout of the nearest pinned value that it is computed from elementwise."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((4, 2), ("data", "model"))
ROWS, COLUMNS, REPLICATED = P("data", None), P(None, "data"), P(None, None)


def sharded(spec, *shape, dtype=np.float32):
    return sw.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, spec))


def output_layouts(function, *args):
    return [str(row.layout) for row in sw.jit(function).lower(*args).plan.outputs]


def constrained(x, spec):
    return lax.with_sharding_constraint(x, NamedSharding(MESH, spec))


X, Y = sharded(ROWS, 16, 16), sharded(COLUMNS, 16, 16)
R = sharded(REPLICATED, 16, 16)


@pytest.mark.parametrize(
    ("function", "args", "spec"),
    [
        (lambda p, g: p - 0.1 * (g @ g), (R, X), REPLICATED),
        (lambda p, m: p - 0.1 * m, (R, X), REPLICATED),
        (lambda p, m: 0.1 * p - m, (R, X), ROWS),
        (lambda x, y: x + jnp.tanh(y), (X, Y), ROWS),
        (lambda x, y: jnp.where(x > 0, y, 0), (X, Y), COLUMNS),
        (lambda x: x, (X,), ROWS),
        (lambda x: constrained(x, COLUMNS) * 2, (X,), COLUMNS),
        (lambda x: constrained(x, REPLICATED) * 2, (X,), REPLICATED),
        (lambda x, w: x + (x @ w), (X, R), ROWS),
    ],
    ids=[
        "parameter minus a product",
        "parameter minus sharded moments",
        "nearer operand",
        "nearer of two sharded operands",
        "predicate of where does not count",
        "identity",
        "sharding constraint",
        "constraint to replicated",
        "residual connection",
    ],
)
def test_output_has_the_layout_of_the_nearest_pinned_value(function, args, spec):
    assert output_layouts(function, *args) == [f"P{tuple(spec)}"]


def test_cost_decides_between_equally_near_values():
    """Slicing the replicated operand is free, all-gathering the sharded one is not."""
    assert output_layouts(jnp.add, R, X) == [str(ROWS)]
    assert output_layouts(jnp.add, X, R) == [str(ROWS)]


def test_values_of_other_dtypes_and_shapes_do_not_count():
    half = sharded(REPLICATED, 16, 16, dtype=np.float16)
    assert output_layouts(lambda p, x: p.astype(jnp.float32) + 2 * x, half, X) == [str(ROWS)]
    assert output_layouts(lambda b, x: jnp.broadcast_to(b, (16, 16)) + 2 * x, sharded(P(None), 16), X) == [str(ROWS)]


def test_out_shardings_take_precedence():
    step = sw.jit(lambda p: p * 2, out_shardings=NamedSharding(MESH, COLUMNS))
    assert [str(row.layout) for row in step.lower(X).plan.outputs] == [str(COLUMNS)]


def test_arguments_without_a_sharding_do_not_count():
    """A numpy argument is replicated, but not pinned by the user."""
    unplaced = np.ones((16, 16), np.float32)
    assert output_layouts(lambda p, x: p + 2 * x, unplaced, X) == [str(ROWS)]
    assert output_layouts(lambda p, x: p + 2 * x, R, X) == [str(REPLICATED)]


class TestLoops:
    def test_carry_keeps_the_layout_of_its_initial_value(self):
        """Parameters that a loop updates stay replicated."""

        def train(p, xs):
            return lax.scan(lambda p, x: (p - 0.1 * (x.T @ x), None), p, xs)[0]

        assert output_layouts(train, R, sharded(P(None, "data", None), 3, 8, 16)) == [str(REPLICATED)]

    def test_cost_decides_for_a_carry_with_equally_near_values(self):
        def scaled(x, ys):
            return lax.scan(lambda c, y: (c * y, None), x, ys)[0]

        assert output_layouts(scaled, R, sharded(P(None, "data", None), 3, 16, 16)) == [str(ROWS)]

    def test_stacked_outputs_have_the_layout_of_the_scanned_input(self):
        def doubled(xs):
            return lax.scan(lambda c, x: (c, 2 * x), 0.0, xs)[1]

        assert output_layouts(doubled, sharded(P(None, None, "data"), 3, 8, 16)) == ["P(None, None, 'data')"]

    def test_carry_that_is_not_elementwise_is_not_pinned(self):
        def state(h, w, xs):
            return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), h, xs)[0]

        args = sharded(REPLICATED, 8, 16), sharded(REPLICATED, 16, 16), sharded(P(None, "data", None), 3, 8, 16)
        assert output_layouts(state, *args) == [str(ROWS)]


def test_reason_names_the_nearest_value():
    plan = sw.jit(lambda p, m: p - 0.1 * m).lower(R, X).plan
    (row,) = plan.collectives
    assert row.kind == "all_gather"
    assert "`output`, which follows `p`, needs P(None, None)" in row.reason
