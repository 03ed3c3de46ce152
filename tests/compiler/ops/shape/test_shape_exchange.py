"""concatenate, tile and flip along a sharded dim: each device receives the elements of its result shard that it lacks.

The number of messages does not grow with the number of devices. XLA's partitioner sends at least as much.
"""

import jax
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.explain.hlo_wire import wire
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

# Functions of two arrays along dim 0, in numpy's terms; on 8 devices, the number of shards that each device sends.
FUNCTIONS = {
    "concatenate": (lambda np, x, y: np.concatenate([x, y]), 2),
    "concatenate itself": (lambda np, x, y: np.concatenate([x, x]), 2),
    "concatenate three": (lambda np, x, y: np.concatenate([x, y, x]), 3),
    "vstack": (lambda np, x, y: np.vstack([x, y]), 2),
    "stack": (lambda np, x, y: np.stack([x, y]).reshape(-1, *x.shape[1:]), 2),
    "block": (lambda np, x, y: np.block([[x, y], [y, x]]), 4),
    "tile": (lambda np, x, y: np.tile(x, (2, 1)), 2),
    "tile three": (lambda np, x, y: np.tile(x, (3, 2)), 3),
    "flip": (lambda np, x, y: np.flip(x, 0), 1),
    "flip all": (lambda np, x, y: np.flip(x), 1),
}
MESHES = {
    "8": ((8,), ("a",), P("a")),
    "4x2": ((4, 2), ("a", "b"), P("a", "b")),
    "axes of one dim": ((4, 2), ("a", "b"), P(("b", "a"))),
}


def random_arrays(rows, columns, dtype=np.float32):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2 if dtype == np.bool_ else 100, (rows, columns)) for _ in range(2)]
    return [np.asarray(array).astype(dtype) for array in arrays]


def lowered(function, mesh, spec, shape, out=None, dtype=np.float32):
    """Return the lowered function of two arrays that are sharded by `spec`."""
    x = sw.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
    out_shardings = None if out is None else NamedSharding(mesh, out)
    return sw.jit(lambda x, y: function(jnp, x, y), out_shardings=out_shardings, keep_unused=True).lower(x, x)


def shards_sent(local, arrays):
    """Return the bytes that each device sends, in units of the bytes of one array on 8 devices."""
    return sum(local.bytes_sent(equation) for equation in local.collectives()) / (arrays[0].nbytes / 8)


@pytest.mark.parametrize("pinned", [False, True], ids=["", "pinned"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_devices_receive_what_they_lack(name, pinned):
    function, shards = FUNCTIONS[name]
    mesh, spec = sw.make_mesh((8,), ("a",)), P("a")
    arrays = random_arrays(64, 6)
    compiled = lowered(function, mesh, spec, (64, 6), spec if pinned else None)
    local = compiled._prepared.stages.local
    assert {equation.op.name for equation in local.collectives()} <= {"exchange_windows", "take_window"}
    assert shards_sent(local, arrays) == shards
    executable = compiled.compile()
    measured = wire(executable.as_text())
    assert set(measured.kinds()) == {"collective-permute"}
    assert measured.sent == shards * arrays[0].nbytes / 8
    placed = [sw.device_put(array, NamedSharding(mesh, spec)) for array in arrays]
    result = executable(*placed)
    assert result.sharding.spec == spec
    np.testing.assert_array_equal(result, function(np, *arrays))


@pytest.mark.table(default=10)
@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_more_is_sent_than_by_jax(name, mesh_name):
    function, _ = FUNCTIONS[name]
    shape, axes, spec = MESHES[mesh_name]
    mesh = jax.make_mesh(shape, axes, axis_types=(jax.sharding.AxisType.Auto,) * len(axes))
    sharding = jax.NamedSharding(mesh, jax.P(*spec))
    x = jax.ShapeDtypeStruct((64, 8), np.float32, sharding=sharding)
    theirs = jax.jit(lambda x, y: function(jax.numpy, x, y), out_shardings=sharding).lower(x, x).compile()
    ours = lowered(function, sw.make_mesh(shape, axes), spec, (64, 8), spec).compile()
    assert wire(ours.as_text()).sent <= wire(theirs.as_text()).sent


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("rows", [8, 13, 30, 3, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_uneven_shards(name, rows, mesh_name):
    function, _ = FUNCTIONS[name]
    shape, axes, spec = MESHES[mesh_name]
    arrays = random_arrays(rows, 5)
    stages = lowered(function, AbstractMesh(shape, axes), spec, (rows, 5))._prepared.stages
    np.testing.assert_array_equal(evaluate_shards(stages.local, arrays)[0], function(np, *arrays))


@pytest.mark.parametrize("name", ["concatenate three", "tile", "flip all"])
def test_uneven_shards_on_devices(name):
    function, _ = FUNCTIONS[name]
    mesh, spec = sw.make_mesh((4, 2), ("a", "b")), P("a", "b")
    arrays = random_arrays(13, 5)
    arrays[0][3:7] = np.nan
    placed = [sw.device_put(array, NamedSharding(mesh, spec)) for array in arrays]
    result = sw.jit(lambda x, y: function(jnp, x, y))(*placed)
    np.testing.assert_array_equal(result, function(np, *arrays))


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float16", "complex64", "uint32"])
def test_dtypes(dtype):
    mesh, spec = sw.make_mesh((8,), ("a",)), P("a")
    arrays = random_arrays(13, 3, np.dtype(jnp.dtype(dtype)))
    placed = [sw.device_put(array, NamedSharding(mesh, spec)) for array in arrays]
    for function in (lambda np, x, y: np.concatenate([x, y]), lambda np, x, y: np.flip(y, 0)):
        result = sw.jit(lambda x, y, function=function: function(jnp, x, y))(*placed)
        np.testing.assert_array_equal(np.asarray(result), function(np, *arrays))


@pytest.mark.parametrize("name", ["concatenate", "tile three", "flip"])
def test_the_number_of_messages_does_not_depend_on_the_number_of_devices(name):
    function, _ = FUNCTIONS[name]
    counts = []
    for devices in (16, 64, 512):
        stages = lowered(function, AbstractMesh((devices,), ("a",)), P("a"), (4 * devices, 6))._prepared.stages
        counts.append(stages.module.text.count("stablehlo.collective_permute"))
        assert "all_gather" not in stages.module.text
    assert len(set(counts)) == 1


def test_gradients_are_exchanged_too():
    mesh, spec = sw.make_mesh((8,), ("a",)), P("a")
    x, y = random_arrays(512, 256)
    placed = [sw.device_put(array, NamedSharding(mesh, spec)) for array in (x, y)]
    weights = np.arange(1024 * 256, dtype=np.float32).reshape(1024, 256)
    weights_placed = sw.device_put(weights, NamedSharding(mesh, spec))

    def loss(x, y, weights):
        return (jnp.flip(jnp.concatenate([x, y]), 0) * weights).sum()

    gradient = sw.jit(sw.grad(loss, argnums=(0, 1)))
    text = gradient.lower(*placed, weights_placed).compile().as_text()
    assert set(wire(text).kinds()) == {"collective-permute"}
    np.testing.assert_array_equal(np.concatenate(gradient(*placed, weights_placed)), weights[::-1])
