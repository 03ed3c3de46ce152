"""Programs of tutorials on parallel programming with JAX, with Shardwise in place of JAX.

Each test has the programs of one document in order; later ones use the names of earlier ones. If a snippet is also
wrong in JAX (a 4×2 array of devices for one axis name), the test checks the error.
"""

from functools import partial

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.errors import ShardingError
from shardwise.experimental import mesh_utils
from shardwise.experimental.shard_map import shard_map
from shardwise.sharding import Mesh, NamedSharding, PositionalSharding
from shardwise.sharding import PartitionSpec as P


def test_introduction_to_parallel_programming(capsys):
    """Seed 002, up to manual parallelism."""
    assert len(jax.devices()) == 8
    arr = jnp.arange(32.0).reshape(4, 8)
    assert arr.devices() == {jax.devices()[0]}
    assert arr.sharding.device_set == arr.devices()
    jax.debug.visualize_array_sharding(arr)
    assert "CPU 0" in capsys.readouterr().out

    mesh = jax.make_mesh((2, 4), ("x", "y"))
    sharding = jax.sharding.NamedSharding(mesh, P("x", "y"))
    print(sharding)
    assert capsys.readouterr().out == "NamedSharding(mesh(x=2, y=4), P('x', 'y'))\n"

    arr_sharded = jax.device_put(arr, sharding)
    print(arr_sharded)
    assert capsys.readouterr().out == f"{np.arange(32.0, dtype=np.float32).reshape(4, 8)}\n"
    jax.debug.visualize_array_sharding(arr_sharded)
    picture = capsys.readouterr().out
    assert all(f"CPU {index}" in picture for index in range(8))
    for shard in arr_sharded.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.arange(32.0).reshape(4, 8)[shard.index])

    @jax.jit
    def f_elementwise(x):
        return 2 * jnp.sin(x) + 1

    result = f_elementwise(arr_sharded)
    print("shardings match:", result.sharding == arr_sharded.sharding)
    assert capsys.readouterr().out == "shardings match: True\n"
    np.testing.assert_allclose(result, 2 * np.sin(np.arange(32.0).reshape(4, 8)) + 1, rtol=1e-5)

    @jax.jit
    def f_contract(x):
        return x.sum(axis=0)

    result = f_contract(arr_sharded)
    jax.debug.visualize_array_sharding(result)
    print(result)
    assert str(np.arange(32.0).reshape(4, 8).sum(0)) in capsys.readouterr().out

    @jax.jit
    def f_contract_2(x):
        out = x.sum(axis=0)
        sharding = jax.sharding.NamedSharding(mesh, P("x"))
        return jax.lax.with_sharding_constraint(out, sharding)

    result = f_contract_2(arr_sharded)
    assert result.sharding == NamedSharding(mesh, P("x"))
    jax.debug.visualize_array_sharding(result)
    assert "CPU 0,1,2,3" in capsys.readouterr().out
    np.testing.assert_array_equal(result, np.arange(32.0).reshape(4, 8).sum(0))


def test_manual_parallelism(capsys):
    """Seed 002, its section on shard_map."""
    mesh = jax.make_mesh((8,), ("x",))

    @jax.jit
    def f_elementwise(x):
        return 2 * jnp.sin(x) + 1

    f_elementwise_sharded = shard_map(f_elementwise, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    arr = jnp.arange(32)
    result = f_elementwise_sharded(arr)
    np.testing.assert_allclose(result, 2 * np.sin(np.arange(32)) + 1, rtol=1e-5, atol=1e-6)
    assert result.sharding == NamedSharding(mesh, P("x"))

    x = jnp.arange(32)
    print(f"global shape: {x.shape=}")

    def f(x):
        print(f"device local shape: {x.shape=}")
        return x * 2

    y = shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)
    assert capsys.readouterr().out == "global shape: x.shape=(32,)\ndevice local shape: x.shape=(4,)\n"
    np.testing.assert_array_equal(y, np.arange(32) * 2)

    def f(x):
        return jnp.sum(x, keepdims=True)

    sums = shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)
    np.testing.assert_array_equal(sums, np.arange(32).reshape(8, 4).sum(1))

    def f(x):
        sum_in_shard = x.sum()
        return jax.lax.psum(sum_in_shard, "x")

    total = shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P())(x)
    assert total.shape == () and total == 496 and total.is_fully_replicated


