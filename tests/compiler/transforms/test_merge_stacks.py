"""merge_stacks: the reshape of a stack is a concatenation, and slices of the opposite reshape are plain slices."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.merge_stacks import merge_stacks
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

SHAPE = (6, 4)


def total_and_rows(stack):
    return stack.sum() + stack.reshape(12, 4)


def total_and_half(halves):
    return halves.sum() + halves[1:]


MERGED = {
    "stack": lambda x, y: jnp.stack([x, y]).reshape(12, 4),
    "stack of one array": lambda x, y: jnp.stack([x, x, y]).reshape(18, 4),
    "stack along dim 1": lambda x, y: jnp.stack([x, y], 1).reshape(6, 8),
    "all dims": lambda x, y: jnp.stack([x, y]).ravel(),
    "dims that do not nest": lambda x, y: jnp.stack([x, y]).reshape(4, 3, 4),
    "slices": lambda x, y: x.reshape(2, 3, 4)[1:] + y.reshape(2, 3, 4)[:1],
    "several rows": lambda x, y: x.reshape(3, 2, 4)[1:3],
    "a slice of columns": lambda x, y: x.reshape(6, 2, 2)[:, 1:],
    "the gradient of a stack": lambda x, y: sw.grad(
        lambda x: (jnp.stack([x, y]).reshape(12, 4) * jnp.arange(48.0).reshape(12, 4)).sum()
    )(x),
}
KEPT = {
    "a stack along the last dim": lambda x, y: jnp.stack([x, y], 2).reshape(6, 8),
    "a stack that stays": lambda x, y: jnp.stack([x, y]).reshape(2, 24),
    "a stack that is also used": lambda x, y: total_and_rows(jnp.stack([x, y])),
    "a long stack": lambda x, y: jnp.stack([x, y] * 5).reshape(60, 4),
    "longer arrays": lambda x, y: jnp.concatenate([x[None], y.reshape(1, 6, 4), x.reshape(1, 6, 4)]) * 2,
    "a reshape that is also used": lambda x, y: total_and_half(x.reshape(2, 3, 4)),
    "a stride": lambda x, y: x.reshape(3, 2, 4)[::2],
}


def programs(function):
    """Return a program of two arrays, and the one that it is rewritten to."""

    def body(x, y):
        reshaped = function(x, y)
        return [reshaped]

    program, _ = build(body, [ArrayType(SHAPE, np.float32)] * 2, "stacked")
    before = dce(inline(program))
    return before, dce(merge_stacks(before))


@pytest.mark.parametrize("name", [*MERGED, *KEPT])
def test_programs_compute_the_same(name):
    before, after = programs({**MERGED, **KEPT}[name])
    args = [np.random.default_rng(index).normal(size=SHAPE).astype(np.float32) for index in range(2)]
    np.testing.assert_array_equal(evaluate(after, args)[0], evaluate(before, args)[0])
    assert (after is before) == (name in KEPT)


def test_stacks_in_loops_are_merged():
    def function(x, y):
        return lax.fori_loop(0, 3, lambda _, x: jnp.stack([x[:3], y[3:]]).reshape(6, 4) + 1, x)

    before, after = programs(function)
    assert str(before) != str(after)
    args = [np.random.default_rng(index).normal(size=SHAPE).astype(np.float32) for index in range(2)]
    np.testing.assert_array_equal(evaluate(after, args)[0], evaluate(before, args)[0])


def test_halves_of_sharded_rows_are_exchanged():
    """Each device sends its rows once: to one device of either half."""
    mesh = sw.make_mesh((8,), ("rows",))
    x = np.arange(512.0 * 64, dtype=np.float32).reshape(512, 64)
    placed = sw.device_put(x, NamedSharding(mesh, P("rows")))
    function = sw.jit(lambda x: [x.reshape(2, 256, 64)[half : half + 1] for half in range(2)])
    plan = sw.explain(function)(placed)
    assert set(plan.counts()) <= {"take_window"}
    assert plan.wire_bytes <= 2 * x.nbytes / 8
    for half, result in enumerate(function(placed)):
        assert result.sharding.spec == P(None, "rows")
        np.testing.assert_array_equal(result, x.reshape(2, 256, 64)[half : half + 1])
