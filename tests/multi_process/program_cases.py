"""Cases: compiled programs on meshes that span processes, and functions of multihost_utils."""

import contextlib
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, monitoring
from shardwise.errors import PeerFailure
from shardwise.experimental import colocated_python
from shardwise.experimental import multihost_utils as utils
from shardwise.runtime.shared_executables import COMPILED, RECEIVED
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.multi_process.transfer_cases import check, numbers


def meshes():
    """Meshes over all devices in several orders, and over one device of each process."""
    devices = sw.devices()
    first = [next(d for d in devices if d.process_index == p) for p in range(sw.process_count())]
    return [
        Mesh(np.array(devices).reshape(-1, 2), ("x", "y")),
        Mesh(np.array(devices[::-1]).reshape(2, -1), ("x", "y")),
        Mesh(np.array([*devices[::2], *devices[1::2]]).reshape(-1, 2), ("x", "y")),
        Mesh(np.array(first[::-1]).reshape(-1, 1), ("x", "y")),
    ]


def case_jit():
    """Uneven dims, reductions, contractions and gradients, against numpy."""
    a, b = numbers(7, 5) / 10, numbers(5, 9) / 10
    for mesh in meshes():
        x = sw.device_put(a, NamedSharding(mesh, P("x", "y")))
        y = sw.device_put(b, NamedSharding(mesh, P("y")))
        product = sw.jit(lambda x, y: jnp.sin(x @ y))(x, y)
        for shard in product.addressable_shards:
            np.testing.assert_allclose(np.asarray(shard.data), np.sin(a @ b)[shard.index], rtol=1e-4, atol=1e-5)
        gradient = sw.jit(sw.grad(lambda x, y: (x @ y).sum()))(x, y)
        for shard in gradient.addressable_shards:
            expected = np.broadcast_to(b.sum(1), a.shape)[shard.index]
            np.testing.assert_allclose(np.asarray(shard.data), expected, rtol=1e-5)
        check(x[2:6, 1:], a[2:6, 1:])
        check(jnp.sort(x, axis=0)[::-1], np.sort(a, axis=0)[::-1])
        assert abs(float(x.sum()) - a.sum()) < 1e-3


def case_one_process_compiles():
    """A program is compiled in one process, and the others load its executable."""
    mesh = Mesh(np.array(sw.devices()), ("x",))
    x = sw.device_put(numbers(8, 3), NamedSharding(mesh, P("x")))
    events = []
    listeners = [lambda event, **_: events.append(event), lambda event, *_, **__: events.append(event)]
    monitoring.register_event_listener(listeners[0])
    monitoring.register_event_duration_secs_listener(listeners[1])
    try:
        total = sw.jit(lambda x: jnp.cos(x @ x.T).sum() * 13)(x)
        assert abs(float(total) - 13 * np.cos(numbers(8, 3) @ numbers(8, 3).T).sum()) < 1e-2
    finally:
        monitoring.unregister_event_listener(listeners[0])
        monitoring.unregister_event_duration_listener(listeners[1])
    counts = np.array([events.count(COMPILED), events.count(RECEIVED)])
    totals = utils.process_allgather(counts).sum(axis=0)
    assert totals.tolist() == [1, sw.process_count() - 1], (totals, events)


def case_shard_map():
    for mesh in meshes():
        rows = mesh.shape["x"]
        x = numbers(rows * 2, 4)
        array = sw.device_put(x, NamedSharding(mesh, P("x")))

        def collect(x, rows=rows):
            index = lax.axis_index("x")
            turned = lax.ppermute(x, "x", [(n, (n + 1) % rows) for n in range(rows)])
            return lax.psum(x, "x"), turned + index, lax.all_gather(x, "x", tiled=True)

        specs = (P(), P("x"), P())
        mapped = sw.shard_map(collect, mesh=mesh, in_specs=P("x"), out_specs=specs, check_vma=False)
        total, turned, gathered = sw.jit(mapped)(array)
        check(total, x.reshape(rows, 2, 4).sum(0))
        check(turned, np.roll(x, 2, axis=0) + np.repeat(np.arange(rows), 2)[:, None])
        check(gathered, x)


