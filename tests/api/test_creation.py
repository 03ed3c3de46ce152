"""Arrays from a callback, from single-device arrays, and from process-local data."""

import json

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import ShardingError, UnexpectedTracerError
from shardwise.sharding import NamedSharding, PositionalSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P
from tests.multi_process.cluster import run_processes

WHOLE = np.arange(30, dtype=np.int32).reshape(10, 3)


@pytest.fixture(params=[P("data"), P("data", "model"), P(None, ("model", "data")), P()], ids=str)
def sharding(request, mesh):
    return NamedSharding(mesh, request.param)


def test_callback_is_called_once_per_distinct_shard(sharding):
    asked = []

    def part(index):
        asked.append(str(index))
        return WHOLE[index]

    x = sw.make_array_from_callback((10, 3), sharding, part)
    assert x.sharding == sharding
    assert (x.shape, x.dtype) == ((10, 3), np.int32)
    assert len(asked) == len(set(asked)) == len({str(i) for i in sharding.devices_indices_map((10, 3)).values()})
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, WHOLE[shard.index])
    half = sw.make_array_from_callback((10, 3), sharding, lambda index: WHOLE[index], dtype=sw.numpy.bfloat16)
    assert half.dtype == sw.numpy.bfloat16
    np.testing.assert_array_equal(np.asarray(half).astype(int), WHOLE)


def test_shards_can_be_keys():
    mesh = sw.make_mesh((8,), ("x",))
    keys = sw.random.split(sw.random.key(3), 8)
    parts = [sw.device_put(keys[i : i + 1], device) for i, device in enumerate(mesh.devices)]
    whole = sw.make_array_from_single_device_arrays((8,), NamedSharding(mesh, P("x")), parts)
    assert whole.dtype == keys.dtype and whole.sharding == NamedSharding(mesh, P("x"))
    np.testing.assert_array_equal(sw.random.key_data(whole), sw.random.key_data(keys))


def test_single_device_arrays_are_not_copied(sharding):
    parts = [sw.device_put(WHOLE[index], device) for device, index in sharding.devices_indices_map(WHOLE.shape).items()]
    x = sw.make_array_from_single_device_arrays((10, 3), sharding, parts[::-1])
    assert x.sharding == sharding
    np.testing.assert_array_equal(np.asarray(x), WHOLE)
    for shard, part in zip(x.addressable_shards, parts, strict=True):
        np.testing.assert_array_equal(shard.data, part)
    whole_pieces = [n for n, part in enumerate(parts) if part.shape == sharding.shard_shape((10, 3))]
    for number in whole_pieces:
        data = x.addressable_shards[number].data
        assert data.buffers.unsafe_buffer_pointer() == parts[number].buffers.unsafe_buffer_pointer()


def test_array_is_rebuilt_from_its_shards(mesh):
    x = sw.device_put(WHOLE, PositionalSharding(sw.devices()).reshape(4, 2).replicate(0))
    again = sw.make_array_from_single_device_arrays(x.shape, x.sharding, [shard.data for shard in x.addressable_shards])
    np.testing.assert_array_equal(np.asarray(again), WHOLE)


def test_one_process_has_all_data(sharding):
    x = sw.make_array_from_process_local_data(sharding, WHOLE)
    assert x.sharding == sharding
    np.testing.assert_array_equal(np.asarray(x), WHOLE)
    np.testing.assert_array_equal(np.asarray(sw.make_array_from_process_local_data(sharding, WHOLE, (10, 3))), WHOLE)


def put(value, device):
    return sw.device_put(np.asarray(value, np.float32), sw.devices()[device])


