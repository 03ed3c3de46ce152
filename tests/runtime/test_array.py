"""Array: shards, reading, conversions, printing, transfers."""

import pickle
import sys

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base import _jaxlib
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
def test_device_put_and_read_return_the_same_elements(mesh, spec, shape, dtype):
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
def test_device_put_reshards_between_any_two_specs(mesh, before, after):
    x = np.arange(30, dtype=np.int32).reshape(10, 3)
    y = sw.device_put(sw.device_put(x, NamedSharding(mesh, before)), NamedSharding(mesh, after))
    assert y.sharding == NamedSharding(mesh, after)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(shard.data, x[shard.index])


def test_device_put_accepts_devices_and_pytrees(mesh):
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


def test_later_writes_to_the_numpy_source_do_not_change_the_array(mesh):
    x = np.ones((64, 16), np.float32)
    on_one, on_many = sw.device_put(x), sw.device_put(x, NamedSharding(mesh, P("data")))
    x[:] = 7
    assert float(on_one.sum()) == float(on_many.sum()) == 1024.0


def test_shards_are_arrays_on_their_devices(mesh):
    x = np.arange(30, dtype=np.int32).reshape(10, 3)
    y = sw.device_put(x, NamedSharding(mesh, P("data")))
    shards = y.addressable_shards
    assert [shard.device for shard in shards] == list(sw.devices())
    assert [shard.replica_id for shard in shards] == [0, 1] * 4
    assert [shard.data.shape for shard in shards] == [(3, 3)] * 6 + [(1, 3)] * 2  # without padding
    for index, shard in enumerate(shards):
        assert isinstance(shard.data, sw.Array) and shard.data is shard.data
        assert shard.data.sharding == SingleDeviceSharding(shard.device)
        np.testing.assert_array_equal(shard.data + 1, x[shard.index] + 1)  # it computes on its device
        assert (shard.data + 1).devices() == {shard.device}
        np.testing.assert_array_equal(y.addressable_data(index), x[shard.index])
    assert [str(shard.index) for shard in y.global_shards] == [str(shard.index) for shard in shards]
    assert repr(shards[6]) == (
        "Shard(device=CpuDevice(id=6), index=(slice(9, 10, None), slice(None, None, None)), replica_id=0, "
        "data=[[27 28 29]])"
    )


def test_creating_shards_reads_no_elements(mesh, monkeypatch):
    x = sw.device_put(np.ones((8, 2), np.float32), NamedSharding(mesh, P("data")))
    monkeypatch.setattr("shardwise.runtime.array.to_numpy", None)
    assert [shard.data.shape for shard in x.addressable_shards] == [(2, 2)] * 8


def test_devices_memory_size_and_to_device(mesh):
    one, many = sw.device_put(1.0, sw.devices()[3]), sw.device_put(np.ones(8), NamedSharding(mesh, P("data")))
    assert one.device == sw.devices()[3]
    assert many.device == many.sharding
    assert many.to_device(sw.devices()[1]).device == sw.devices()[1]
    assert one.to_device(many.sharding.with_spec(P())).is_fully_replicated
    assert one.is_fully_addressable and one.is_fully_replicated and not many.is_fully_replicated
    assert many.on_device_size_in_bytes() == 2 * 8 * 4  # two replicas
    many.copy_to_host_async()
    assert many.tolist() == [1.0] * 8
    with pytest.raises(TypeError, match="to_device needs a device or a Sharding, not 'cpu'"):
        one.to_device("cpu")
    with pytest.raises(NotImplementedError, match="streams are not supported"):
        one.to_device(sw.devices()[0], stream=1)


def test_a_deleted_array_raises_errors(mesh):
    x = sw.device_put(np.ones(8), NamedSharding(mesh, P("data")))
    x.delete()
    assert repr(x) == str(x) == "Array(f32[8], deleted)"
    assert x._repr_html_() == "<pre>Array(f32[8], deleted)</pre>"
    for use in (lambda: x.addressable_shards, x.numpy, x.on_device_size_in_bytes):
        with pytest.raises(RuntimeError, match=r"an array that is read is a f32\[8\] whose memory was freed"):
            use()