def test_automatic_constrained_and_manual_layers():
    """Seed 002, the comparison."""

    @jax.jit
    def layer(x, weights, bias):
        return jax.nn.sigmoid(x @ weights + bias)

    rng = np.random.default_rng(0)
    x, weights, bias = rng.normal(size=(32,)), rng.normal(size=(32, 4)), rng.normal(size=(4,))
    expected = 1 / (1 + np.exp(-(x @ weights + bias)))
    np.testing.assert_allclose(layer(x, weights, bias), expected, rtol=1e-5)

    mesh = jax.make_mesh((8,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, P("x"))
    x_sharded, weights_sharded = jax.device_put(x, sharding), jax.device_put(weights, sharding)
    automatic = layer(x_sharded, weights_sharded, bias)
    np.testing.assert_allclose(automatic, expected, rtol=1e-5)

    @jax.jit
    def layer_auto(x, weights, bias):
        x = jax.lax.with_sharding_constraint(x, sharding)
        weights = jax.lax.with_sharding_constraint(weights, sharding)
        return layer(x, weights, bias)

    constrained = layer_auto(x, weights, bias)
    np.testing.assert_allclose(constrained, expected, rtol=1e-5)

    @jax.jit
    @partial(shard_map, mesh=mesh, in_specs=(P("x"), P("x", None), P(None)), out_specs=P(None))
    def layer_sharded(x, weights, bias):
        return jax.nn.sigmoid(jax.lax.psum(x @ weights, "x") + bias)

    manual = layer_sharded(x, weights, bias)
    np.testing.assert_allclose(manual, expected, rtol=1e-5)
    # All three are the same program: a local product and one all-reduce.
    np.testing.assert_allclose(manual, constrained, rtol=1e-6)
    np.testing.assert_allclose(automatic, constrained, rtol=1e-6)
    for f, args in ((layer, (x_sharded, weights_sharded, bias)), (layer_sharded, (x, weights, bias))):
        assert f.lower(*args).as_text().count("stablehlo.all_reduce") == 1


def test_parallel_primitives():
    """Seed 001: pmap, its collectives, and two shard_maps with wrong out_specs."""

    @jax.pmap
    def parallel_fn(x):
        return jax.lax.psum(x, axis_name="i")

    data = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    np.testing.assert_array_equal(parallel_fn(data), np.tile(data.sum(0), (8, 1)))

    @partial(jax.pmap, axis_name="devices")
    def collectives(x):
        return (
            jax.lax.psum(x, axis_name="devices"),
            jax.lax.all_gather(x, axis_name="devices"),
            jax.lax.ppermute(x, axis_name="devices", perm=[(0, 1), (1, 0)]),
        )

    total, gathered, permuted = collectives(data)
    np.testing.assert_array_equal(total[3], data.sum(0))
    np.testing.assert_array_equal(gathered[5], data)
    np.testing.assert_array_equal(permuted, np.concatenate([data[1::-1], np.zeros((6, 2))]))

    mesh = Mesh(jax.devices().reshape(2, 4), ("x", "y"))
    array = np.arange(64.0, dtype=np.float32).reshape(8, 8)

    @partial(shard_map, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", None))
    def sharded_fn(x_shard):
        return x_shard.sum(axis=1)

    @shard_map(mesh=mesh, in_specs=P("x", "y"), out_specs=P("x"))
    def local_reduce(x_shard):
        return x_shard.sum(axis=1)  # Reduction within shard

    for wrong, name in ((sharded_fn, "sharded_fn"), (local_reduce, "local_reduce")):
        with pytest.raises(ShardingError) as caught:
            wrong(array)
        text = str(caught.value)
        assert f"shard_map of `{name}`" in text and "requires result 0 to be replicated along 'y'" in text
        assert "reduce it, for example with `lax.psum(…, 'y')`" in text
        assert "or concatenate the shards with out_specs=P(('x', 'y'))" in text

    # Both fixes that the error suggests:
    right = shard_map(
        lambda x: jax.lax.psum(x.sum(axis=1), "y"), mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", None)
    )
    np.testing.assert_array_equal(right(array), array.sum(1))
    joined = shard_map(lambda x: x.sum(axis=1), mesh=mesh, in_specs=P("x", "y"), out_specs=P(("x", "y")))
    parts = array.reshape(2, 4, 4, 2).sum(3)  # shards of x, rows, shards of y
    np.testing.assert_array_equal(joined(array), parts.transpose(0, 2, 1).ravel())
    message = r"shard_map: f must be a function of shards, not Ellipsis\. To use shard_map as a decorator, "
    with pytest.raises(TypeError, match=message):
        shard_map(..., in_specs=P("x", "y"), out_specs=P("x"))


def test_automatic_parallelization(capsys):
    """Seed 000."""
    mesh = jax.make_mesh((2, 4), ("X", "Y"))
    array = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    sharded_array = jax.device_put(array, jax.NamedSharding(mesh, P("X", "Y")))
    result = jax.jit(lambda x: 2 * jnp.sin(x) + 1)(sharded_array)
    assert result.sharding == sharded_array.sharding

    mesh = Mesh(jax.devices(), axis_names=("data",))
    sharding = NamedSharding(mesh, P("data"))
    sharded_array = jax.device_put(jnp.arange(1000), sharding)
    assert [shard.data.shape for shard in sharded_array.addressable_shards] == [(125,)] * 8
    assert sharded_array.sharding == sharding

    @jax.jit
    def matrix_multiply(a, b):
        return jnp.dot(a, b)

    with pytest.warns(UserWarning, match="arranges them as 4 × 2"):  # a flat list of devices for two axes
        mesh = Mesh(jax.devices(), axis_names=("data", "model"))
    data_sharding = NamedSharding(mesh, P("data", None))
    model_sharding = NamedSharding(mesh, P(None, "model"))
    product = matrix_multiply(jax.device_put(array, data_sharding), jax.device_put(array, model_sharding))
    np.testing.assert_allclose(product, array @ array, rtol=1e-6)
    jax.debug.visualize_array_sharding(product)
    assert "CPU 7" in capsys.readouterr().out

    @jax.jit
    def f(x):
        y = jax.lax.with_sharding_constraint(x @ x, model_sharding)
        return y.sum()

    np.testing.assert_allclose(f(array), (array @ array).sum(), rtol=1e-6)
    jax.config.update("jax_threefry_partitionable", True)


def test_a_parallel_training_loop():
    """Seed 000, its training step, with a linear model in place of the omitted one."""
    mesh = Mesh(jax.devices().reshape(4, 2), axis_names=("data", "model"))
    data_sharding = NamedSharding(mesh, P("data", None))
    model_sharding = NamedSharding(mesh, P(None, "model"))

    @jax.jit
    def train_step(params, batch):
        def loss_fn(params):
            logits = batch["images"] @ params["w"]
            return jnp.mean((logits - batch["labels"]) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(6, 4)).astype(np.float32)}
    batch = {
        "images": rng.normal(size=(10, 6)).astype(np.float32),
        "labels": rng.normal(size=(10, 4)).astype(np.float32),
    }
    alone, losses = params, []
    for _ in range(5):
        alone, loss = train_step(alone, batch)
        losses.append(float(loss))
    params = jax.device_put(params, model_sharding)
    batch = jax.device_put(batch, data_sharding)
    for expected in losses:
        params, loss = train_step(params, batch)
        np.testing.assert_allclose(float(loss), expected, rtol=1e-5)
    assert losses[-1] < losses[0]
    assert params["w"].sharding == model_sharding
    np.testing.assert_allclose(params["w"], alone["w"], rtol=1e-4)


def test_meshes_specs_and_strategies():
    """Seed 003, its concepts and strategies."""
    devices = mesh_utils.create_device_mesh((4, 2))
    mesh = Mesh(devices, axis_names=("data", "model"))
    assert mesh.shape == {"data": 4, "model": 2}
    flat = mesh_utils.create_device_mesh((8,))
    assert Mesh(flat, axis_names=("data",)).devices.shape == (8,)
    with pytest.warns(UserWarning, match="arranges them as 4 × 2"):
        assert Mesh(flat, axis_names=("data", "model")).devices.shape == (4, 2)
    with pytest.warns(UserWarning, match="arranges them as 2 × 2 × 2"):
        assert Mesh(flat, axis_names=("data", "model", "pipeline")).devices.shape == (2, 2, 2)
    with pytest.raises(ShardingError, match=r"sizes \(4, 2\) have 2 axes, names \('data',\) have 1"):
        Mesh(devices, axis_names=("data",))

    assert NamedSharding(mesh, P("data", "model")).shard_shape((128, 512)) == (32, 256)
    one = jax.make_mesh((8, 1), ("data", "model"))
    assert NamedSharding(one, P("data", None)).shard_shape((128, 512)) == (16, 512)
    assert NamedSharding(one, P(None, "data")).shard_shape((128, 512)) == (128, 64)

    shardings = {
        "data_parallel": NamedSharding(mesh, P("data", None)),
        "model_parallel": NamedSharding(mesh, P(None, "model")),
        "hybrid": NamedSharding(mesh, P("data", "model")),
        "replicated": NamedSharding(mesh, P()),
    }
    params = {"dense": {"kernel": np.ones((512, 64), np.float32), "bias": np.ones(64, np.float32)}}

    def shard_array(path, array):
        path_str = "/".join(str(p) for p in path)
        if "kernel" in path_str and array.shape[0] > 256:
            return jax.device_put(array, shardings["model_parallel"])
        return jax.device_put(array, shardings["replicated"])

    with mesh:
        params_sharded = jax.tree_util.tree_map_with_path(shard_array, params)
    assert params_sharded["dense"]["kernel"].sharding == shardings["model_parallel"]
    assert params_sharded["dense"]["bias"].is_fully_replicated

    fsdp = NamedSharding(Mesh(flat, axis_names=("fsdp",)), P("fsdp"))
    kernel = jax.device_put(params["dense"]["kernel"], fsdp)
    assert {shard.data.nbytes for shard in kernel.addressable_shards} == {kernel.nbytes // 8}


def test_a_sharded_training_step(capsys):
    """Seed 003, its steps 4 and 5, with a model that is a dict."""
    mesh = Mesh(mesh_utils.create_device_mesh((4, 2)), axis_names=("data", "model"))
    replicated, data_parallel = NamedSharding(mesh, P()), NamedSharding(mesh, P("data", None))

    @partial(jax.jit, in_shardings=(replicated, data_parallel), out_shardings=(replicated, replicated, replicated))
    def train_step(state, batch):
        def loss_fn(state):
            logits = batch["input"] @ state["kernel"]
            return ((logits - batch["label"]) ** 2).mean(), {"accuracy": (logits * 0 == 0).mean()}

        (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), loss, metrics

    rng = np.random.default_rng(0)
    state = {"kernel": rng.normal(size=(3, 2)).astype(np.float32)}
    batch = {"input": rng.normal(size=(8, 3)).astype(np.float32), "label": rng.normal(size=(8, 2)).astype(np.float32)}
    losses = []
    with mesh:
        for _ in range(3):
            batch_sharded = jax.tree.map(lambda x: jax.device_put(x, data_parallel), batch)
            state, loss, metrics = train_step(state, batch_sharded)
            losses.append(float(loss))
            print(f"Loss: {float(loss):.4f}, Acc: {float(metrics['accuracy']):.4f}")
    assert losses == sorted(losses, reverse=True)
    assert "Acc: 1.0000" in capsys.readouterr().out
    assert state["kernel"].sharding == replicated


def test_constraints_anywhere():
    """Seed 003, manual sharding constraints, with a linear model in place of the omitted one."""
    mesh = Mesh(mesh_utils.create_device_mesh((4, 2)), axis_names=("data", "model"))

    @jax.jit
    def train_step(params, batch):
        batch = jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, P("data")))
        logits = batch["image"] @ params
        logits = jax.lax.with_sharding_constraint(logits, NamedSharding(mesh, P()))
        return ((logits - batch["label"]) ** 2).mean()

    rng = np.random.default_rng(0)
    params = rng.normal(size=(6, 3)).astype(np.float32)
    batch = {"image": rng.normal(size=(8, 6)).astype(np.float32), "label": np.ones((8, 3), np.float32)}
    loss = train_step(params, batch)
    np.testing.assert_allclose(loss, ((batch["image"] @ params - batch["label"]) ** 2).mean(), rtol=1e-5)
    assert loss.is_fully_replicated


