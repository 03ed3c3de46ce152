"""Ops that DTensor lacks rules for or computes wrongly for uneven shards, on sharded arrays."""

import numpy as np
import pytest
import torch
from torch import nn

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.torch import functional

pytestmark = pytest.mark.filterwarnings("default")

FUNCTIONS = {
    "detach_": lambda x: (x * 2).detach_() + x,
    "detach of a view": lambda x: x[1:3].detach() * x[1:3],
    "select": lambda x: x.select(1, 2) * x.select(1, -1),
    "amax": lambda x: x.amax(dim=(0, 1)) + x.amin(),
    "masked_fill_": lambda x: (x * 3).masked_fill_(x > 0, -1.0),
    "topk": lambda x: x.topk(3, dim=1).values,
    "mean of an uneven dim": lambda x: x.mean(0) + x.std(0),
    "view in place": lambda x: _assign(x.clone()),
    "cumsum": lambda x: x.cumsum(1),
    "roll": lambda x: x.roll(2, 1),
    "sort": lambda x: x.sort(dim=0).values,
    "var of everything": lambda x: x.var(),
    "strided slice": lambda x: x[::2, 1::3].sum(1),
    "scatter_add": lambda x: torch.zeros(4, 7, device=x.device).index_add(0, torch.arange(5, device=x.device) % 4, x),
}


def _assign(x):
    x[1:3, :2] = 7
    x[0].add_(1)
    return x * x


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("spec", [P("data"), P(None, "data"), P("model", "data")], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients_of_uneven_shards(name, spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    x = np.random.default_rng(0).standard_normal((5, 7), np.float32)  # 5 and 7 are divisible by no axis
    function, params, buffers = functional(Apply(FUNCTIONS[name]))

    @jax.jit
    def value_and_gradient(x):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
        value, vjp = jax.vjp(lambda x: function(params, buffers, x)[0], x)
        return value, vjp(value * 0 + 1)[0]

    value, gradient = value_and_gradient(x)
    leaf = torch.tensor(x, requires_grad=True)
    expected = FUNCTIONS[name](leaf)
    expected.sum().backward()
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["topk", "mean of an uneven dim", "sort", "masked_fill_"])
def test_local_regions(name):
    """Each device computes with its own shard, as in DTensor's `local_map`."""
    mesh = jax.make_mesh((4,), ("data",))
    x = np.random.default_rng(0).standard_normal((12, 7), np.float32)
    function, params, buffers = functional(Apply(lambda x: FUNCTIONS[name](x).reshape(-1, 1)))
    local = jax.shard_map(lambda x: function(params, buffers, x)[0], mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    expected = torch.cat([FUNCTIONS[name](rows).reshape(-1, 1) for rows in torch.tensor(x).chunk(4)])
    np.testing.assert_allclose(jax.jit(local)(x), expected, rtol=1e-5, atol=1e-6)


# Ops that torchax lacks or computes differently.
CONVOLUTIONS = {
    "groups": lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
    "more groups": lambda: nn.ConvTranspose1d(6, 9, 3, dilation=2, groups=3),
    "depthwise": lambda: nn.ConvTranspose1d(6, 12, 3, groups=6),
    "one group": lambda: nn.ConvTranspose3d(6, 4, 2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_transposed_convolutions(name):
    torch.manual_seed(0)
    module = CONVOLUTIONS[name]()
    function, params, buffers = functional(module)
    x = np.random.default_rng(0).standard_normal((3, 6, *[5] * (module.weight.ndim - 2)), np.float32)
    results, vjp = jax.vjp(lambda params: function(params, buffers, x)[0], params)
    (gradients,) = jax.jit(vjp)(jnp.ones_like(results))
    expected = module(torch.tensor(x))
    expected.sum().backward()
    np.testing.assert_allclose(results, expected.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients["weight"], module.weight.grad, rtol=1e-4, atol=1e-4)


IN_PLACE = {
    "exp_": lambda x: (x * 1).exp_(),
    "neg_ of a slice": lambda x: _change_slice(x * 1),
    "log1p_": lambda x: torch.log1p_(x * x),
    "cumsum_": lambda x: (x * 1).cumsum_(1).round_(decimals=2),
    "addmm_": lambda x: (x[:, :5] * 1).addmm_(x, x.T, beta=0.5),
    "logical_and_": lambda x: (x > 0).logical_and_(x < 1),
}


def _change_slice(x):
    x[1:3].neg_()
    x[:, 0].sin_()
    return x


@pytest.mark.parametrize("name", IN_PLACE)
def test_changes_in_place_that_torchax_lacks(name):
    x = np.random.default_rng(0).standard_normal((5, 7), np.float32)
    function, params, buffers = functional(Apply(IN_PLACE[name]))
    expected = IN_PLACE[name](torch.tensor(x))
    np.testing.assert_allclose(jax.jit(function)(params, buffers, x)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 2.5, float("inf")])
@pytest.mark.parametrize("shapes", [((5, 3), (7, 3)), ((1, 30, 3), (2, 1, 28, 3))], ids=str)
def test_distances_of_rows(p, shapes):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, np.float32) for shape in shapes)
    y[..., 0, :] = x[..., 0, :]  # a distance of 0
    function, params, buffers = functional(Apply(lambda x: torch.cdist(x[0], x[1], p=p)))
    gradient = jax.grad(lambda x: function(params, buffers, (x, y))[0].sum())(x)
    leaf = torch.tensor(x, requires_grad=True)
    expected = torch.cdist(leaf, torch.tensor(y), p=p, compute_mode="donot_use_mm_for_euclid_dist")
    np.testing.assert_allclose(function(params, buffers, (x, y))[0], expected.detach(), rtol=1e-5, atol=1e-5)
    expected.sum().backward()
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-4, atol=1e-4)