def test_conversions():
    assert float(jnp.asarray(2.5)) == 2.5
    assert int(jnp.asarray(3)) == 3
    assert bool(jnp.asarray(True))
    assert complex(jnp.asarray(1j)) == 1j
    assert [10, 20, 30][jnp.asarray(1)] == 20
    assert jnp.asarray(4.0).item() == 4.0
    assert jnp.arange(3).tolist() == [0, 1, 2]
    assert jnp.arange(3).tobytes() == np.arange(3, dtype=np.int32).tobytes()
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


def test_repr_shows_weak_types():
    assert repr(jnp.asarray(1.0)) == "Array(1., dtype=float32, weak_type=True)"
    assert repr(jnp.asarray(1.0) * jnp.arange(2)) == "Array([0., 1.], dtype=float32, weak_type=True)"
    assert repr(jnp.full((0,), 2)) == "Array([], shape=(0,), dtype=int32, weak_type=True)"
    assert repr(jnp.float32(1.0)) == "Array(1., dtype=float32)"


# Attributes of `jax.Array` in JAX's documentation.
DOCUMENTED = [
    "T",
    "addressable_data",
    "addressable_shards",
    "all",
    "any",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "astype",
    "at",
    "byteswap",
    "choose",
    "clip",
    "committed",
    "compress",
    "conj",
    "conjugate",
    "copy",
    "copy_to_host_async",
    "cumprod",
    "cumsum",
    "device",
    "diagonal",
    "dot",
    "dtype",
    "flat",
    "flatten",
    "global_shards",
    "imag",
    "is_fully_addressable",
    "is_fully_replicated",
    "item",
    "itemsize",
    "mT",
    "max",
    "mean",
    "min",
    "nbytes",
    "ndim",
    "nonzero",
    "prod",
    "ptp",
    "ravel",
    "real",
    "repeat",
    "reshape",
    "round",
    "searchsorted",
    "shape",
    "sharding",
    "size",
    "sort",
    "squeeze",
    "std",
    "sum",
    "swapaxes",
    "take",
    "to_device",
    "trace",
    "transpose",
    "var",
    "view",
    "devices",
    "block_until_ready",
    "delete",
    "is_deleted",
    "is_ready",
    "tobytes",
    "tolist",
    "__array__",
    "__float__",
    "__bool__",
    "__int__",
    "__complex__",
    "__index__",
    "__add__",
    "__getitem__",
    "__iter__",
    "__len__",
]


def test_attributes_are_on_the_class():
    assert [name for name in DOCUMENTED if not hasattr(sw.Array, name) or name not in dir(sw.Array)] == []
    assert isinstance(jnp.ones(2), sw.Array)
    assert repr(sw.Array) == "<class 'shardwise.Array'>" and pickle.loads(pickle.dumps(sw.Array)) is sw.Array


@pytest.mark.parametrize("name", ["addressable_shards", "committed", "devices", "block_until_ready", "delete"])
def test_tracers_raise_attribute_errors_that_say_why(name):
    def f(x):
        return getattr(x, name)()

    with pytest.raises(AttributeError, match=rf"a traced f32\[2\] has no `{name}`: it has a type, but no elements"):
        sw.jit(f)(jnp.ones(2))


@pytest.fixture
def bytes_read(monkeypatch):
    """The number of bytes of each read on the host."""
    counted = []

    def counting(shard):
        found = _jaxlib.to_numpy(shard)
        counted.append(found.nbytes)
        return found

    monkeypatch.setattr("shardwise.runtime.array.to_numpy", counting)
    return counted