def test_inspecting_and_resharding(capsys):
    """Seed 003, its advanced topics."""
    mesh = Mesh(mesh_utils.create_device_mesh((4, 2)), axis_names=("data", "model"))
    x = jax.device_put(np.arange(16.0, dtype=np.float32).reshape(8, 2), NamedSharding(mesh, P("data")))
    print(f"Shape: {x.shape}")
    print(f"Sharding: {x.sharding}")
    print(f"Devices: {len(x.sharding.device_set)}")
    jax.debug.visualize_array_sharding(x)
    out = capsys.readouterr().out
    assert out.startswith(f"Shape: (8, 2)\nSharding: {x.sharding}\nDevices: 8\n")
    assert x.sharding == NamedSharding(mesh, P("data", None)) and "CPU 6,7" in out

    @jax.jit
    def process(x):
        y = jax.device_put(x, NamedSharding(mesh, P("model")))
        jax.debug.inspect_array_sharding(y)
        return y * 2

    result = process(x)
    assert capsys.readouterr().out == "NamedSharding(mesh(data=4, model=2), P('model'))\n"
    np.testing.assert_array_equal(result, np.arange(16.0).reshape(8, 2) * 2)

    @jax.jit
    def compute(x, w):
        return jnp.dot(x, w)

    w = jax.device_put(np.ones((2, 6), np.float32), NamedSharding(mesh, P(None, "model")))
    assert compute(x, w).sharding == NamedSharding(mesh, P("data", "model"))


def test_arrays_on_a_grid_of_devices():
    """Seed 000 names PositionalSharding: typical programs with it."""
    sharding = PositionalSharding(mesh_utils.create_device_mesh((8,)))
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    y = jax.device_put(x, sharding.reshape(4, 2).replicate(1))
    z = jax.device_put(x, sharding.reshape(4, 2).replicate(0))
    w = jnp.dot(y, z)
    assert w.sharding == sharding.reshape(4, 2)
    np.testing.assert_allclose(w, x @ x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y.T @ z, x.T @ x, rtol=1e-4, atol=1e-4)