def case_random():
    key = sw.random.key(3)
    expected = np.asarray(sw.random.normal(key, (7, 6)))
    for mesh in meshes():
        draw = sw.jit(lambda key: sw.random.normal(key, (7, 6)), out_shardings=NamedSharding(mesh, P("x", "y")))
        for shard in draw(key).addressable_shards:
            np.testing.assert_allclose(np.asarray(shard.data), expected[shard.index], rtol=1e-6)


def case_callbacks():
    """A callback runs in the process of the first device of the mesh; all processes get its result."""
    for mesh in meshes():
        calls = []

        def double(x, calls=calls):
            calls.append(x.shape)
            return 2 * x

        x = numbers(6)
        array = sw.device_put(x, NamedSharding(mesh, P("x")))
        result_type = sw.ShapeDtypeStruct((6,), np.float32)
        check(sw.jit(lambda x: sw.pure_callback(double, result_type, x) + 1)(array), 2 * x + 1)  # noqa: B023
        assert calls == ([(6,)] if mesh.flat_devices[0] in sw.local_devices() else [])
        seen = []
        sw.jit(lambda x: sw.debug.callback(seen.append, x, partitioned=True))(array)  # noqa: B023
        sw.effects_barrier()
        assert len(seen) == len(mesh.local_devices)


def case_callback_errors():
    """The process that runs the callback raises its exception, and the others a PeerFailure; then all go on."""
    result_type = sw.ShapeDtypeStruct((6,), np.float32)
    mesh, rank = meshes()[1], sw.process_index()
    array = sw.device_put(numbers(6), NamedSharding(mesh, P("x")))
    sw.distributed.report_step(7)

    def fail(x):
        raise ValueError("no such number")

    def fail_in_last_process(x):
        if sw.process_index() == sw.process_count() - 1:
            fail(x)

    first, last = mesh.flat_devices[0].process_index, sw.process_count() - 1
    functions = {
        "pure": (first, lambda x: sw.pure_callback(fail, result_type, x) + 1),
        "io": (first, lambda x: sw.experimental.io_callback(fail, result_type, x, ordered=False)),
        "ordered": (first, lambda x: sw.experimental.io_callback(fail, result_type, x, ordered=True)),
        "debug": (first, lambda x: sw.debug.callback(fail, x)),
        "partitioned": (last, lambda x: sw.debug.callback(fail_in_last_process, x, partitioned=True)),
    }
    for name, (culprit, function) in functions.items():
        for _ in range(2):  # the second launch is not compared
            try:
                sw.jit(function)(array)
            except ValueError as error:
                assert (str(error), rank) == ("no such number", culprit), name
            except PeerFailure as failure:
                assert (failure.rank, failure.step) == (culprit, 7) and rank != culprit, name
                assert failure.reason.startswith("a callback raised ValueError: no such number, in `"), failure.reason
                assert 'raise ValueError("no such number")' in failure.detail
            else:
                raise AssertionError(f"{name}: no error")
            assert float(array.sum()) == 15


def printed(function, *args):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        sw.block_until_ready(function(*args))
        sw.effects_barrier()
    return sorted(text.getvalue().splitlines())


def case_debug_print():
    """Each line starts with the process that prints it."""
    mesh, rank = meshes()[0], sw.process_index()
    array = sw.device_put(numbers(4), NamedSharding(mesh, P("x")))

    def show(x):
        sw.debug.print("x = {}", x)
        return x

    lines = printed(sw.jit(show), array)
    assert lines == ([f"[process {rank}] x = [0. 1. 2. 3.]"] if mesh.flat_devices[0] in sw.local_devices() else [])

    def show_shard(x):
        sw.debug.print("{}", lax.axis_index("i"))
        return x

    all_devices = Mesh(np.array(sw.devices()), "i")
    mapped = sw.jit(sw.shard_map(show_shard, mesh=all_devices, in_specs=P("i"), out_specs=P("i")))
    lines = printed(mapped, sw.device_put(numbers(len(sw.devices())), NamedSharding(all_devices, P("i"))))
    assert lines == [f"[process {rank}] {sw.devices().index(device)}" for device in sw.local_devices()]


