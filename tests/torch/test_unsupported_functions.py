"""Functions of PyTorch's autograd, autocast and PyTorch's compiler inside a module are errors with the path."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import shardwise as jax
from shardwise.errors import TorchModuleError
from shardwise.torch import functional

pytestmark = pytest.mark.filterwarnings("default")


class Layer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def _gradient(layer, x):
    return torch.autograd.grad(layer.linear(x).sum(), x, create_graph=True)[0]


def _autocast(layer, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return layer.linear(x)


FUNCTIONS = {
    "grad": (_gradient, r"a module calls `grad` of a tensor"),
    "backward": (lambda layer, x: x.sum().backward(), "a module calls `backward` of a tensor"),
    "autocast": (_autocast, r"runs under `torch\.autocast`.*`strategies\.mixed_precision`"),
    "embedding": (
        lambda layer, x: nn.functional.embedding(x.int(), layer.linear.weight, max_norm=1.0),
        r"calls `embedding` with max_norm=1\.0, which changes the weight",
    ),
    "embedding_bag": (
        lambda layer, x: nn.functional.embedding_bag(x.int(), layer.linear.weight, max_norm=1.0),
        r"calls `embedding_bag` with max_norm=1\.0",
    ),
    "cond": (lambda layer, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), r"calls `torch\.cond`"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors(name):
    called, message = FUNCTIONS[name]
    function, params, buffers = functional(nn.Sequential(Layer(called)))
    with pytest.raises(TorchModuleError, match=message) as error:
        jax.jit(function)(params, buffers, np.ones((16, 4), np.float32))
    assert re.search(
        r"[Ii]n `0(\.linear)?` \(\w+, test_unsupported_functions\.py:\d+\)",
        "\n".join([str(error.value), *error.value.__notes__]),
    )


def test_autocast_that_is_off_and_functional_transforms_of_elementwise_functions():
    def gradient(layer, x):
        with torch.autocast("cpu", enabled=False):
            return torch.func.grad(lambda x: (x * x).sin().sum())(x) + torch.vmap(torch.sin)(x)

    module = Layer(gradient)
    function, params, buffers = functional(module)
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    np.testing.assert_allclose(jax.jit(function)(params, buffers, x)[0], module(torch.tensor(x)).detach(), atol=1e-5)
    function, params, buffers = functional(Layer(lambda layer, x: torch.func.grad(lambda x: layer.linear(x).sum())(x)))
    with pytest.raises(TorchModuleError, match=r"inside `torch\.func\.grad` is one too"):
        function(params, buffers, x)
