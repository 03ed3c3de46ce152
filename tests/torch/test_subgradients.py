"""Gradients at kinks are PyTorch's: at zero, at bounds, of zero rows and of equal elements."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shardwise as jax
from shardwise.torch import functional

pytestmark = pytest.mark.filterwarnings("default")

X = np.array([[0, 0, 0], [1, -1, 0], [3, 0, 0.5], [1, 1, 1], [-1, 0.5, -0.5], [6, -6, 2]], np.float32)
FUNCTIONS = {
    "abs": torch.abs,
    "l1_loss": lambda x: F.l1_loss(x, torch.zeros(6, 3)),
    "norm": lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x, 3, dim=1) + torch.linalg.vector_norm(x, 1, dim=(1,)),
    "norm of all": lambda x: (x * 0).norm() + torch.linalg.matrix_norm(x * 0),
    "maximum norm": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1, keepdim=True),
    "normalize": lambda x: F.normalize(x, eps=0.1) + F.cosine_similarity(x, torch.ones(6, 3), eps=0.1)[:, None],
    "clamp": lambda x: x.clamp(-1, 1) + x.clamp(min=0) + x.clamp(max=torch.ones(3)) + torch.clamp_max(x, 2),
    "bounded": lambda x: F.relu6(x) + F.hardtanh(x) + F.hardsigmoid(x * 3) + F.hardswish(x * 3),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "logsigmoid": F.logsigmoid,
    "std": lambda x: x.std(1) + x.std(dim=1, correction=0) + x[:1].std(),
    "sinc": torch.sinc,
    "margin": lambda x: F.margin_ranking_loss(x, x * 0, torch.ones(6, 3)),
}


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_at_kinks(name):
    leaf = torch.tensor(X, requires_grad=True)
    expected = FUNCTIONS[name](leaf)
    expected.sum().backward()
    function, params, buffers = functional(Apply(FUNCTIONS[name]))
    results = function(params, buffers, X)[0]
    assert str(results.dtype) == str(expected.dtype).removeprefix("torch.")
    np.testing.assert_allclose(results, expected.detach(), rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: function(params, buffers, x)[0].sum())(X)
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-4, atol=1e-5)
