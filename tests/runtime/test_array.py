"""Array: shards, reading, conversions, placement."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P

SPECS = [
    P(),
    P("data"),
    P("model"),
    P(None, "data"),
    P("data", "model"),
    P("model", "data"),
    P(("data", "model")),
    P(None, ("model", "data")),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("shape", [(8, 8), (10, 3), (1, 7), (3, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, ml_dtypes.bfloat16])
def test_placed_and_read_back(mesh, spec, shape, dtype):
    x = (np.arange(np.prod(shape)).reshape(shape) % 5).astype(dtype)
    y = sw.device_put(x, NamedSharding(mesh, spec))
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(np.asarray(y), x)
    seen = np.zeros(shape, np.int32)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(shard.data, x[shard.index])
        if shard.replica_id == 0:
            seen[shard.index] += 1
    assert (seen == 1).all()  # the first replicas cover every element once


@pytest.mark.parametrize("before", SPECS, ids=str)
@pytest.mark.parametrize("after", SPECS, ids=str)
def test_device_put_between_layouts(mesh, before, after):
    x = np.arange(30, dtype=np.int32).reshape(10, 3)
    y = sw.device_put(sw.device_put(x, NamedSharding(mesh, before)), NamedSharding(mesh, after))
    assert y.sharding == NamedSharding(mesh, after)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(shard.data, x[shard.index])


def test_device_put_to_devices_and_trees(mesh):
    x = {"a": np.ones(3, np.float32), "b": [2.0]}
    one = sw.device_put(x, sw.devices()[3])
    assert one["a"].devices() == {sw.devices()[3]}
    assert one["b"][0].sharding == SingleDeviceSharding(sw.devices()[3])
    many = sw.device_put(one, {"a": NamedSharding(mesh, P("data")), "b": NamedSharding(mesh, P())})
    assert many["b"][0].is_fully_replicated
    assert not many["a"].is_fully_replicated
    back = sw.device_put(many["a"], sw.devices()[0])
    np.testing.assert_array_equal(back, x["a"])
    assert not sw.device_put(np.ones(2)).committed
    assert many["a"].committed


def test_later_writes_to_the_source_do_not_show(mesh):
    x = np.ones((64, 16), np.float32)
    on_one, on_many = sw.device_put(x), sw.device_put(x, NamedSharding(mesh, P("data")))
    x[:] = 7
    assert float(on_one.sum()) == float(on_many.sum()) == 1024.0


def test_conversions():
    assert float(jnp.asarray(2.5)) == 2.5
    assert int(jnp.asarray(3)) == 3
    assert bool(jnp.asarray(True))
    assert complex(jnp.asarray(1j)) == 1j
    assert [10, 20, 30][jnp.asarray(1)] == 20
    assert jnp.asarray(4.0).item() == 4.0
    assert jnp.arange(3).tolist() == [0, 1, 2]
    assert f"{jnp.asarray(1.23456):.2f}" == "1.23"
    with pytest.raises(TypeError):
        hash(jnp.ones(2))
    with pytest.raises(TypeError):
        float(jnp.ones(2))


def test_printing(mesh):
    x = jnp.arange(4).reshape(2, 2)
    assert str(x) == "[[0 1]\n [2 3]]"
    assert repr(x) == "Array([[0, 1],\n       [2, 3]], dtype=int32)"
    assert repr(sw.device_put(x, NamedSharding(mesh, P("model")))) == repr(x)


def test_attributes():
    x = jnp.ones((2, 3), jnp.bfloat16)
    assert (x.shape, x.ndim, x.size, x.nbytes, len(x)) == ((2, 3), 2, 6, 12, 2)
    assert x.block_until_ready() is x
    assert x.T.shape == (3, 2)


def test_indices_of_a_sharding(mesh):
    sharding = NamedSharding(mesh, P(("data", "model")))
    indices = sharding.devices_indices_map((10, 3))
    assert [indices[d][0].stop - indices[d][0].start for d in sw.devices()] == [2, 2, 2, 2, 2, 0, 0, 0]
    assert sharding.shard_shape((10, 3)) == (2, 3)
