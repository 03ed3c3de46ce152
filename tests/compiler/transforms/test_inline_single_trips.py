"""inline_single_trips replaces scans of length 1 by their bodies, and the program computes the same."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.inline_single_trips import inline_single_trips
from shardwise.compiler.transforms.lower_keys import lower_keys
from shardwise.sharding import AxisType, NamedSharding
from shardwise.sharding import PartitionSpec as P

W, X = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)


def layer(x, w):
    return jnp.tanh(x @ w), x.sum(0)


def swapped(x, w):
    return lax.scan(lambda carry, _: ((carry[1], carry[0]), carry), (x, w), length=1)


def reversed_keys(x, w):
    keys = sw.random.split(sw.random.key(3), 1)
    return lax.scan(lambda c, each: (c + sw.random.normal(each[1], c.shape), each[0]), x, (w[None], keys), reverse=True)


def nested(x, w):
    """Two steps of a loop with an inner loop of one."""
    return lax.scan(lambda c, w: lax.scan(layer, c, w[None]), x, jnp.stack([w, 2 * w]))


def in_a_branch(x, w):
    return lax.cond(x.sum() > 0, lambda: lax.scan(layer, x, w[None])[0], lambda: x)


PROGRAMS = {
    "stack and carry": lambda x, w: lax.scan(layer, x, w[None]),
    "swapped carries": swapped,
    "keys": reversed_keys,
    "nested": nested,
    "loop in a loop of one": lambda x, w: lax.scan(lambda c, _: (nested(c, w)[0], None), x, length=1)[0],
    "branch": in_a_branch,
    "gradient": sw.grad(lambda x, w: (lax.scan(layer, x, w[None])[0] ** 2).sum(), argnums=(0, 1)),
    "unstacked operand is stacked again": lambda x, w: lax.scan(lambda c, w: (c, (w, w, c)), x, w[None]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_body_runs_once_without_a_loop(name):
    before = lower_keys(inline(sw.jit(PROGRAMS[name]).trace(X, W).program))
    after = verify(inline_single_trips(before))
    assert any(equation.op.name == "scan" and equation.op.length == 1 for equation in before.walk())
    assert not any(equation.op.name == "scan" and equation.op.length == 1 for equation in after.walk())
    results = (evaluate(program, (X, W)) for program in (before, after))
    for expected, result in zip(*results, strict=True):
        assert (expected.shape, expected.dtype) == (result.shape, result.dtype)
        np.testing.assert_array_equal(expected, result)


@pytest.mark.parametrize("length", [0, 2])
def test_other_loops_stay(length):
    program = inline(sw.jit(lambda x: lax.scan(lambda c, _: (c + 1, c), x, length=length)).trace(X).program)
    assert inline_single_trips(program) is program


def test_a_program_without_loops_is_the_same_object():
    program = sw.jit(lambda x: x + 1).trace(X).program
    assert inline_single_trips(program) is program


def test_explicit_shardings():
    mesh = sw.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
    x, w = sw.device_put(X, NamedSharding(mesh, P("data"))), sw.device_put(W, NamedSharding(mesh, P(None, "model")))

    def run(x, w):
        return lax.scan(layer, x, w[None])

    (y, sums), (expected, expected_sums) = sw.jit(run)(x, w), run(X, W)
    assert y.sharding.spec[0] == "data"
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)


def test_a_compiled_scan_of_length_1_holds_no_copies_of_slices():
    """The memory of the prediction is the memory of the body: XLA makes no loop of one iteration."""
    stack = sw.ShapeDtypeStruct((1, 64, 64), jnp.bfloat16)
    x = sw.ShapeDtypeStruct((64, 64), jnp.bfloat16)

    def scanned(x, stack):
        return lax.scan(lambda x, w: (x @ w, None), x, stack)[0]

    run, straight = (sw.simulate(function, hardware="cpu")(x, stack) for function in (scanned, lambda x, w: x @ w[0]))
    assert run.peak_bytes == straight.peak_bytes
