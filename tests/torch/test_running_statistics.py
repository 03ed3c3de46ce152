"""BatchNorm and InstanceNorm return the running statistics that PyTorch computes."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import shardwise as jax
from shardwise import NamedSharding, P
from shardwise.torch import functional

pytestmark = pytest.mark.filterwarnings("default")

LAYERS = {
    "batch": lambda: nn.BatchNorm1d(3),
    "batch, cumulative": lambda: nn.BatchNorm1d(3, momentum=None),
    "batch, without statistics": lambda: nn.BatchNorm1d(3, momentum=None, track_running_stats=False),
    "batch, synchronized": lambda: nn.SyncBatchNorm(3, momentum=0.3),
    "instance": lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
    "instance, without statistics": lambda: nn.InstanceNorm1d(3),
}


@pytest.mark.parametrize("name", LAYERS)
def test_statistics_of_three_batches_and_results_in_both_modes(name):
    module = LAYERS[name]()
    function, params, buffers = functional(module)
    evaluated = functional(copy.deepcopy(module).eval()).function
    mesh = jax.make_mesh((3,), ("data",))  # does not divide the batch
    rng = np.random.default_rng(0)

    @jax.jit
    def step(buffers, x):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))
        results, buffers = function(params, buffers, x)
        return results, evaluated(params, buffers, x)[0], buffers

    for _ in range(3):
        x = 3 + rng.standard_normal((5, 3, 7), np.float32)
        results, in_evaluation, buffers = step(buffers, x)
        expected = module.train()(torch.tensor(x))
        np.testing.assert_allclose(results, expected.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(in_evaluation, module.eval()(torch.tensor(x)).detach(), rtol=1e-4, atol=1e-5)
    for path, value in module.named_buffers():
        np.testing.assert_allclose(buffers[path], value, rtol=1e-5, atol=1e-6)
    assert getattr(module, "momentum", None) == LAYERS[name]().momentum
