"""The benchmark of models on a GPU: equal losses on all sides, rows that fail, and the log of power."""

import importlib
from argparse import Namespace

import numpy as np
import pytest

from benchmarks.gpu_losses import SMALL
from benchmarks.gpu_models import Row, random_parameters, run_row, training
from benchmarks.gpu_power import mean_sample


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "llama", "moe"])
def test_losses_of_all_sides_are_equal(name):
    losses = []
    for module, kernels in (("jax", False), ("shardwise", False), ("shardwise", True)):
        library, model = importlib.import_module(module), SMALL[name]
        loss = library.jit(model.loss(library, None, kernels))
        losses.append(float(loss(random_parameters(library, model), *map(library.numpy.asarray, model.data()))))
    np.testing.assert_allclose(losses[1:], losses[0], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("side", ["shardwise", "kernels", "fp8"])
def test_steps_lower_the_loss(side, name):
    train = training(side, SMALL[name], small=True)
    first = float(train())
    assert [float(train()) for _ in range(3)][-1] < first


def test_rows_that_end_or_fail_say_why():
    options = Namespace(repeats=1, layers=None, hlo=None, small=True, limit=0.01)
    assert run_row("shardwise", "vit", options) == Row("vit", "shardwise", error="was ended after 0.01 s")
    options.limit = 60
    assert "failed with status 1: KeyError: 'missing'" in run_row("shardwise", "missing", options).error


def test_mean_sample():
    assert mean_sample("690.5, 1500\n[N/A], 1400\n689.5, 1600\n12") == (690, 1550)
    assert mean_sample("") == (0, 0)
