"""Functions of fused tensors whose parts are apart, compared with PyTorch's, in all the ways in which models split."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shardwise as jax
from shardwise.torch import functional

pytestmark = pytest.mark.filterwarnings("default")

D = 4
SPLITS = {"equal": 3, "unequal": {"q": 6, "k": 3, "v": 3}}
SIZES = {"equal": [D, D, D], "unequal": [6, 3, 3]}


def _slices(y, sizes):
    q, k = sizes[:2]
    return [y[..., :q], y[..., q : q + k], y[..., q + k :]]


def _changed_part(y, sizes):
    q, k, v = _slices(y, sizes)
    q.mul_(2)  # a view: y changes too
    return [y, q, k + v[..., : k.shape[-1]]]


def _changed_whole(y, sizes):
    q, k, v = _slices(y, sizes)
    y.mul_(2)
    return [q, k, v]


USES = {
    "split": lambda y, sizes: y.split(sizes, dim=-1),
    "torch.split": lambda y, sizes: torch.split(y, sizes, 2),
    "split with keywords": lambda y, sizes: torch.split(y, split_size_or_sections=sizes, dim=-1),
    "chunk": lambda y, sizes: y.chunk(3, -1),
    "chunk in two": lambda y, sizes: y.chunk(2, dim=-1),
    "slices": _slices,
    "other slices": lambda y, sizes: [y[..., 1:5], y[0], y[:, ::2], y[:, :1, :D]],
    "narrow": lambda y, sizes: [y.narrow(-1, 0, sizes[0]), y.narrow(2, 1, 3), y.narrow(0, 0, 1)],
    "view": lambda y, sizes: y.view(-1, 3 * D).split(sizes, 1),
    "reshape to heads": lambda y, sizes: y.reshape(2, 5, 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0),
    "unflatten": lambda y, sizes: y.unflatten(-1, (3, D)).transpose(0, -2).contiguous().unbind(0),
    "view without rows": lambda y, sizes: [y.view(-1), y.reshape(5, 2, 12), y.view(2, 1, 5, 12), y.view(10, 6, 2)],
    "dtype": lambda y, sizes: y.to(torch.float16).float().split(sizes, -1),
    "other functions": lambda y, sizes: [y.sum(), torch.relu(y), y + y, y * 2, y.flip(-1), y.transpose(1, 2)],
    "bias": lambda y, sizes: (y + torch.arange(12.0, device=y.device)).split(sizes, -1),
    "changed part": _changed_part,
    "changed whole": _changed_whole,
    "clone": lambda y, sizes: y.clone().mul_(3).split(sizes, -1),
}


class Fused(nn.Module):
    def __init__(self, use, sizes, product):
        super().__init__()
        self.use, self.sizes, self.product = use, sizes, product
        self.weight = nn.Parameter(torch.randn(3 * D, 6))
        self.bias = nn.Parameter(torch.randn(3 * D))

    def forward(self, x):
        return list(self.use(self.product(x, self.weight, self.bias), self.sizes))


PRODUCTS = {
    "linear": F.linear,
    "matmul": lambda x, w, b: x @ w.t() + b,
    "mT": lambda x, w, b: torch.matmul(x, w.mT).add(b),
    "transpose": lambda x, w, b: torch.addmm(b, x.view(-1, 6), w.transpose(0, 1)).view(2, 5, 12),
    "elementwise": lambda x, w, b: F.linear(x, w * 2, b),
}


def check(use, kind, product):
    torch.manual_seed(0)
    module = Fused(USES[use], SIZES[kind], PRODUCTS[product])
    function, params, buffers = functional(module, split={"weight": SPLITS[kind], "bias": SPLITS[kind]})
    x = torch.randn(2, 5, 6)

    def loss(params, x):
        outputs = function(params, buffers, x)[0]
        return sum((part.astype(np.float32) ** 2).sum() for part in outputs), outputs

    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(params, x.numpy())
    expected = module(x)
    assert len(outputs) == len(expected)
    for output, tensor in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, tensor.detach(), rtol=2e-3 if use == "dtype" else 1e-5, atol=1e-5)
    sum((part.float() ** 2).sum() for part in expected).backward()
    joined = function.state_dict(gradients, buffers)
    for name, parameter in module.named_parameters():
        tolerance = 1e-2 if use == "dtype" else 1e-4
        torch.testing.assert_close(joined[name].data, parameter.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", SPLITS)
@pytest.mark.parametrize("use", USES)
def test_uses_of_the_product(use, kind):
    check(use, kind, "linear")


@pytest.mark.parametrize("kind", SPLITS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_products(product, kind):
    check("split", kind, product)


@pytest.mark.parametrize("same", [True, False])
def test_multihead_attention(same):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    function, params, buffers = functional(module, split={"in_proj_weight": 3, "in_proj_bias": 3})
    x, y = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    arguments = (x, x, x) if same else (x, y, y)
    outputs, _ = jax.jit(function)(params, buffers, *(each.numpy() for each in arguments))
    for output, tensor in zip(outputs, module(*arguments), strict=True):
        np.testing.assert_allclose(output, tensor.detach(), rtol=1e-5, atol=1e-6)
