"""accumulation: stages reduce gradients and gather parameters once per step, and compute the same gradients."""

from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P
from shardwise.execute.launch_hooks import launch_hooks
from shardwise.parallel import mpmd_pipeline
from shardwise.sharding import Mesh, NamedSharding

WIDTH, ROWS, DEVICES = 64, 64, 4  # the devices of each of two stages
WEIGHT_BYTES = 4 * WIDTH * WIDTH


def stage(w, x):
    return x + jnp.tanh(x @ w)


def last(w, x):
    return (stage(w, x) ** 2).mean()


@contextmanager
def launched():
    """Record the launches of programs, by name, and the collectives of XLA's module for each."""
    counts, collectives = Counter(), {}

    def record(launch, runs):
        name = launch.request.program.name
        counts[name] += runs
        text = "\n".join(launch.executable.texts())
        collectives[name] = {kind for kind in ("all-reduce", "all-gather", "reduce-scatter") if f" {kind}(" in text}

    launch_hooks.add(record)
    try:
        yield counts, collectives
    finally:
        launch_hooks.remove(record)


def run(microbatches, schedule, spec, memory_limit=0):
    """Run two stages with weights in a sharding; compare the loss and the gradients with one device."""
    devices = np.array(sw.devices())
    meshes = [Mesh(devices[:DEVICES], ("data",)), Mesh(devices[DEVICES:], ("data",))]
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(2, WIDTH, WIDTH)).astype(np.float32) / WIDTH
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    placed = [sw.device_put(w, NamedSharding(mesh, spec)) for w, mesh in zip(weights, meshes, strict=True)]
    train = mpmd_pipeline([stage, last], meshes, microbatches, schedule, spec=P("data"), optimizer_copies=0)
    with sw.config.override("memory_limit", memory_limit):
        loss, gradients = train.value_and_grad(placed, x)
    expected = sw.value_and_grad(lambda weights: last(weights[1], stage(weights[0], x)))(list(weights))
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    for gradient, exact, w in zip(gradients, expected[1], placed, strict=True):
        np.testing.assert_allclose(gradient, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
        assert gradient.sharding == w.sharding
    return train


SPLIT = pytest.param("zb-h1", "weight_gradient", marks=pytest.mark.slow)


@pytest.mark.parametrize("schedule, gradient", [("1f1b", "backward"), SPLIT])
def test_gradients_of_replicated_weights_are_reduced_once(schedule, gradient):
    with launched() as (counts, collectives):
        run(4, schedule, P())
    for number in range(2):
        assert counts[f"stage{number}_{gradient}"] == 4
        assert counts[f"stage{number}_reduce"] == 1
        assert collectives[f"stage{number}_{gradient}"] == set()
        assert collectives[f"stage{number}_reduce"] == {"all-reduce"}


@pytest.mark.slow
def test_sharded_weights_are_gathered_once_and_their_gradients_reduced_once():
    with launched() as (counts, collectives):
        run(4, "1f1b", P("data"))
    for number in range(2):
        assert counts[f"stage{number}_gather"] == counts[f"stage{number}_reduce"] == 1
        assert collectives[f"stage{number}_gather"] == {"all-gather"}
        assert collectives[f"stage{number}_reduce"] == {"reduce-scatter"}
        assert collectives[f"stage{number}_backward"] == set()


@pytest.mark.parametrize("microbatches", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_the_bytes_of_gradients_do_not_grow_with_the_microbatches(microbatches):
    reduced = 2 * 2 * (DEVICES - 1) / DEVICES * WEIGHT_BYTES  # an all-reduce in each of two stages
    losses = 2 * 4 * microbatches  # a mean over devices per microbatch
    with sw.comm_budget(bytes=reduced + losses):
        run(microbatches, "1f1b", P())
    with pytest.raises(AssertionError, match="sent"), sw.comm_budget(bytes=0.99 * reduced):
        run(microbatches, "1f1b", P())


@pytest.mark.slow
def test_a_memory_limit_reduces_the_gradients_of_every_microbatch():
    with launched() as (counts, _):
        run(4, "1f1b", P("data"), memory_limit=WEIGHT_BYTES)
    assert counts["stage0_backward"] == 4
    assert not counts["stage0_gather"] and not counts["stage0_reduce"]


def test_nothing_is_converted_without_several_devices_or_microbatches():
    with launched() as (counts, _):
        run(1, "1f1b", P("data"))
    assert counts["stage0_backward"] == 1
    assert not counts["stage0_gather"] and not counts["stage0_reduce"]