MANY = "make_array_from_single_device_arrays"
CALLBACK = "make_array_from_callback"
LOCAL = "make_array_from_process_local_data"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda s: sw.make_array_from_single_device_arrays((4,), s, [put([1], 0), put([2, 3, 4], 1)]),
            ValueError,
            f"{MANY}: the array on cpu:0 is f32[1], but the shard on that device has shape (2,): it is [0:2] "
            "of an array of shape (4,) with NamedSharding(",
        ),
        (
            lambda s: sw.make_array_from_single_device_arrays(
                (4,), s, [put([1, 2], 0), sw.device_put(np.ones(2, np.int32), sw.devices()[1])]
            ),
            ValueError,
            f"{MANY}: the array on cpu:1 is i32[2], but the dtype of the result is float32",
        ),
        (
            lambda s: sw.make_array_from_single_device_arrays((4,), s, [put([1, 2], 0), put([3, 4], 5)]),
            ValueError,
            f"{MANY}: arrays[1] is on cpu:5, which is not a device of this process in NamedSharding(",
        ),
        (
            lambda s: sw.make_array_from_single_device_arrays((4,), s, [put([1, 2], 0), put([3, 4], 0)]),
            ValueError,
            f"{MANY}: two arrays are on cpu:0: pass exactly one array per device",
        ),
        (
            lambda s: sw.make_array_from_single_device_arrays((4,), s, [put([1, 2], 0)]),
            ValueError,
            f"{MANY}: no array is on cpu:1: pass exactly one array per device",
        ),
        (
            lambda s: sw.make_array_from_single_device_arrays((4,), s, [np.ones(2), np.ones(2)]),
            TypeError,
            f"{MANY}: arrays[0] is array([1., 1.]), not an array on a device: use `device_put` first",
        ),
        (
            lambda s: sw.make_array_from_single_device_arrays((4,), s, [sw.device_put(np.ones(4), s)]),
            ValueError,
            f"{MANY}: arrays[0] has NamedSharding(mesh(x=2), P('x')), but must be on a single device",
        ),
        (
            lambda s: sw.make_array_from_callback((4,), s, lambda index: np.ones(3)),
            ValueError,
            f"{CALLBACK}: the callback returned an array of shape (3,) for the index [0:2], but the shard on "
            "cpu:0 has shape (2,)",
        ),
        (
            lambda s: sw.make_array_from_callback((4,), s, lambda i: np.ones(2, "i4" if i[0].start else "f4")),
            ValueError,
            f"{CALLBACK}: the callback returned int32 for the index [2:4], but float32 for the first: all "
            "shards must have the same dtype",
        ),
        (
            lambda s: sw.make_array_from_callback((), s, lambda index: 1.0),
            ShardingError,
            f"{CALLBACK}: cannot shard an array of shape ().\n  P('x') has 1 entries, but the array has rank 0",
        ),
        (
            lambda s: sw.make_array_from_callback((4,), s.with_spec(P(P.UNCONSTRAINED)), np.ones),
            ShardingError,
            "has UNCONSTRAINED dims, which only the planner of a compiled function can decide",
        ),
        (
            lambda s: sw.make_array_from_callback((4,), sw.devices()[0], np.ones),
            TypeError,
            f"{CALLBACK} needs a Sharding, not ",
        ),
        (
            lambda s: sw.make_array_from_callback((4,), P("x"), np.ones),
            TypeError,
            f"{CALLBACK}: a bare P('x') needs a mesh",
        ),
        (
            lambda s: sw.make_array_from_process_local_data(s, np.ones(3), (4,)),
            ValueError,
            f"{LOCAL}: dim 0 of the local data has size 3, but the devices of this process hold 4 of its 4 "
            "elements: pass just these, or",
        ),
        (
            lambda s: sw.make_array_from_process_local_data(s, np.ones(4), (4, 1)),
            ValueError,
            f"{LOCAL}: the local data has rank 1 (shape (4,)), but global_shape has rank 2 ((4, 1))",
        ),
    ],
)
def test_mismatches_raise(call, error, message):
    two = NamedSharding(sw.make_mesh((2,), ("x",)), P("x"))
    with pytest.raises(error) as caught:
        call(two)
    assert message in str(caught.value)


def test_single_device_sharding():
    where = SingleDeviceSharding(sw.devices()[3])
    x = sw.make_array_from_callback((2, 2), where, lambda index: np.eye(2)[index])
    assert x.devices() == {sw.devices()[3]}


WORKER = """
import json, sys
import numpy as np
import shardwise as sw
from shardwise.sharding import NamedSharding, PartitionSpec as P
rank, port = map(int, sys.argv[1:])
sw.config.update("num_cpu_devices", 2)
sw.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
mesh = sw.make_mesh((4,), ("x",))
rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))
whole = np.arange(24.0, dtype=np.float32).reshape(8, 3)
mine = whole[4 * rank : 4 * rank + 4]
found = {}
for name, x in {
    "inferred": sw.make_array_from_process_local_data(rows, mine),
    "given": sw.make_array_from_process_local_data(rows, mine, (8, 3)),
    "all": sw.make_array_from_process_local_data(rows, whole, (8, 3)),
    "columns": sw.make_array_from_process_local_data(columns, whole[:, 2 * rank : 2 * rank + 2], (8, 3)),
    "called": sw.make_array_from_callback((8, 3), rows, lambda index: whole[index]),
    "moved": sw.device_put(sw.make_array_from_process_local_data(rows, mine), columns),
}.items():
    there = [bool((np.asarray(s.data) == whole[s.index]).all()) for s in x.addressable_shards]
    absent = [s.data is None for s in x.global_shards]
    found[name] = [list(x.shape), there, sum(absent), float(x.sum())]
print(json.dumps(found), flush=True)
sw.distributed.shutdown()
"""


def test_two_processes_contribute_their_parts(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    for out in run_processes(lambda rank, port: [str(script), str(rank), str(port)], 2):
        found = json.loads(out.splitlines()[-1])
        assert set(found) == {"inferred", "given", "all", "columns", "called", "moved"}
        for name, (shape, there, absent, total) in found.items():
            assert (shape, there, absent, total) == ([8, 3], [True, True], 2, 276.0), name


def test_process_local_data_is_a_pytree():
    rows = NamedSharding(sw.make_mesh((2,), ("x",)), P("x"))
    data = {"a": np.arange(4), "b": (np.ones((2, 3), np.float32),)}
    for shape in (None, {"a": (4,), "b": (2, 3)}):
        arrays = sw.make_array_from_process_local_data(rows, data, shape)
        assert arrays["a"].sharding == arrays["b"][0].sharding == rows
        np.testing.assert_array_equal(arrays["a"], data["a"])
        np.testing.assert_array_equal(arrays["b"][0], data["b"][0])
    on_device = sw.make_array_from_process_local_data(sw.devices()[1], {"a": np.arange(4)}, (4,))
    assert on_device["a"].devices() == {sw.devices()[1]}
    for wrong in ({"a": (4,)}, {"a": (5,), "b": (2, 3)}):
        with pytest.raises(ValueError):
            sw.make_array_from_process_local_data(rows, data, wrong)


def test_traced_data_raises():
    rows = NamedSharding(sw.make_mesh((2,), ("x",)), P("x"))
    with pytest.raises(UnexpectedTracerError, match="make_array_from_callback cannot be called with traced data"):
        sw.jit(lambda x: sw.make_array_from_callback((4,), rows, lambda index: x[index]))(np.arange(4))
    with pytest.raises(ValueError, match="needs concrete arrays"):
        sw.jit(lambda x: sw.make_array_from_single_device_arrays((4,), rows, [x, x]))(np.arange(2))
