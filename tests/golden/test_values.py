"""The models of the golden plans on 8 devices, compared with the evaluation of the training step in numpy."""

import re
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

import shardwise as jax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import NamedSharding
from tests.golden import models
from tests.golden.models import FSDP, FSDP_TENSOR, SEQUENCE, Sizes

SMALL_SIZES = Sizes(width=16, hidden=32, words=24, length=6, batch=8, heads=4, layers=2)

MODELS = {
    "mlp": lambda mesh: models.mlp(False, 8, 4, 8, 2),
    "accumulated": lambda mesh: models.accumulated_gradients("data", 2, 8, 8),
    "microbatches": lambda mesh: models.microbatches({"data": 4, "model": 2}, "data", "model", 2, 3, 8, 8),
    "uneven-microbatches": lambda mesh: models.microbatches({"data": 8}, "data", None, 3, 2, 5, 6),
    "fsdp-tensor": lambda mesh: models.transformer(FSDP_TENSOR, True, SMALL_SIZES),
    "sequence": lambda mesh: models.transformer(SEQUENCE, False, replace(SMALL_SIZES, layers=1), mesh),
    "attention": lambda mesh: models.long_attention(2, 16, 2, 4),
    "vocabulary": lambda mesh: models.vocabulary(24, 8, 4, 6),
    "experts": lambda mesh: models.experts(True, 8, 8, 8),
    "convolutions": lambda mesh: models.convolutions(True, 16, 6, 3),
    "pipeline": lambda mesh: models.pipeline(True, 4, 2, 8),
}


def run(axes, make, optimizer):
    """Compile a training step, and check that it returns what its program evaluates to in numpy."""
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes))
    model = make(mesh)
    rng = np.random.default_rng(0)
    leaves = model.arguments(optimizer)
    arguments = jax.tree.map(lambda leaf: leaf.value(rng), leaves)
    sharded = jax.tree.map(lambda x, leaf: jax.device_put(x, NamedSharding(mesh, leaf.spec)), arguments, leaves)
    step = jax.jit(model.step(optimizer))
    expected = evaluate(inline(step.trace(*sharded).program), jax.tree.leaves(arguments))
    compiled = step.lower(*sharded).compile()
    for actual, reference in zip(jax.tree.leaves(compiled(*sharded)), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=2e-4, atol=2e-5)
    return compiled


@lru_cache
def compiled_model(name):
    make = MODELS[name]
    return run(make(None).axes, make, "adam" if name in ("mlp", "pipeline") else "sgd")


@pytest.mark.parametrize("name", MODELS)
def test_devices_match_numpy(name):
    assert compiled_model(name).plan.collectives


def test_xla_combines_all_reduces():
    """The cost model assumes that all-reduces over the same devices share their latency."""
    compiled = compiled_model("mlp")
    assert compiled.plan.counts() == {"all_reduce": 8}
    assert len(re.findall(r" all-reduce(?:-start)?\(", compiled.as_text())) <= 4


def test_regathered_weights_give_the_same_values():
    """Nothing fits into this limit: all weights are gathered again."""

    def make(mesh):
        return models.transformer(FSDP, False, SMALL_SIZES)

    with jax.config.override("memory_limit", 1):
        plan = run(FSDP.axes, make, "sgd").plan
    regathers = [row for row in plan.collectives if "gathered again" in row.reason]
    assert len(regathers) >= 8
