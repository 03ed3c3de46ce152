"""Cases: transfers between devices of several processes, and arrays without a device in some process."""

import itertools

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import Mesh, NamedSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P


def check(array, expected):
    """Compare the local shards with the parts of `expected`; the devices and indices are those of the sharding."""
    indices = array.sharding.addressable_devices_indices_map(expected.shape)
    assert {shard.device: shard.index for shard in array.addressable_shards} == indices
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


def numbers(*shape, dtype=np.float32):
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


def shardings():
    """Shardings over all devices in several orders, over subsets of devices and processes, and on one device."""
    devices = sw.devices()
    first = [next(d for d in devices if d.process_index == p) for p in range(sw.process_count())]
    last = [d for d in devices if d.process_index == sw.process_count() - 1]
    in_order = Mesh(np.array(devices), "x")
    reverse = Mesh(np.array(devices[::-1]).reshape(2, -1), ("x", "y"))
    strided = Mesh(np.array([*devices[::2], *devices[1::2]]).reshape(-1, 2), ("x", "y"))
    return [
        NamedSharding(in_order, P("x")),
        NamedSharding(in_order, P(None, "x")),
        NamedSharding(reverse, P("x", "y")),
        NamedSharding(reverse, P("y")),
        NamedSharding(reverse, P()),
        NamedSharding(strided, P(("y", "x"))),
        NamedSharding(Mesh(np.array(first), "x"), P("x")),
        NamedSharding(Mesh(np.array(last), "x"), P("x")),
        NamedSharding(Mesh(np.array(last[::-1]), "x"), P()),
        SingleDeviceSharding(devices[0]),
        SingleDeviceSharding(devices[-1]),
    ]


def check_moves(pairs):
    x = numbers(7, 6)
    for before, after in pairs:
        moved = sw.device_put(sw.device_put(x, before), after)
        assert moved.sharding == after and moved.committed
        check(moved, x)


def case_moves():
    """Each sharding to another one, with dims that the number of shards divides and others."""
    check_moves(zip(shardings(), shardings()[4:] + shardings()[:4], strict=True))


def case_every_move():
    """Each sharding to each other one."""
    check_moves(itertools.product(shardings(), shardings()))


def case_dtypes_and_ranks():
    source, *_, reverse, _, _, _, _, _, _, last = shardings()
    for x in (
        np.float32(3),
        np.array([1 + 2j, np.nan], np.complex64),
        numbers(4, 3, 2, dtype=np.int8),
        numbers(5) > 2,
        np.array([np.nan, -0.0, np.inf], jnp.bfloat16),
        np.zeros((0, 3), np.float32),
    ):
        for sharding in (last, NamedSharding(source.mesh, P()), NamedSharding(reverse.mesh, P())):
            moved = sw.device_put(sw.device_put(x, last), sharding)
            for shard in moved.addressable_shards:
                assert np.asarray(shard.data).tobytes() == np.asarray(x).tobytes()


def case_keys():
    mesh, target = Mesh(np.array(sw.devices()), "x"), Mesh(np.array(sw.devices()[::-1]), "x")
    keys = sw.random.split(sw.random.key(0), 8)
    words = np.asarray(sw.random.key_data(keys))
    moved = sw.device_put(sw.device_put(keys, NamedSharding(mesh, P("x"))), NamedSharding(target, P()))
    np.testing.assert_array_equal(np.asarray(sw.random.key_data(moved)), words)


def case_programs_on_other_processes():
    """A process runs programs whose devices all belong to others: its results have no shards."""
    devices = sw.devices()
    for sharding in (
        SingleDeviceSharding(devices[-1]),
        NamedSharding(Mesh(np.array([d for d in devices if d.process_index == 1]), "x"), P("x")),
    ):
        x = numbers(6, 4)
        y = sw.device_put(x, sharding)
        here = len(sharding.addressable_devices)
        assert sharding.has_addressable_devices == bool(here)
        assert len(y.addressable_shards) == here
        check(sw.jit(lambda y: y + 1)(y).block_until_ready(), x + 1)
        check(y @ y.T, x @ x.T)
        check(jnp.zeros_like(y), np.zeros_like(x))
        assert sw.jit(jnp.sum)(y).shape == ()
        assert len(list(iter(y))) == 6
        y.copy_to_host_async()
        assert isinstance(y.is_ready(), bool)
        if not here:
            for read in (
                lambda y=y: np.asarray(y),
                lambda y=y: sw.device_get(y),
                lambda y=y: y.addressable_data(0),
                lambda y=y: y.on_device_size_in_bytes(),
            ):
                try:
                    read()
                except RuntimeError as error:
                    assert f"process {sw.process_index()}" in str(error)
                else:
                    raise AssertionError("a value that is elsewhere was read")
        y.delete()
        assert y.is_deleted()


