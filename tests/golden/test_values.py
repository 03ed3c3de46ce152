"""Golden plans run: 8 devices give what a training step means in numpy."""

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

SMALL = Sizes(width=16, hidden=32, words=24, length=6, batch=8, heads=4, layers=2)

MODELS = {
    "mlp": lambda mesh: models.mlp(False, 8, 4, 8, 2),
    "accumulated": lambda mesh: models.accumulated("data", 2, 8, 8),
    "fsdp-tensor": lambda mesh: models.transformer(FSDP_TENSOR, True, SMALL),
    "sequence": lambda mesh: models.transformer(SEQUENCE, False, replace(SMALL, layers=1), mesh),
    "attention": lambda mesh: models.long_attention(2, 16, 2, 4),
    "vocabulary": lambda mesh: models.vocabulary(24, 8, 4, 6),
    "experts": lambda mesh: models.experts(True, 8, 8, 8),
    "convolutions": lambda mesh: models.convolutions(True, 16, 6, 3),
    "pipeline": lambda mesh: models.pipeline(True, 4, 2, 8),
}


def run(axes, make, optimizer):
    """A step compiled for devices, which gives what its program means in numpy."""
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes))
    model = make(mesh)
    rng = np.random.default_rng(0)
    leaves = model.arguments(optimizer)
    arguments = jax.tree.map(lambda leaf: leaf.value(rng), leaves)
    placed = jax.tree.map(lambda x, leaf: jax.device_put(x, NamedSharding(mesh, leaf.spec)), arguments, leaves)
    step = jax.jit(model.step(optimizer))
    expected = evaluate(inline(step.trace(*placed).jaxpr), jax.tree.leaves(arguments))
    compiled = step.lower(*placed).compile()
    for found, meant in zip(jax.tree.leaves(compiled(*placed)), expected, strict=True):
        np.testing.assert_allclose(found, meant, rtol=2e-4, atol=2e-5)
    return compiled


@lru_cache
def compiled_model(name):
    make = MODELS[name]
    return run(make(None).axes, make, "adam" if name in ("mlp", "pipeline") else "sgd")


@pytest.mark.parametrize("name", MODELS)
def test_devices_do_what_the_program_means(name):
    assert compiled_model(name).plan.collectives


def test_xla_combines_sums():
    """The planner counts on it: reductions over the same devices share their latency."""
    compiled = compiled_model("mlp")
    assert compiled.plan.counts() == {"all_reduce": 8}
    assert len(re.findall(r" all-reduce(?:-start)?\(", compiled.as_text())) <= 4


def test_what_is_gathered_again_is_the_same():
    """A limit that nothing fits in: everything that can be is gathered again."""

    def make(mesh):
        return models.transformer(FSDP, False, SMALL)

    with jax.config.override("memory_limit", 1):
        plan = run(FSDP.axes, make, "sgd").plan
    again = [row for row in plan.collectives if "gathered again" in row.reason]
    assert len(again) >= 8
