"""Unsharded dims that keep their size although their padding class is padded: state is not copied, values are right."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ops.collective.collectives import PadOrTrim
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((3,), ("data",))
LAYERS, WIDTH, HIDDEN = 4, 8, 9
STATE = NamedSharding(MESH, P(None, None, "data"))  # evenly sharded
UNEVEN = NamedSharding(MESH, P("data", None))  # 8 rows on 3 devices


def update(weights, mean, gradient):
    mean = 0.9 * mean + 0.1 * gradient
    return weights - 0.1 * mean, mean


def loss(weights, x, constrain):
    def layer(h, w):
        w = lax.with_sharding_constraint(w, UNEVEN) if constrain else w
        return jnp.tanh(h @ w @ w.T), None

    return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)


def step(weights, mean, x, constrain=True):
    """Update stacked weights whose rows a loop shards unevenly, and the update does not shard at all."""
    return update(weights, mean, sw.grad(loss)(weights, x, constrain))


def microbatched(weights, mean, xs, constrain=True):
    def add(total, x):
        return total + sw.grad(loss)(weights, x, constrain), None

    return update(weights, mean, lax.scan(add, jnp.zeros_like(weights), xs)[0])


def arguments(function):
    rng = np.random.default_rng(0)
    weights, mean = rng.normal(size=(2, LAYERS, WIDTH, HIDDEN)).astype(np.float32) * 0.3
    x = rng.normal(size=(2, 6, WIDTH) if function is microbatched else (6, WIDTH)).astype(np.float32)
    return weights, mean, x


def local_program(function):
    *state, x = arguments(function)
    types = [sw.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=STATE) for leaf in state]
    x_type = sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(MESH, P()))
    jitted = sw.jit(function, donate_argnums=(0, 1), out_shardings=(STATE, STATE))
    return jitted.lower(*types, x_type)._prepared.stages.local


@pytest.mark.parametrize(("function", "resharded"), [(step, 0), (microbatched, 1)])
def test_no_state_is_resized(function, resharded):
    """The first `resharded` arguments are resharded before the loop, with other padding."""
    program = local_program(function).program
    assert any(isinstance(equation.op, PadOrTrim) for equation in program.walk())
    for equation in program.equations:
        if isinstance(equation.op, PadOrTrim):
            assert not set(equation.inputs) & set(program.inputs[resharded:2])
            assert not set(equation.outputs) & set(program.outputs)


@pytest.mark.parametrize("function", [step, microbatched])
def test_values_are_those_of_the_program(function):
    args = arguments(function)
    results = evaluate_shards(local_program(function), list(args))
    for result, expected in zip(results, function(*args, constrain=False), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-5)