def case_creation_without_local_devices():
    mesh = Mesh(np.array([d for d in sw.devices() if d.process_index == 1]), "x")
    sharding = NamedSharding(mesh, P("x"))
    x = numbers(4, 2)
    check(sw.make_array_from_callback((4, 2), sharding, lambda index: x[index], dtype=x.dtype), x)
    local = [sw.device_put(x[index], d) for d, index in sharding.addressable_devices_indices_map((4, 2)).items()]
    check(sw.make_array_from_single_device_arrays((4, 2), sharding, local, dtype=np.float32), x)
    if sw.process_index() != 1:
        for make in (
            lambda: sw.make_array_from_callback((4, 2), sharding, lambda index: x[index]),
            lambda: sw.make_array_from_single_device_arrays((4, 2), sharding, []),
        ):
            try:
                make()
            except ValueError as error:
                assert "has no device in" in str(error) and "pass `dtype`" in str(error)
            else:
                raise AssertionError("an array without a dtype was made")


def case_values_that_differ():
    """device_put finds values, and arrays, that processes do not have in common."""
    sharding = NamedSharding(Mesh(np.array(sw.devices()), "x"), P())
    rank = sw.process_index()
    for make, kind, message in (
        (lambda: sw.device_put(np.arange(3) + rank, sharding), AssertionError, "not the same on each process"),
        (lambda: sw.device_put(float(rank), sharding), AssertionError, "not the same on each process"),
        (lambda: sw.device_put(jnp.arange(3) * rank, sharding), AssertionError, "not the same on each process"),
        (
            lambda: sw.device_put(sw.device_put(np.arange(3), sw.local_devices()[0]), sharding),
            ValueError,
            "are not the same on each process",
        ),
    ):
        try:
            make()
        except kind as error:
            assert message in str(error) and "Processes with the same value: 0; 1" in str(error)
        else:
            raise AssertionError("different values were not found")
    np.testing.assert_array_equal(np.asarray(sw.device_put(np.array([np.nan, 1.0]), sharding)), [np.nan, 1.0])


def case_numpy_arguments():
    """A numpy argument may be replicated; it may not be sharded, because nothing checks that processes agree."""
    mesh = Mesh(np.array(sw.devices()), "x")
    x = numbers(8)
    double = sw.jit(lambda x: 2 * x, in_shardings=NamedSharding(mesh, P()), out_shardings=NamedSharding(mesh, P()))
    np.testing.assert_array_equal(np.asarray(double(x)), 2 * x)
    try:
        sw.jit(lambda x: 2 * x, in_shardings=NamedSharding(mesh, P("x")))(x)
    except ValueError as error:
        assert "belong to several processes" in str(error) and "device_put" in str(error)
    else:
        raise AssertionError("a sharded numpy argument was accepted")


def case_reads_and_prints():
    devices = sw.devices()
    x = sw.device_put(numbers(8), NamedSharding(Mesh(np.array(devices), "x"), P("x")))
    rank, first = sw.process_index(), sw.local_devices()[0]
    assert repr(x) == "Array(shape=(8,), dtype=float32)"
    start = 8 // len(devices) * devices.index(first)
    part = f"[{start}:{start + 8 // len(devices)}] on CPU {first.id}"
    assert str(x).startswith(f"Array(shape=(8,), dtype=float32) in {x.sharding}; process {rank} has\n  {part}: [")
    assert f"{x}" == repr(x)
    others = [p for p in range(sw.process_count()) if p != rank]
    assert all(f"on process {other}" in str(x).splitlines()[-1] for other in others)
    try:
        float(x[0] + x.sum())  # replicated: every process has it
        np.asarray(x)
    except RuntimeError as error:
        assert "has shards on process" in str(error) and "process_allgather(x, tiled=True)" in str(error)
    else:
        raise AssertionError("shards of other processes were read")
    # Each process has both halves: nothing is elsewhere.
    by_process = np.array([[d for d in devices if d.process_index == p][:2] for p in range(sw.process_count())])
    halves = sw.device_put(numbers(6), NamedSharding(Mesh(by_process, ("p", "x")), P("x")))
    np.testing.assert_array_equal(np.asarray(halves), numbers(6))
    assert str(halves) == "[0. 1. 2. 3. 4. 5.]"


def case_meshes():
    devices = sw.devices()
    count = len(sw.local_devices())
    mesh = Mesh(np.array(devices).reshape(sw.process_count(), count), ("p", "d"))
    assert mesh.is_multi_process and not mesh.local_mesh.is_multi_process
    assert mesh.local_mesh == Mesh(np.array([sw.local_devices()]), ("p", "d"))
    sharding = NamedSharding(mesh, P("p"))
    assert sharding.processes == tuple(range(sw.process_count()))
    assert sharding.has_addressable_devices and not sharding.is_fully_addressable
    diagonal = np.array([devices, [*devices[1:], devices[0]]])[:, :1]
    if devices[0].process_index == devices[1].process_index:
        assert Mesh(diagonal, ("p", "d")).size == 2
    crossed = Mesh(np.array([[devices[0], devices[-1]], [devices[-2], devices[1]]]), ("p", "d"))
    try:
        local = crossed.local_mesh
    except sw.errors.ShardingError as error:
        assert "must be a grid" in str(error)
    else:
        raise AssertionError(f"no grid: {local}")
