"""The models of `benchmarks.gpu_models` in PyTorch, compared with the functions of the other sides."""

import numpy as np
import pytest
import torch

import shardwise as jax
from benchmarks.gpu_losses import SMALL
from benchmarks.gpu_models import random_parameters
from benchmarks.gpu_models_torch import training


@pytest.mark.parametrize("name", SMALL)
def test_the_first_loss_is_equal(name, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    model = SMALL[name]
    train = training(model, False, 1e-3, (0.9, 0.95), 1e-8)
    expected = jax.jit(model.loss(jax, None, False))(
        random_parameters(jax, model), *map(jax.numpy.asarray, model.data())
    )
    first = float(train())
    np.testing.assert_allclose(first, float(expected), rtol=1e-3)
    assert float(train()) < first
