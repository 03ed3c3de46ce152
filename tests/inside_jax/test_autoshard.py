"""autoshard of steps of real JAX."""

import dataclasses

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from shardwise import inside_jax  # noqa: E402
from tests.inside_jax.steps import assert_equal, auto_mesh  # noqa: E402

pytestmark = pytest.mark.jax

jnp = jax.numpy


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    """A class that is registered with JAX alone."""

    weights: list
    scale: jax.Array


def step(model, x):
    def loss(model):
        for weight in model.weights:
            x_next = jnp.tanh(x @ weight) * model.scale
        return jnp.mean(x_next**2)

    value, gradient = jax.value_and_grad(loss)(model)
    return jax.tree.map(lambda a, b: a - 0.1 * b, model, gradient), value


@pytest.fixture
def args():
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(64, 64)).astype(np.float32) for _ in range(2)]
    return Model(weights, np.float32(2.0)), rng.normal(size=(256, 64)).astype(np.float32)


def test_shardings_are_trees_of_jax(args):
    found = inside_jax.autoshard(step)(*args)
    model, x = found.in_shardings
    assert isinstance(model, Model)
    assert all(isinstance(each, jax.sharding.NamedSharding) for each in (*model.weights, model.scale, x))
    assert x.mesh.devices.size == 8
    assert found.out_shardings[0].weights == model.weights
    assert found.out_shardings[1] is None
    assert_equal(found.jit()(*args), step(jax.tree.map(jnp.asarray, args[0]), args[1]))


def test_a_mesh_and_pinned_arguments_are_kept(args):
    mesh = auto_mesh()
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    found = inside_jax.autoshard(step, mesh=mesh)(args[0], jax.device_put(args[1], sharding))
    assert found.mesh is mesh
    assert found.in_shardings[1] == sharding


def test_chips_that_are_not_here(args):
    found = inside_jax.autoshard(step, hardware="h100", count=64)(*args)
    assert isinstance(found.mesh, jax.sharding.AbstractMesh)
    assert found.mesh.size == 64
    assert "h100" in str(found)


def test_functions_that_close_over_arrays(args):
    table = jnp.arange(64.0)
    found = inside_jax.autoshard(lambda x: (x + table).sum())(args[1])
    assert_equal(found.jit()(args[1]), (args[1] + table).sum())
