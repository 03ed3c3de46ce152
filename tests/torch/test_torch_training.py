"""What applies to any function applies to modules: strategies, donation, checkpoints, simulation without weights."""

from importlib import import_module

import numpy as np
import pytest
import torch

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, checkpoints, strategies
from shardwise.torch import functional

optax = import_module("optax")  # it imports jax, which is Shardwise after the import of shardwise.torch
pytestmark = pytest.mark.filterwarnings("default")


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = torch.nn.Linear(size, 4 * size)
        self.down = torch.nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.fixture
def mesh():
    return jax.make_mesh((8,), ("data",))


def arguments(size=32):
    torch.manual_seed(0)
    module = torch.nn.Sequential(Block(size), Block(size)).eval()
    function, params, buffers = functional(module)
    x, y = np.random.default_rng(0).normal(size=(2, 16, size)).astype(np.float32)
    return module, (lambda params, x, y: jnp.mean((function(params, buffers, x)[0] - y) ** 2)), params, x, y


def torch_losses(module, x, y, steps):
    """Return the losses of a few steps of PyTorch's Adam."""
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((module(torch.from_numpy(x)) - torch.from_numpy(y)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_with_donation_and_checkpoints_has_the_losses_of_pytorch(stage, mesh, tmp_path):
    module, loss, params, x, y = arguments()
    adam = optax.adam(1e-2)
    state = adam.init(params)
    zero = strategies.zero(params, state, mesh, stage)
    params, state = jax.device_put(params, zero.params), jax.device_put(state, zero.state)
    x, y = jax.device_put((x, y), NamedSharding(mesh, P("data")))

    @jax.jit(donate_argnums=(0, 1), out_shardings=(zero.params, zero.state, None))
    def step(params, state, x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = adam.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for number in range(4):
        if number == 2:
            checkpoints.save(tmp_path / "checkpoint", (params, state)).wait()
            params, state = checkpoints.restore(tmp_path / "checkpoint", (params, state))
        params, state, value = step(params, state, x, y)
        losses.append(float(value))
    np.testing.assert_allclose(losses, torch_losses(module, np.asarray(x), np.asarray(y), 4), rtol=1e-4)


def test_mixed_precision(mesh):
    _, loss, params, x, y = arguments()
    narrow = strategies.mixed_precision(loss)
    sharded = jax.device_put(params, strategies.fsdp(params, mesh, "data"))
    exact, gradients = jax.value_and_grad(loss)(params, x, y)
    value, narrow_gradients = jax.jit(jax.value_and_grad(narrow))(sharded, x, y)
    assert float(value) == pytest.approx(float(exact), rel=0.02) and float(value) != float(exact)
    for name, gradient in narrow_gradients.items():
        assert gradient.dtype == jnp.float32
        np.testing.assert_allclose(gradient, gradients[name], atol=0.05 * float(jnp.abs(gradients[name]).max()))


def test_modules_without_weights_are_simulated():
    with torch.device("meta"):
        module = torch.nn.Sequential(*[Block(1024) for _ in range(4)]).eval()
    function, types, buffers = functional(module)
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    shardings = strategies.fsdp(types, mesh, "data")
    sharded = {name: jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=shardings[name]) for name, t in types.items()}
    rows = jax.ShapeDtypeStruct((4096, 1024), np.float32, sharding=NamedSharding(mesh, P("data")))

    def step(params, x):
        gradients = jax.grad(lambda params: function(params, buffers, x)[0].sum())(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    run = jax.simulate(step, hardware="h100")(sharded, rows)
    assert run.flops == pytest.approx(6 * 4096 / 8 * sum(t.size for t in types.values() if len(t.shape) == 2), rel=0.1)
    assert len(jax.sweep(step, (sharded, rows), hardware=["h100", "a100"]).rows) == 2
    chosen = jax.autoshard(step, hardware="h100", count=8)(types, jax.ShapeDtypeStruct((4096, 1024), np.float32))
    assert chosen.seconds <= 1.001 * run.seconds