def case_explain():
    """The plan is the same in all processes."""
    mesh = meshes()[1]
    x = sw.device_put(numbers(8, 6), NamedSharding(mesh, P("x", "y")))
    text = str(sw.explain(lambda x: x @ x.T)(x))
    assert "all" in text
    utils.assert_equal(np.frombuffer(text.encode(), np.uint8))


def case_thread_guard():
    """Only the thread that set the guard launches programs on several processes."""
    array = sw.device_put(numbers(8), NamedSharding(meshes()[0], P("x")))
    local = sw.device_put(numbers(8), NamedSharding(meshes()[0].local_mesh, P("x")))
    double = sw.jit(lambda x: 2 * x)
    with sw.thread_guard(True), ThreadPoolExecutor(1) as executor:
        check(double(array), 2 * numbers(8))
        np.testing.assert_array_equal(np.asarray(executor.submit(double, local).result()), 2 * numbers(8))
        for task, message in (
            (lambda: double(array), "thread guard was set"),
            (sw.thread_guard(True).__enter__, "Nested thread guards in different threads are not supported"),
        ):
            error = executor.submit(task).exception()
            assert isinstance(error, RuntimeError) and message in str(error)
        with sw.thread_guard(False):
            executor.submit(double, array).result()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(double, array).result()


def case_colocated_python():
    mesh = Mesh(np.array(sw.devices()), "x")
    assert colocated_python.colocated_cpu_devices(mesh) == mesh
    calls = []

    @colocated_python.colocated_python
    def add_one(x):
        calls.append(len(x.addressable_shards))
        shards = [shard.data + 1 for shard in x.addressable_shards]
        return sw.make_array_from_single_device_arrays(x.shape, x.sharding, shards)

    x = numbers(8)
    check(add_one(sw.device_put(x, NamedSharding(mesh, P("x")))), x + 1)
    assert calls == [sw.local_device_count()]
    elsewhere = sw.device_put(x, sw.devices()[-1])
    if elsewhere.sharding.has_addressable_devices:
        check(add_one(elsewhere), x + 1)
        return
    assert not add_one.specialize(out_specs_fn=lambda x: x)(elsewhere).addressable_shards
    try:
        add_one(elsewhere)
    except ValueError as error:
        assert "out_specs_fn" in str(error)
    else:
        raise AssertionError("the type of the result is not known")


def case_pmap():
    count, rank = sw.local_device_count(), sw.process_index()
    x = numbers(count) + rank * count
    total = sw.pmap(lambda x: lax.psum(x, "i"), axis_name="i")(x)
    np.testing.assert_array_equal(np.asarray(total), [numbers(sw.device_count()).sum()] * count)
    zeros = sw.pmap(lambda x: x)(np.zeros((count, 3), sw.dtypes.float0))
    assert zeros.shape == (count, 3) and zeros.dtype == bool


def case_gather_and_broadcast():
    rank, count = sw.process_index(), sw.process_count()
    own = np.arange(2) + 10 * rank
    rows = [[10 * p, 10 * p + 1] for p in range(count)]
    assert utils.process_allgather(own).tolist() == rows
    assert utils.process_allgather(own, tiled=True).tolist() == [n for row in rows for n in row]
    assert utils.process_allgather({"a": rank}, tiled=True)["a"].tolist() == list(range(count))
    assert utils.broadcast_one_to_all({"a": own})["a"].tolist() == [0, 1]
    assert utils.broadcast_one_to_all(own, is_source=rank == 1).tolist() == [10, 11]
    for value in (
        np.float64(0.1),
        np.array([-0.0, np.nan]),
        np.arange(3, dtype=np.uint8),
        np.array(True),
        jnp.bfloat16(2),
    ):
        received = utils.broadcast_one_to_all(value)
        assert received.dtype == np.asarray(value).dtype and received.tobytes() == np.asarray(value).tobytes()
    with sw.set_mesh(meshes()[1]):  # the current mesh changes nothing
        assert utils.process_allgather(own).tolist() == rows
        utils.sync_global_devices("with a mesh")
    try:
        utils.broadcast_one_to_all(own, is_source=False)
    except ValueError as error:
        assert "one process must be the source, not 0" in str(error)
    else:
        raise AssertionError("there is no source")


