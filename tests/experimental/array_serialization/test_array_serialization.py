"""jax.experimental.array_serialization: arrays in TensorStore, which JAX and Shardwise read from each other."""

import asyncio
import inspect

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import CheckpointError
from shardwise.experimental.array_serialization import serialization, tensorstore_impl
from shardwise.experimental.layout import Format
from shardwise.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

FORMATS = [("zarr", False), ("zarr3", False), ("zarr3", True)]
DTYPES = ["float32", "bfloat16", "int32", "uint8", "bool", "complex64", "float8_e4m3fn", "int4"]


def host_array(dtype):
    return (np.arange(48).reshape(8, 6) % 7).astype(np.dtype(jnp.dtype(dtype)))


@pytest.fixture
def rows(mesh):
    return NamedSharding(mesh, PartitionSpec("data"))


def first_device():
    return SingleDeviceSharding(sw.devices()[0])


def specs(folder, driver="zarr3", ocdbt=True, names=DTYPES):
    return [tensorstore_impl.get_tensorstore_spec(folder / name, ocdbt=ocdbt, driver=driver) for name in names]


@pytest.mark.parametrize(("driver", "ocdbt"), FORMATS)
def test_arrays_are_read_onto_another_sharding(tmp_path, mesh, rows, driver, ocdbt):
    hosts = [host_array(dtype) for dtype in DTYPES]
    serialization.run_serialization([sw.device_put(host, rows) for host in hosts], specs(tmp_path, driver, ocdbt))
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    restored = serialization.run_deserialization([columns] * len(hosts), specs(tmp_path, driver, ocdbt))
    for x, host in zip(restored, hosts, strict=True):
        assert x.sharding == columns and x.dtype == host.dtype and np.asarray(x).tobytes() == host.tobytes()


@pytest.mark.jax
@pytest.mark.parametrize(("driver", "ocdbt"), FORMATS)
def test_jax_and_shardwise_read_each_other(tmp_path, rows, driver, ocdbt):
    jax = pytest.importorskip("jax")
    jax_serialization = pytest.importorskip("jax.experimental.array_serialization.serialization")
    hosts = [host_array(dtype) for dtype in DTYPES]
    jax_device = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    serialization.run_serialization(
        [sw.device_put(host, rows) for host in hosts], specs(tmp_path / "ours", driver, ocdbt)
    )
    by_jax = jax_serialization.run_deserialization([jax_device] * len(hosts), specs(tmp_path / "ours", driver, ocdbt))
    jax_serialization.run_serialization(
        [jax.device_put(host, jax_device) for host in hosts], specs(tmp_path / "theirs", driver, ocdbt)
    )
    by_us = serialization.run_deserialization([rows] * len(hosts), specs(tmp_path / "theirs", driver, ocdbt))
    for host, theirs, ours in zip(hosts, by_jax, by_us, strict=True):
        assert theirs.dtype == ours.dtype == host.dtype
        assert np.asarray(theirs).tobytes() == np.asarray(ours).tobytes() == host.tobytes()


PATHS = [
    "/run/w",
    "/run//a/../w/",
    "relative/w",
    "gs://bucket/run/w",
    "s3://bucket/run/w",
    "s3://bucket/w",
]


@pytest.mark.jax
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ocdbt", [False, True])
@pytest.mark.parametrize("process", [None, 3])
def test_specs_are_those_of_jax(path, ocdbt, process):
    theirs = pytest.importorskip("jax.experimental.array_serialization.tensorstore_impl")
    try:
        expected = theirs.get_tensorstore_spec(path, ocdbt=ocdbt, process_idx=process)
    except ValueError:
        with pytest.raises(ValueError, match="get_tensorstore_spec"):
            tensorstore_impl.get_tensorstore_spec(path, ocdbt=ocdbt, process_idx=process)
    else:
        assert tensorstore_impl.get_tensorstore_spec(path, ocdbt=ocdbt, process_idx=process) == expected


@pytest.mark.jax
@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_metadata_is_that_of_jax(driver):
    jax = pytest.importorskip("jax")
    theirs = pytest.importorskip("jax.experimental.array_serialization.serialization")
    expected = theirs.get_tensorstore_spec("/run/w", driver=driver, arr=jax.numpy.ones((4, 6)))
    assert serialization.get_tensorstore_spec("/run/w", driver=driver, arr=jnp.ones((4, 6))) == expected


@pytest.mark.jax
@pytest.mark.parametrize("name", ["run_serialization", "run_deserialization", "async_serialize", "async_deserialize"])
def test_signatures_are_those_of_jax(name):
    theirs = pytest.importorskip("jax.experimental.array_serialization.serialization")
    expected, found = (list(inspect.signature(getattr(module, name)).parameters) for module in (theirs, serialization))
    assert found == expected


@pytest.mark.jax
@pytest.mark.parametrize("name", ["serialize", "deserialize", "serialize_with_paths", "deserialize_with_paths"])
def test_methods_are_those_of_jax(name):
    theirs = pytest.importorskip("jax.experimental.array_serialization.serialization")
    expected, found = (
        list(inspect.signature(getattr(module.GlobalAsyncCheckpointManager, name)).parameters)
        for module in (theirs, serialization)
    )
    assert found == expected


