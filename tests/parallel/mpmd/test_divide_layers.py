"""divide_layers: models that scan over their layers as pipelines."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import StrategyError
from shardwise.models import Decoder
from shardwise.parallel import mpmd_pipeline, split_stages, stage_boundary
from shardwise.sharding import Mesh
from shardwise.sharding import PartitionSpec as P

LAYERS, WIDTH, ROWS, MICROBATCHES = 5, 6, 8, 2


def arguments():
    rng = np.random.default_rng(0)
    layers = {"w": rng.normal(size=(LAYERS, WIDTH, WIDTH)) / 2, "b": rng.normal(size=(LAYERS, WIDTH))}
    params = {"embedding": rng.normal(size=(WIDTH, WIDTH)), "layers": layers, "head": rng.normal(size=(WIDTH, 3))}
    x, y = rng.normal(size=(ROWS, WIDTH)), rng.normal(size=(ROWS, 3))
    return sw.tree_util.tree_map(lambda leaf: leaf.astype(np.float32), (params, x, y))


def model(params, x, y, reverse=False, wrap=lambda layer: layer):
    """Layers get their index, and return a value that the loss adds. One of their weights is cast before the scan."""
    scale = jnp.float32(0.5)

    @wrap
    def layer(x, weights):
        w, b, index = weights
        x = x + jnp.tanh(x @ w.astype(jnp.float32) + b) * scale
        return x, (x**2).mean() * index

    weights = params["layers"]["w"].astype(jnp.float16), params["layers"]["b"], jnp.arange(LAYERS) / 10
    x, losses = lax.scan(layer, x @ params["embedding"], weights, reverse=reverse)
    return ((x @ params["head"] - y) ** 2).mean() + losses.sum()


def check(model, stages, schedule, spec=None):
    params, x, y = arguments()
    staged = split_stages(model, params, x, y, microbatches=MICROBATCHES, stages=stages)
    size = 8 // len(staged.stages)
    devices = np.array(sw.devices())
    meshes = [Mesh(devices[k * size : (k + 1) * size], ("data",)) for k in range(len(staged.stages))]
    train = mpmd_pipeline(staged.stages, meshes, MICROBATCHES, schedule, spec=spec)
    loss, parts = train.value_and_grad(staged.split(params), x, y)
    expected, expected_gradients = sw.value_and_grad(model)(sw.tree_util.tree_map(jnp.asarray, params), x, y)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    sw.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4), staged.join(parts), expected_gradients
    )
    return staged


def test_gradients_equal_the_models():
    staged = check(model, 2, "1f1b", P("data"))
    assert staged.layers == (3, 2)
    assert staged.owners == (0, 1, None, None)  # embedding, head, two stacks of weights


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["zb-h1", "gpipe"])
@pytest.mark.parametrize("stages", [(1, 1, 2, 1), 5, 1])
def test_unequal_stages(stages, schedule):
    check(model, stages, schedule)


def test_rematerialized_layers_save_only_their_input():
    sizes = Decoder(4, 16, 2, 2, 8, 32, 64)
    tokens = sw.ShapeDtypeStruct((4, 9), np.int32)

    def residuals(remat):
        staged = split_stages(
            lambda w, x: sizes.loss(w, x, remat), sizes.weights(), tokens, microbatches=2, stages=[3, 1]
        )
        params, rows = staged.split(sizes.weights())[0], sw.ShapeDtypeStruct((2, 9), np.int32)
        _, pull_back = sw.eval_shape(lambda w, x: sw.vjp(lambda w: staged.stages[0](w, x)[0], w), params, rows)
        return [leaf.shape for leaf in sw.tree_util.tree_leaves(pull_back) if leaf.dtype == jnp.bfloat16]

    assert residuals(sw.checkpoint) == [(3, 2, 8, 16)]
    assert len(residuals(None)) > 5


def test_errors():
    params, x, y = arguments()

    def message(function, stages=2):
        with pytest.raises(StrategyError) as raised:
            split_stages(function, params, x, y, microbatches=MICROBATCHES, stages=stages)
        return str(raised.value)

    def unrolled(params, x, y):
        return (x @ params["embedding"] @ params["head"] - y).mean()

    def marked(params, x, y):
        return model(params, stage_boundary(x), y)

    def twice(params, x, y):
        return model(params, x, y) + params["layers"]["b"].sum()

    assert "no `scan` over the stacked weights" in message(unrolled)
    assert "no `scan` over the stacked weights" in message(lambda *args: model(*args, reverse=True))
    assert "leave `stages` out" in message(marked)
    assert "['layers']['b'] is used by the stages [0, 1]" in message(twice)
    for wrong in (0, 6, -1, (2, 2), (5, 0), ()):
        assert "has 5 layers" in message(model, wrong)
