"""split_stages: models with marked boundaries as pipelines."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import StrategyError
from shardwise.parallel import mpmd_pipeline, split_stages, stage_boundary
from shardwise.sharding import Mesh

WIDTH, ROWS, MICROBATCHES = 5, 8, 2


def arguments():
    rng = np.random.default_rng(0)
    params = {"layers": [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 2 for _ in range(4)]}
    params["unused"] = np.ones(2, np.float32)
    x, y = rng.normal(size=(2, ROWS, WIDTH)).astype(np.float32)
    return params, {"x": x, "weight": np.ones((ROWS, 1), np.float32)}, y


def model(params, batch, y, boundaries=(0, 2), scale=None):
    """The embedding is added again at the end, and the batch is used in the last stage."""
    x = first = batch["x"] * 2.0
    for index, w in enumerate(params["layers"]):
        x = x + sw.jit(jnp.tanh)(x @ w) * (1.0 if scale is None else scale)
        if index in boundaries:
            x = stage_boundary(x)
    return (((x + first - y) ** 2) * batch["weight"]).mean()


def test_gradients_equal_the_models():
    params, batch, y = arguments()
    scale = jnp.float32(1.5)  # an array that the model captures

    def scaled(params, batch, y):
        return model(params, batch, y, scale=scale)

    staged = split_stages(scaled, params, batch, y, microbatches=MICROBATCHES)
    assert staged.owners == (0, 1, 1, 2, 0) and len(staged.stages) == 3
    meshes = [Mesh(np.array([device]), ("data",)) for device in sw.devices()[:3]]
    train = mpmd_pipeline(staged.stages, meshes, MICROBATCHES, "zb-h1")
    loss, parts = train.value_and_grad(staged.split(params), batch, y)
    expected, expected_gradients = sw.value_and_grad(scaled)(sw.tree_util.tree_map(jnp.asarray, params), batch, y)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    gradients = staged.join(parts)
    sw.tree_util.tree_map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), gradients, expected_gradients
    )


def test_model_without_boundaries_is_one_stage():
    params, batch, y = arguments()
    staged = split_stages(lambda *args: model(*args, boundaries=()), params, batch, y, microbatches=MICROBATCHES)
    assert len(staged.stages) == 1 and set(staged.owners) == {0}
    rows = sw.tree_util.tree_map(lambda leaf: leaf[: ROWS // MICROBATCHES], (batch, y))
    np.testing.assert_allclose(staged.stages[0](staged.split(params)[0], *rows), model(params, *rows), rtol=1e-5)


def test_a_model_with_auxiliary_results():
    params, batch, y = arguments()

    def with_aux(*args):
        return model(*args), {"x": args[1]["x"].sum(), "weight": (args[0]["layers"][3] ** 2).sum()}

    staged = split_stages(with_aux, params, batch, y, microbatches=MICROBATCHES, has_aux=True)
    assert staged.has_aux and len(staged.stages) == 3
    meshes = [Mesh(np.array([device]), ("data",)) for device in sw.devices()[:3]]
    train = mpmd_pipeline(staged.stages, meshes, MICROBATCHES, has_aux=True)
    (loss, aux), _ = train.value_and_grad(staged.split(params), batch, y)
    np.testing.assert_allclose(loss, model(params, batch, y), rtol=1e-5)
    np.testing.assert_allclose(aux["x"], [batch["x"][index::MICROBATCHES].sum() for index in range(2)], rtol=1e-4)
    np.testing.assert_allclose(aux["weight"], [(params["layers"][3] ** 2).sum()] * 2, rtol=1e-5)


def test_the_last_stage_combines_targets_with_the_batch():
    params, batch, y = arguments()

    def masked(params, batch, y):
        weight = batch["weight"] * (batch["x"] * y > 0).mean(-1, keepdims=True)
        return model(params, {**batch, "weight": weight}, y), weight

    staged = split_stages(masked, params, batch, y, microbatches=MICROBATCHES, has_aux=True)
    meshes = [Mesh(np.array([device]), ("data",)) for device in sw.devices()[:3]]
    train = mpmd_pipeline(staged.stages, meshes, MICROBATCHES, has_aux=True)
    (loss, _), _ = train.value_and_grad(staged.split(params), batch, y)
    np.testing.assert_allclose(loss, masked(params, batch, y)[0], rtol=1e-5)


def test_an_auxiliary_result_may_be_a_parameter():
    params, batch, y = arguments()

    def result(*indices):
        def with_aux(*args):
            return model(*args), [args[0]["layers"][index] for index in indices]

        staged = split_stages(with_aux, params, batch, y, microbatches=MICROBATCHES, has_aux=True)
        meshes = [Mesh(np.array([device]), ("data",)) for device in sw.devices()[:3]]
        train = mpmd_pipeline(staged.stages, meshes, MICROBATCHES, has_aux=True)
        (_, aux), _ = train.value_and_grad(staged.split(params), batch, y)
        return aux

    np.testing.assert_array_equal(result(3)[0], np.stack([params["layers"][3]] * MICROBATCHES))
    with pytest.raises(StrategyError, match=r"\['layers'\]\[0\] is used by the stages \[0, 2\]"):
        result(3, 0)


def test_errors():
    params, batch, y = arguments()

    def message(function):
        with pytest.raises(StrategyError) as raised:
            split_stages(function, params, batch, y, microbatches=MICROBATCHES)
        return str(raised.value)

    def tied(params, batch, y):
        w = params["layers"][0]
        return ((stage_boundary(batch["x"] @ w) @ w - y) ** 2).mean()

    def early_target(params, batch, y):
        return (stage_boundary(batch["x"] - y) * 2).mean()

    def in_a_loop(params, batch, y):
        return lax.scan(lambda x, _: (stage_boundary(x), None), batch["x"], None, length=2)[0].mean()

    assert "the parameter ['layers'][0] is used by the stages [0, 1]" in message(tied)
    assert "stage 0 of 2 uses a target" in message(early_target)
    assert "stage_boundary is inside `scan`" in message(in_a_loop)
    with pytest.raises(StrategyError, match=r"with has_aux=True the model returns a pair \(loss, aux\)"):
        split_stages(model, params, batch, y, microbatches=MICROBATCHES, has_aux=True)
    with pytest.raises(StrategyError, match="the last stage_boundary must be on the path"):
        split_stages(
            lambda params, batch, y: (stage_boundary(batch["x"]), (batch["x"] - y).mean())[1],
            params, batch, y, microbatches=2,
        )  # fmt: skip
