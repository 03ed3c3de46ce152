"""autoshard_pipeline: the chosen pipeline is simulated, fits, and computes what one device computes."""

import functools

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import AutoshardError, HardwareError, StrategyError
from shardwise.layout_search.autoshard_pipeline import AutoPipeline
from shardwise.models import Decoder
from tests.parallel.mpmd import training_steps

SMALL = Decoder(4, 64, 4, 4, 16, 128, 256)
TOKENS = sw.ShapeDtypeStruct((8, 17), np.int32)


def search(**options):
    options = {"hardware": "h100", "count": 8, "stages": (2,), "microbatches": (4,), "schedules": ("1f1b",), **options}
    return sw.autoshard_pipeline(SMALL.loss, **options)


@pytest.fixture(scope="module")
def found():
    return search()(SMALL.weights(), TOKENS)


@pytest.mark.slow
def test_it_is_simulated(found):
    with pytest.raises(ValueError, match="`loss` is a loss, not a training step: call `pipeline`"):
        found.step(sw.devices())
    assert "2 stages" in str(found) and found.seconds == found.best.run.seconds
    assert found.best.fits and sum(layout.mesh.size for layout in found.best.layouts) == 8
    with pytest.raises(ValueError, match="for 8 devices, not 3"):
        found.pipeline(sw.devices()[:3])


@pytest.mark.slow
def test_it_computes_what_one_device_computes(found):
    rng = np.random.default_rng(0)
    weights = sw.tree_util.tree_map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * 0.1, leaf.dtype), SMALL.weights()
    )
    tokens = rng.integers(0, 256, TOKENS.shape).astype(np.int32)
    pipeline = found.pipeline(sw.devices())
    loss, gradients = pipeline.value_and_grad(found.place(weights, sw.devices()), tokens)
    expected, expected_gradients = sw.value_and_grad(SMALL.loss)(weights, tokens)
    np.testing.assert_allclose(loss, expected, rtol=1e-3)
    head, expected_head = found.model.join(gradients)["head"], expected_gradients["head"]
    np.testing.assert_allclose(head, expected_head, rtol=0.1, atol=2e-3)  # products are computed in bfloat16


@pytest.mark.slow
def test_all_are_compared():
    found = search(stages=None, microbatches=None, schedules=("1f1b", "zb-h1"))(SMALL.weights(), TOKENS)
    assert {len(each.layouts) for each in found.alternatives} == {1, 2, 4}
    assert {each.schedule for each in found.alternatives} == {"1f1b", "zb-h1"}
    times = [each.run.seconds for each in found.alternatives if each.fits]
    assert times == sorted(times)
    for each in found.alternatives:
        assert sum(layout.mesh.size for layout in each.layouts) == 8


@pytest.mark.slow
def test_other_schedules_are_estimated_and_some_simulated():
    found = search(schedules=("1f1b", "interleaved", "zb-h1", "zb-v"), chunks=(2,))(SMALL.weights(), TOKENS)
    assert {(each.schedule, each.chunks) for each in found.alternatives} == {
        ("1f1b", 1),
        ("interleaved", 2),
        ("zb-h1", 1),
        ("zb-v", 2),
    }
    rng = np.random.default_rng(0)
    weights = sw.tree_util.tree_map(lambda leaf: np.asarray(rng.normal(size=leaf.shape) * 0.1), SMALL.weights())
    tokens = rng.integers(0, 256, TOKENS.shape).astype(np.int32)
    (interleaved,) = [each for each in found.alternatives if each.schedule == "interleaved"]
    chosen = AutoPipeline("loss", [interleaved], {})
    loss, _ = chosen.pipeline(sw.devices()).value_and_grad(chosen.place(weights, sw.devices()), tokens)
    np.testing.assert_allclose(loss, SMALL.loss(weights, tokens), rtol=1e-3)


@pytest.mark.slow
def test_a_training_step_is_divided():
    args = (training_steps.adam_state(), *training_steps.batch(), 0.01)
    options = {"hardware": "h100", "count": 8, "stages": (2,), "microbatches": (4,), "schedules": ("1f1b",)}
    found = sw.autoshard_pipeline(training_steps.clipped_adam, **options)(*args)
    assert "2 stages" in str(found)
    train, expected = found.step(sw.devices()), args[0]
    (state, *batch) = train.place(*args)
    params, mean = state["params"], state["mean"]
    for leaf, follower in zip(*map(sw.tree_util.tree_leaves, (params, mean)), strict=True):
        assert leaf.sharding == follower.sharding  # the optimizer's state is sharded as its parameters are
    for _ in range(2):
        state, metrics = train(state, *batch)
        expected, numbers = training_steps.clipped_adam(expected, *args[1:])
    gathered = train.gather((state, metrics))
    check = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    sw.tree_util.tree_map(check, gathered, (expected, numbers))


def test_the_batch_of_a_training_step():
    def step(params, average, tokens, targets):
        def loss(params):
            x = params["table"][tokens].mean(0)
            return training_steps.loss_of(params, tokens, targets), 0.9 * average + 0.1 * x

        (value, average), gradients = sw.value_and_grad(loss, has_aux=True)(params)
        return sw.tree_util.tree_map(lambda p, g: p - g, params, gradients), average, value

    options = {"hardware": "h100", "count": 2, "stages": (2,), "microbatches": (4,), "schedules": ("1f1b",)}
    args = training_steps.initial_params(), jnp.zeros(training_steps.WIDTH), *training_steps.batch()
    with pytest.raises(StrategyError, match=r"differ in their rows.*as `batch_argnums`"):
        sw.autoshard_pipeline(step, **options)(*args)
    found = sw.autoshard_pipeline(step, **options, batch_argnums=(2, 3))(*args)
    for actual, expected in zip(found.step(sw.devices()[:2])(*args)[1:], step(*args)[1:], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_a_step_whose_loss_is_a_sum_is_rejected_before_the_search():
    def step(params, tokens, targets):
        def loss(params):
            return len(tokens) * training_steps.loss_of(params, tokens, targets)

        return sw.tree_util.tree_map(lambda p, g: p - g, params, sw.grad(loss)(params))

    with pytest.raises(StrategyError, match="is a sum over the rows of the batch"):
        sw.autoshard_pipeline(step, hardware="h100", count=2)(training_steps.initial_params(), *training_steps.batch())


def test_errors():
    with pytest.raises(StrategyError, match="'zb-v', has several stages per rank: put another one, such as '1f1b'"):
        search(schedules=("zb-v",))
    with pytest.raises(HardwareError):
        search(hardware="nothing")
    with pytest.raises(ValueError, match="positive integers"):
        search(count=0)
    with pytest.raises(StrategyError, match="no number of stages divides 8 devices"):
        search(stages=(3,))(SMALL.weights(), TOKENS)
    with pytest.raises(StrategyError, match="no `scan` over the stacked weights"):
        sw.autoshard_pipeline(lambda w, x: (x @ w).mean(), hardware="h100", count=8)(
            sw.ShapeDtypeStruct((4, 4), np.float32), sw.ShapeDtypeStruct((8, 4), np.float32)
        )


@pytest.mark.slow
def test_an_error_states_what_does_not_fit():
    large = Decoder(4, 65536, 512, 512, 128, 1 << 19, 256)
    with pytest.raises(AutoshardError, match=r"no pipeline of `loss` fits in the 79.3 GB of 2 h100"):
        sw.autoshard_pipeline(large.loss, hardware="h100", count=2, stages=(2,), microbatches=(2,))(
            large.weights(), TOKENS
        )