def case_gather_global_arrays():
    x = numbers(7, 4)
    for mesh in meshes():
        array = sw.device_put(x, NamedSharding(mesh, P("x", "y")))
        np.testing.assert_array_equal(utils.process_allgather(array, tiled=True), x)
    try:
        utils.process_allgather(array)
    except ValueError as error:
        assert "pass tiled=True" in str(error)
    else:
        raise AssertionError("a global array was stacked")


def case_checks():
    rank = sw.process_index()
    utils.sync_global_devices("start")
    utils.assert_equal({"a": 3, "b": np.array([np.nan])})
    utils.assert_equal(sw.device_put(numbers(4), NamedSharding(meshes()[0], P())))
    for check_value, message in (
        (lambda: utils.assert_equal({"a": 1, "b": rank == 0}, "seeds"), "seeds. ['b'] is"),
        (lambda: utils.sync_global_devices(f"point {rank == 0}"), "sync_global_devices"),
    ):
        try:
            check_value()
        except AssertionError as error:
            others = " and ".join(map(str, range(1, sw.process_count())))
            assert message in str(error) and f"Processes with the same value: 0; {others}." in str(error)
        else:
            raise AssertionError("a difference was not found")


def case_host_local_arrays():
    rank, count = sw.process_index(), sw.local_device_count()
    mesh = Mesh(np.array(sw.devices()).reshape(sw.process_count(), count), ("p", "d"))
    whole = numbers(sw.process_count() * count, 3)
    own = whole[rank * count : (rank + 1) * count]
    for spec in (P(("p", "d")), P("p")):
        array = utils.host_local_array_to_global_array(own, mesh, spec)
        assert array.sharding == NamedSharding(mesh, spec)
        check(array, whole)
        assert utils.host_local_array_to_global_array(array, mesh, spec) is array
        back = utils.global_array_to_host_local_array(array, mesh, spec)
        assert back.sharding == NamedSharding(mesh.local_mesh, spec)
        np.testing.assert_array_equal(np.asarray(back), own)
        local = sw.device_put(own, NamedSharding(mesh.local_mesh, spec))
        shared = utils.host_local_array_to_global_array(local, mesh, spec)
        for before, after in zip(local.addressable_shards, shared.addressable_shards, strict=True):
            assert before.data.unsafe_buffer_pointer() == after.data.unsafe_buffer_pointer()
    resharded = utils.global_array_to_host_local_array(array, mesh, P("d"))
    assert resharded.shape == whole.shape
    np.testing.assert_array_equal(np.asarray(resharded), whole)


def case_process_local_data():
    """Trees of data, of shapes, and None in a shape."""
    count = sw.local_device_count()
    mesh = Mesh(np.array(sw.devices()).reshape(sw.process_count(), count), ("p", "d"))
    shape = (2 * sw.process_count(), 4)
    data = {"a": np.ones((2, 4)), "b": np.zeros((2, 4))}
    with sw.set_mesh(mesh):
        for global_shape in (None, shape, {"a": shape, "b": shape}, {"a": None, "b": shape}):
            arrays = sw.make_array_from_process_local_data(P("p", "d"), data, global_shape)
            assert arrays["a"].shape == arrays["b"].shape == shape
        try:
            sw.make_array_from_process_local_data(P("p", "d"), data["a"], (None, 4))
        except ValueError as error:
            assert "not supported" in str(error)
        else:
            raise AssertionError("None is no size")


def case_live_devices_and_preemption():
    with utils.live_devices(sw.devices()) as alive:
        assert alive == list(sw.devices())
    try:
        with utils.live_devices(sw.devices()):
            raise KeyError("mine")
    except KeyError as error:
        assert error.args == ("mine",)
    assert not any(utils.reached_preemption_sync_point(step) for step in range(3))
    others = [device for device in sw.devices() if device.process_index != sw.process_index()]
    try:
        with utils.live_devices(others):
            pass
    except ValueError as error:
        assert f"process {sw.process_index()} has none of the devices" in str(error)
    else:
        raise AssertionError("a process without a device took part")