@pytest.mark.parametrize("shape", [(2000,), (100, 30), (7, 300), (40, 5, 41), (2, 3, 4, 100), (1001, 1), (7, 7, 7, 7)])
@pytest.mark.parametrize("spec", [P(), P("data"), P(("model", "data")), P(None, "data"), P("model", "data")], ids=str)
def test_large_arrays_print_like_numpy_without_a_gather(mesh, shape, spec, bytes_read):
    if len(spec) > len(shape):
        return
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    y = sw.device_put(x, NamedSharding(mesh, spec))
    assert str(y) == str(x)
    shown = np.prod([min(size, 7) for size in shape])
    assert sum(bytes_read) <= 4 * shown
    assert repr(y) == f"Array({np.array2string(x, separator=', ', prefix='Array(')}, dtype=float32)"
    assert sum(bytes_read) <= 8 * shown


def test_printing_follows_numpys_options(mesh, bytes_read):
    x = np.arange(10000).reshape(100, 100).astype(np.int32)
    y = sw.device_put(x, NamedSharding(mesh, P("data", "model")))
    with np.printoptions(edgeitems=1, threshold=10):
        assert str(y) == str(x)
        assert sum(bytes_read) == 4 * 4
    with np.printoptions(threshold=20000):
        assert str(y) == str(x)


def test_replicated_shards_are_read_once(mesh, bytes_read):
    x = np.arange(64, dtype=np.float32)
    for spec in (P(), P("data"), P(("data", "model"))):
        del bytes_read[:]
        np.testing.assert_array_equal(np.asarray(sw.device_put(x, NamedSharding(mesh, spec))), x)
        assert sum(bytes_read) == x.nbytes


def test_html_repr_shows_the_shards_of_each_device(mesh):
    x = sw.device_put(np.arange(20, dtype=np.int32).reshape(5, 4), NamedSharding(mesh, P("data", "model")))
    page = x._repr_html_()
    assert "<th>shape</th><td>5×4</td>" in page and "<th>dtype</th><td>int32</td>" in page
    assert "NamedSharding(mesh(data=4, model=2), P(&#x27;data&#x27;, &#x27;model&#x27;))" in page
    for place in ('title="[0:2, 0:2]">CPU 0<', 'title="[4:5, 2:4]">CPU 5<', 'title="[0:0, 0:0]">CPU 6,7<'):
        assert place in page
    assert "<pre>[[ 0  1  2  3]" in page
    assert (
        "[0:2, 0:2, 0:2] CPU 0,1,2,3,4,5,6,7"
        in sw.device_put(np.ones((2, 2, 2)), x.sharding.with_spec(P()))._repr_html_()
    )


def test_notebooks_show_a_scalar_by_its_repr():
    x = jnp.asarray(4.0)
    assert repr(x) == "Array(4., dtype=float32, weak_type=True)" and x._repr_html_() is None


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


def test_bytes_of_an_array(mesh):
    host = np.arange(8, dtype=np.int32).reshape(2, 4)
    assert bytes(jnp.asarray(host)) == host.tobytes()
    assert bytes(sw.device_put(host, NamedSharding(mesh, P("model", "data")))) == host.tobytes()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes written in Python export buffers from Python 3.12 on")
def test_buffer_protocol(mesh):
    host = np.arange(6, dtype=np.int32).reshape(2, 3)
    x = jnp.asarray(host)
    view = memoryview(x)
    assert (view.tolist(), view.readonly, view.shape, view.format) == (host.tolist(), True, (2, 3), "i")
    np.testing.assert_array_equal(np.frombuffer(x, np.int32), host.ravel())
    x.delete()
    assert view.tolist() == host.tolist()  # the view keeps the memory
    sharded = sw.device_put(np.arange(8), NamedSharding(mesh, P("data")))
    for array, message in [(jnp.ones(2, jnp.bfloat16), "bfloat16"), (sharded, "is on 8 devices")]:
        with pytest.raises(BufferError, match=message):
            memoryview(array)
    with pytest.raises(RuntimeError, match="memory was freed"):
        memoryview(x)


def test_conversion_to_numpy_logs_nothing(caplog, mesh):
    sharded = sw.device_put(np.arange(8), NamedSharding(mesh, P("data")))
    np.testing.assert_array_equal(np.asarray(sharded), np.arange(8))
    assert np.array([sharded, sharded]).shape == (2, 8)
    assert not caplog.records