def test_other_shapes_and_dtypes(tmp_path, mesh, rows):
    (spec,) = specs(tmp_path, names=["w"])
    uneven = sw.device_put(np.arange(21.0, dtype=np.float32).reshape(7, 3), rows)
    asyncio.run(tensorstore_impl.async_serialize(uneven, spec))
    larger = asyncio.run(tensorstore_impl.async_deserialize(rows, spec, (9, 4), jnp.bfloat16))
    expected = np.zeros((9, 4), np.float32)
    expected[:7, :3] = np.arange(21).reshape(7, 3)
    assert larger.dtype == jnp.bfloat16 and larger.sharding == rows
    np.testing.assert_array_equal(larger.astype(np.float32), expected)
    struct = sw.ShapeDtypeStruct((7, 3), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    whole = asyncio.run(tensorstore_impl.async_deserialize(struct, spec))
    assert whole.dtype == jnp.int32 and whole.sharding == struct.sharding
    np.testing.assert_array_equal(whole, expected[:7, :3])
    assert asyncio.run(tensorstore_impl.async_deserialize(Format(None, rows), spec)).sharding == rows
    with pytest.raises(TypeError, match="needs a sharding"):
        asyncio.run(tensorstore_impl.async_deserialize(None, spec))


@pytest.mark.parametrize("dtype", ["float8_e5m2", "bfloat16", "float16"])
def test_uneven_shards_keep_the_bits_of_nans(tmp_path, rows, dtype):
    bits = np.random.default_rng(0).bytes(5 * 64 * np.dtype(jnp.dtype(dtype)).itemsize)
    host = np.frombuffer(bits, np.dtype(jnp.dtype(dtype))).reshape(5, 64)
    (spec,) = specs(tmp_path, names=["w"])
    serialization.run_serialization([sw.device_put(host, sw.devices()[0])], [spec])
    (restored,) = serialization.run_deserialization([rows], [spec])
    assert np.asarray(restored).tobytes() == bits


def test_what_is_not_an_array_is_refused(tmp_path):
    (spec,) = specs(tmp_path, names=["w"])
    for value in (np.ones(3), sw.random.key(0)):
        with pytest.raises(TypeError, match="needs an array"):
            serialization.run_serialization([value], [spec])
    for path in ("s3://bucket", "http://bucket/w"):
        with pytest.raises(ValueError, match="neither gs://bucket/name nor s3://bucket/name"):
            serialization.get_tensorstore_spec(path, process_idx=3)
    with pytest.raises(ValueError, match="driver 'n5'"):
        tensorstore_impl.get_tensorstore_spec(tmp_path / "w", driver="n5", arr=jnp.ones(3))


def test_the_limiter_bounds_the_bytes_of_reads():
    async def run():
        limiter, used, peaks = tensorstore_impl.ByteLimiter(100), 0, []

        async def read(nbytes):
            nonlocal used
            await limiter.wait_for_bytes(nbytes)
            used += nbytes
            peaks.append(used)
            await asyncio.sleep(0)
            used -= nbytes
            await limiter.release_bytes(nbytes)

        await asyncio.gather(*map(read, [60, 50, 40, 300, 10, 90]))
        return peaks

    peaks = asyncio.run(run())
    assert len(peaks) == 6 and sorted(peaks)[-1] == 300 and sorted(peaks)[-2] <= 100


class TestManager:
    def test_writes_in_the_background_and_calls_back(self, tmp_path, rows):
        manager, paths = serialization.GlobalAsyncCheckpointManager(), [tmp_path / "new" / "w"]
        expected = np.arange(1 << 18, dtype=np.float32).reshape(8, -1)
        x = sw.device_put(expected, rows)
        manager.serialize_with_paths([x], paths, on_commit_callback=lambda: (tmp_path / "new").rename(tmp_path / "old"))
        sw.jit(lambda x: x * 0, donate_argnums=0)(x).block_until_ready()
        manager.wait_until_finished()
        (restored,) = manager.deserialize_with_paths([rows], [tmp_path / "old" / "w"])
        assert not paths[0].exists()
        np.testing.assert_array_equal(restored, expected)

    def test_an_error_is_raised_once(self, tmp_path):
        def fail():
            raise CheckpointError("the callback")

        manager = serialization.GlobalAsyncCheckpointManager()
        manager.serialize_with_paths([jnp.ones(3)], [tmp_path / "w"], on_commit_callback=fail)
        with pytest.raises(CheckpointError, match="the callback"):
            manager.wait_until_finished()
        manager.check_for_errors()
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="file"):
            manager.serialize_with_paths([jnp.ones(3)], [tmp_path / "file" / "w"])
            manager.wait_until_finished()
        manager.serialize_with_paths([jnp.ones(3)], [tmp_path / "v"])
        np.testing.assert_array_equal(manager.deserialize_with_paths([first_device()], [tmp_path / "v"])[0], [1, 1, 1])
