"""autoshard of ordinary steps that scan over their layers: pipelines are among the alternatives, and run."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.models import Decoder, train_state, train_step
from shardwise.models.feed_forward import Experts
from shardwise.sharding import AbstractMesh

ROWS, WIDTH, LAYERS = 16, 16, 4
WEIGHTS = np.linspace(-0.5, 0.5, LAYERS * WIDTH * WIDTH, dtype=np.float32).reshape(LAYERS, WIDTH, WIDTH)
X = np.linspace(-1, 1, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)


def step(weights, x):
    def loss(weights):
        return jnp.mean(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0] ** 2)

    value, gradient = sw.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


def losses(function, weights, steps=3):
    values = []
    for _ in range(steps):
        weights, value = function(weights, X)
        values.append(float(value))
    return values


def test_a_pipeline_of_an_ordinary_step_has_its_losses():
    result = sw.autoshard(step, stages=(4,))(WEIGHTS, X)
    assert result.stages == result.mesh.shape["stage"] == 4 and result.microbatches in (4, 8, 16)
    assert result.in_shardings[0].spec[0] == "stage"
    assert result.best.schedule == "gpipe" and result.best.bubble > 0
    np.testing.assert_allclose(losses(result.jit(), WEIGHTS), losses(sw.jit(step), WEIGHTS), rtol=1e-5)


@pytest.mark.slow
def test_pipelines_are_compared_with_other_layouts():
    """By default, stages are tried on devices of several nodes."""
    types = [sw.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in (WEIGHTS, X)]
    result = sw.autoshard(step, hardware="h100", count=16)(*types)
    assert {plan.variant.stages for plan in result.alternatives} > {1}
    assert "microbatches" in str(result)
    within = sw.autoshard(step, hardware="h100", count=8)(*types)
    assert {plan.variant.stages for plan in within.alternatives} == {1}
    mesh = AbstractMesh((2, 4), ("stage", "data"))
    on_mesh = sw.autoshard(step, mesh=mesh, hardware="h100")(*types)
    assert {plan.variant.stages for plan in on_mesh.alternatives} == {1, 2}


def test_errors():
    with pytest.raises(ValueError, match=r"none of the numbers of stages, \(3,\), divides the 8 devices"):
        sw.autoshard(step, stages=(3,))(WEIGHTS, X)
    with pytest.raises(ValueError, match=r"none of the numbers of stages, \(8,\), divides the 4 layers"):
        sw.autoshard(step, stages=(8,))(WEIGHTS, X)
    with pytest.raises(ValueError, match="no number of microbatches divides the rows"):
        sw.autoshard(step, stages=(4,), microbatches=(5,))(WEIGHTS, X)
    with pytest.raises(ValueError, match=r"has no scan over layers that can be a pipeline, so `stages` must contain 1"):
        sw.autoshard(lambda w, x: (w - 0.1 * x.T @ (x @ w), None), stages=(2, 4))(WEIGHTS[0], X)


@pytest.mark.slow
@pytest.mark.parametrize("experts", [None, Experts(4, 2, 16)], ids=["dense", "experts"])
def test_decoders_have_the_losses_of_one_device(experts):
    sizes = Decoder(4, 32, 4, 2, 8, 64, 96, experts=experts)
    rng = np.random.default_rng(0)

    def start(path, leaf):
        is_weight = path[0].key == "weights"
        return (0.1 * rng.normal(size=leaf.shape) if is_weight else np.zeros(leaf.shape)).astype(leaf.dtype)

    state = sw.tree_util.tree_map_with_path(start, train_state(sizes))
    tokens = rng.integers(0, 96, (16, 17)).astype(np.int32)
    result = sw.autoshard(train_step(sizes), stages=(2, 4))(state, tokens)
    assert result.stages in (2, 4)
    run, expected, one = result.jit(), sw.jit(train_step(sizes)), state
    for _ in range(4):
        state, loss = run(state, tokens)
        one, other = expected(one, tokens)
        np.testing.assert_allclose(loss, other, rtol=1e-4)
