"""Every function of `_jaxlib`, against the installed jaxlib: a failure here is a change in jaxlib."""

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from shardwise.base import _jaxlib
from tests.device_shards import shards_to_numpy

INCREMENT = """
module @m { func.func public @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %1 = stablehlo.add %x, %x : tensor<2x3xf32>
  return %1 : tensor<2x3xf32> } }
"""


@pytest.fixture(scope="module")
def client():
    return _jaxlib.cpu_client(8)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_put_run_and_read(client, count):
    devices = client.devices()[:count]
    shards = [np.full((2, 3), index, np.float32) for index in range(count)]
    buffers = _jaxlib.put(shards, devices, devices)
    executable = _jaxlib.compile_text(INCREMENT, devices)
    launch = _jaxlib.launcher(executable, [_jaxlib.result_handler((2, 3), np.float32, devices)])
    (result,) = launch([buffers])
    _jaxlib.block_until_ready([result])
    for index, shard in enumerate(shards_to_numpy(result)):
        np.testing.assert_array_equal(shard, np.full((2, 3), 2 * index))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_, ml_dtypes.bfloat16, np.complex64, ml_dtypes.int4])
@pytest.mark.parametrize("count", [1, 8])
def test_shards_keep_their_dtype(client, dtype, count):
    devices = client.devices()[:count]
    shards = [np.array([[index % 2, 1]]).astype(dtype) for index in range(count)]
    read = shards_to_numpy(_jaxlib.put(shards, devices, devices))
    assert [shard.dtype for shard in read] == [np.dtype(dtype)] * count
    for got, expected in zip(read, shards, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, ml_dtypes.bfloat16, np.complex64])
def test_elements_are_written_into_memory_of_a_device(client, dtype):
    initial, device = np.zeros((2, 3), dtype), client.devices()[3]
    buffers, memory = _jaxlib.put_writable(initial, device)
    memory[:] = np.arange(6).reshape(2, 3).astype(dtype)
    (shard,) = shards_to_numpy(buffers)
    np.testing.assert_array_equal(shard, np.arange(6).reshape(2, 3).astype(dtype))
    assert not initial.any()


def test_buffers_share_the_memory_of_an_array_until_they_are_donated(client):
    devices = client.devices()[:2]
    memory = np.zeros(1024, np.float32)
    start = -memory.ctypes.data % _jaxlib.ALIAS_ALIGNMENT // 4
    memory = memory[start : start + 6].reshape(2, 3)
    replicas = [_jaxlib.put_aliased(memory, device) for device in devices]
    memory[:] = np.arange(6).reshape(2, 3)
    donating = INCREMENT.replace("%x: tensor<2x3xf32>", "%x: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}")
    executable = _jaxlib.compile_text(donating, devices[:1])
    launch = _jaxlib.launcher(executable, [_jaxlib.result_handler((2, 3), np.float32, devices[:1])])
    (result,) = launch([replicas[0]])
    np.testing.assert_array_equal(shards_to_numpy(result)[0], 2 * memory)
    assert replicas[0].is_deleted()
    np.testing.assert_array_equal(shards_to_numpy(replicas[1])[0], np.arange(6).reshape(2, 3))


def test_buffers_do_not_share_memory_that_is_not_aligned(client):
    memory = np.zeros(1024, np.uint8)
    start = -memory.ctypes.data % _jaxlib.ALIAS_ALIGNMENT
    with pytest.raises(RuntimeError, match="XLA has copied an array of 100 bytes"):
        _jaxlib.put_aliased(memory[start + 1 : start + 101], client.devices()[0])


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_addresses_are_those_of_jaxlib(client, dtype):
    devices = client.devices()
    buffers = _jaxlib.put([np.zeros((2, 3), dtype)] * 8, devices, devices)
    for shard in _jaxlib.split(buffers):
        assert _jaxlib.address_of(shard) == shard.unsafe_buffer_pointer()


_SEARCHES = """
import sys, types
import numpy as np
from shardwise.base import _jaxlib

names = []
finder = types.SimpleNamespace(find_spec=lambda name, path=None, target=None: names.append(name))
sys.meta_path.insert(sys.meta_path.index(_jaxlib.JaxBlocker) + 1, finder)
devices = _jaxlib.cpu_client(8).devices()

def read():
    names.clear()
    for shard in _jaxlib.split(_jaxlib.put([np.zeros(3, np.float32)] * 8, devices, devices)):
        _jaxlib.to_numpy(shard)
    return [name for name in names if name.startswith("jax.") or name == "jax"]

print(read())
sys.path[:] = []
try:
    import jax
except ImportError:
    print(read())
"""


def test_jaxlib_does_not_search_for_jax():
    """Not even after somebody else has searched in vain."""
    run = subprocess.run([sys.executable, "-c", _SEARCHES], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["[]", "[]"]


def test_an_array_that_was_read_cannot_be_written_to(client):
    """XLA may still use the memory, and other arrays may share it."""
    shard = _jaxlib.put([np.zeros(3, np.float32)], client.devices()[:1], client.devices()[:1])
    with pytest.raises(ValueError, match="read-only"):
        _jaxlib.to_numpy(shard)[0] = 1.0


@pytest.mark.parametrize("count", [1, 8])
def test_the_first_shard_is_not_copied(client, count):
    devices = client.devices()[:count]
    buffers = _jaxlib.put([np.full((2, 3), index, np.float32) for index in range(count)], devices, devices)
    first = _jaxlib.first_shard(_jaxlib.clone(buffers))
    assert first.unsafe_buffer_pointer() == _jaxlib.split(buffers)[0].unsafe_buffer_pointer()
    np.testing.assert_array_equal(_jaxlib.to_numpy(first), np.zeros((2, 3)))


@pytest.mark.parametrize("count", [1, 8])
def test_memory_kinds_of_devices(client, count):
    devices = client.devices()[:count]
    default = devices[0].default_memory().kind
    kinds = [memory.kind for memory in devices[0].addressable_memories()]
    assert default in kinds and "pinned_host" in kinds
    shards = [np.full((2, 3), index, np.float32) for index in range(count)]
    there = _jaxlib.put(shards, devices, devices, "pinned_host")
    again = _jaxlib.copy_to_memory(_jaxlib.copy_to_memory(there, devices, default), devices, "pinned_host")
    copied = _jaxlib.copy_to_memory(there, devices, "pinned_host", copied=True)
    joined = _jaxlib.join(_jaxlib.split(there), (2, 3), np.float32, devices, devices, "pinned_host")
    for found in (there, again, copied, joined):
        np.testing.assert_array_equal(shards_to_numpy(found), shards)
    places = [[shard.unsafe_buffer_pointer() for shard in _jaxlib.split(x)] for x in (there, joined, again, copied)]
    assert places[0] == places[1] and not set(places[0]) & set(places[2]) and not set(places[0]) & set(places[3])


@pytest.mark.parametrize("count", [1, 8])
def test_later_writes_to_numpy_arrays_do_not_change_the_buffer(client, count):
    devices = client.devices()[:count]
    host = np.ones((count * 1024, 4), np.float32)
    shards = np.split(host, count)
    buffers = _jaxlib.put(shards, devices, devices)
    host[:] = 99
    for shard in shards_to_numpy(buffers):
        np.testing.assert_array_equal(shard, np.ones((1024, 4)))


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, ml_dtypes.bfloat16, np.complex64, ml_dtypes.int4])
def test_shards_are_split_and_joined_from_device_to_device(client, dtype):
    devices = client.devices()
    shards = [np.full((2, 3), index % 2).astype(dtype) for index in range(4)]
    buffers = _jaxlib.put(shards, devices[:4], devices[:4])
    singles = _jaxlib.split(buffers)
    addresses = [single.unsafe_buffer_pointer() for single in singles]
    here = _jaxlib.join(singles[1:3], (2, 3), dtype, devices[1:3], devices[1:3])
    assert [single.unsafe_buffer_pointer() for single in _jaxlib.split(here)] == addresses[1:3]  # nothing was copied
    there = _jaxlib.join(singles, (2, 3), dtype, devices[4:], devices[4:])
    assert there._sharding.device_set == set(devices[4:])
    for got, expected in zip(shards_to_numpy(there), shards, strict=True):
        assert got.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(got, expected)
    (one,) = _jaxlib.split(_jaxlib.join([singles[3]], (2, 3), dtype, devices[:1], devices[:1]))
    _jaxlib.start_copy_to_host(one)
    np.testing.assert_array_equal(_jaxlib.to_numpy(one), shards[3])
    assert one.on_device_size_in_bytes() == singles[3].on_device_size_in_bytes()
    buffers.delete()
    assert here.is_deleted() or all(single.is_deleted() for single in _jaxlib.split(here))
    assert not there.is_deleted()


CHOLESKY = """
module @m { func.func public @main(%x: tensor<2x2xf64>) -> tensor<2x2xf64> {
  %1:2 = "stablehlo.custom_call"(%x) <{call_target_name = "lapack_dpotrf_ffi", api_version = 4 : i32,
    backend_config = {uplo = 76 : ui8}, operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
    result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]}>
    : (tensor<2x2xf64>) -> (tensor<2x2xf64>, tensor<i32>)
  return %1#0 : tensor<2x2xf64> } }
"""


@pytest.mark.parametrize("count", [1, 8])
def test_lapack_custom_calls_are_registered(client, count):
    devices = client.devices()[:count]
    buffers = _jaxlib.put([np.array([[4.0, 0.0], [2.0, 10.0]])] * count, devices, devices)
    executable = _jaxlib.compile_text(CHOLESKY, devices)
    launch = _jaxlib.launcher(executable, [_jaxlib.result_handler((2, 2), np.float64, devices)])
    (result,) = launch([buffers])
    for shard in shards_to_numpy(result):
        np.testing.assert_array_equal(np.tril(shard), [[2.0, 0.0], [1.0, 3.0]])


def test_compile_error_is_a_runtime_error(client):
    with pytest.raises(_jaxlib.RuntimeFailure, match="nonsense"):
        _jaxlib.compile_text(INCREMENT.replace("stablehlo.add", "stablehlo.nonsense"), client.devices()[:1])


def test_registry_flattens_trees():
    registry = _jaxlib.PyTreeRegistry(
        enable_none=True, enable_tuple=True, enable_namedtuple=True, enable_list=True, enable_dict=True
    )
    leaves, structure = registry.flatten(({"b": 1, "a": [2, None]}, 3))
    assert leaves == [2, 1, 3]
    assert structure.unflatten([20, 10, 30]) == ({"b": 10, "a": [20, None]}, 30)
    assert isinstance(structure, _jaxlib.PyTreeDef)
    assert structure.flatten_up_to(({"b": (4, 5), "a": [6, None]}, 7)) == [6, (4, 5), 7]
    assert structure.node_data() == (tuple, None)
    assert structure.children()[1].node_data() is None
    assert (structure.num_nodes, structure.num_leaves) == (7, 3)
    assert structure.from_iterable_tree([[[2, []], 1], 3]) == ({"b": 1, "a": [2, None]}, 3)
    assert _jaxlib.treedef_tuple(registry, structure.children()) == structure
    assert structure.compose(registry.flatten([1])[1]) == registry.flatten(({"b": [1], "a": [[2], None]}, [3]))[1]


def test_registry_knows_nodes_and_keys():
    class Pair:
        def __init__(self, *items):
            self.items = items

    class Fields:
        def __init__(self, x, size):
            self.x, self.size = x, size

    registry = _jaxlib.PyTreeRegistry(
        enable_none=True, enable_tuple=True, enable_namedtuple=True, enable_list=True, enable_dict=True
    )
    registry.register_node(Pair, lambda node: (node.items, "static"), lambda static, items: Pair(*items), None)
    registry.register_dataclass_node(Fields, ["x"], ["size"])
    assert registry.is_node(Pair) and registry.is_node(Fields) and not registry.is_node(int)
    assert registry.flatten_one_level(Pair(1, 2)) == ((1, 2), "static")
    assert registry.flatten_one_level(3) is None
    assert _jaxlib.all_leaves(registry, [1, 2]) and not _jaxlib.all_leaves(registry, [1, Pair()])
    found, structure = registry.flatten_with_path(({"a": [1]}, Pair(Fields(2, 3))), lambda path, node: len(path) > 3)
    assert found == [
        ((_jaxlib.SequenceKey(0), _jaxlib.DictKey("a"), _jaxlib.SequenceKey(0)), 1),
        ((_jaxlib.SequenceKey(1), _jaxlib.FlattenedIndexKey(0), _jaxlib.GetAttrKey("x")), 2),
    ]
    assert structure.unflatten([5, 6])[1].items[0].size == 3


def test_a_cycle_is_a_recursion_error_inside_a_system_error():
    """`tree.flatten` unwraps it."""
    cycle = []
    cycle.append(cycle)
    with pytest.raises((SystemError, RecursionError)) as caught:
        _jaxlib.PyTreeRegistry().flatten(cycle)
    assert isinstance(caught.value.__cause__ or caught.value, RecursionError)


def test_devices_are_instances_of_device(client):
    assert all(isinstance(device, _jaxlib.Device) for device in client.devices())
    assert client.process_index() == 0
    assert client.platform == "cpu"


def test_dlpack_shares_memory(client):
    device = client.devices()[0]
    buffers = _jaxlib.put([np.arange(6, dtype=np.float32).reshape(2, 3)], [device], [device])
    again = _jaxlib.from_dlpack(_jaxlib.to_dlpack(buffers), device, may_copy=False)
    assert again.unsafe_buffer_pointer() == buffers.unsafe_buffer_pointer()
    np.testing.assert_array_equal(_jaxlib.to_numpy(again), _jaxlib.to_numpy(buffers))
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_array_equal(
        _jaxlib.to_numpy(_jaxlib.from_dlpack(turned.__dlpack__(), device, may_copy=True)), turned
    )


def test_many_active_runs_with_collectives(client):
    """Without a bound on active runs, XLA aborts the process at about 32 of them."""
    devices = client.devices()
    text = """
    module @m { func.func public @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
      %1 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.maximum %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }) : (tensor<2x3xf32>) -> tensor<2x3xf32>
      return %1 : tensor<2x3xf32> } }
    """
    executable = _jaxlib.compile_text(text, devices)
    handlers = [_jaxlib.result_handler((2, 3), np.float32, devices)]
    buffers = _jaxlib.put([np.full((2, 3), index, np.float32) for index in range(8)], devices, devices)
    launch = _jaxlib.launcher(executable, handlers, ordered=True)
    for _ in range(150):
        (buffers,) = launch([buffers])
    for shard in shards_to_numpy(buffers):
        np.testing.assert_array_equal(shard, np.full((2, 3), 7))


def test_profiles(client, tmp_path):
    devices = client.devices()[:2]
    executable = _jaxlib.compile_text(INCREMENT.replace("@m ", "@traced "), devices)
    launch = _jaxlib.launcher(executable, [_jaxlib.result_handler((2, 3), np.float32, devices)])
    options = _jaxlib.ProfileOptions()
    options.python_tracer_level = 0
    session = _jaxlib.profiler_session(options)
    with _jaxlib.TraceMe("step", step_num=1):
        _jaxlib.block_until_ready(launch([_jaxlib.put([np.ones((2, 3), np.float32)] * 2, devices, devices)]))
    _jaxlib.export_session(session, _jaxlib.stop_session(session), str(tmp_path))
    suffixes = [".trace.json.gz", ".xplane.pb"]
    found = sorted(path.name for path in tmp_path.glob("plugins/profile/*/*"))
    assert len(found) == 2 and all(name.endswith(suffix) for name, suffix in zip(found, suffixes, strict=True))
    ((name, text),) = _jaxlib.module_texts(client, {"traced"})
    assert name == "traced" and text().startswith("HloModule traced")
    assert b"executable" in _jaxlib.heap_profile(client)
    assert _jaxlib.profiler_server(0) is not None
    with pytest.raises(_jaxlib.RuntimeFailure, match="INVALID_ARGUMENT"):  # a process that serves no profiles
        _jaxlib.profile_subprocess(os.getpid(), 0)


@pytest.mark.parametrize("on", [False, True])
def test_tracebacks_are_recorded_if_enabled(client, on):
    devices = client.devices()[:1]
    before = _jaxlib._jax.tracebacks_enabled()
    _jaxlib.record_tracebacks(on)
    try:
        kept = _jaxlib.put([np.ones(17, np.float32)], devices, devices)
        assert (b"test_jaxlib.py" in _jaxlib.heap_profile(client)) == on
        kept.delete()
    finally:
        _jaxlib.record_tracebacks(before)


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_put_copies_memory_that_jaxlib_would_alias(client, count, shared):
    """`offset` aligns the memory, which jaxlib aliases by default."""
    devices = client.devices()[:count]
    memory = np.empty(64 * 65 * count, np.uint8)
    offset = -memory.ctypes.data % 64
    rows = memory[offset : offset + 64 * 64 * count].view(np.float32).reshape(count, 32, 32)
    rows[:] = 1
    buffers = _jaxlib.put([rows[0] if shared else row for row in rows], devices, devices)
    rows[:] = 2
    for shard in shards_to_numpy(buffers):
        np.testing.assert_array_equal(shard, np.ones((32, 32)))
    for shard in _jaxlib.split(buffers):
        assert not rows.ctypes.data <= shard.unsafe_buffer_pointer() < rows.ctypes.data + rows.nbytes


@pytest.mark.parametrize("count", [1, 8])
def test_executables_are_serialized(client, count):
    devices = client.devices()[:count]
    options: _jaxlib.CompilerOptions = (("xla_backend_optimization_level", 0),)
    blob = _jaxlib.serialize_executable(_jaxlib.compile_text(INCREMENT, devices, options=options))
    loaded = _jaxlib.deserialize_executable(blob, INCREMENT, devices, options)
    launch = _jaxlib.launcher(loaded, [_jaxlib.result_handler((2, 3), np.float32, devices)])
    buffers = _jaxlib.put([np.ones((2, 3), np.float32)] * count, devices, devices)
    assert isinstance(buffers, _jaxlib.Buffers)
    for shard in shards_to_numpy(launch([buffers])[0]):
        np.testing.assert_array_equal(shard, np.full((2, 3), 2))
    assert version("jaxlib") == _jaxlib.jaxlib_version()
    assert version("jaxlib") in _jaxlib.versions(devices[0])


def test_unknown_compiler_options_are_errors(client):
    with pytest.raises(_jaxlib.RuntimeFailure, match="xla_no_such_option"):
        _jaxlib.compile_text(INCREMENT, client.devices()[:1], options=(("xla_no_such_option", True),))


CALLBACK = """
module @m { func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %1 = "stablehlo.custom_call"(%x) <{call_target_name = "xla_ffi_python_cpu_callback", has_side_effect = false,
    api_version = 4 : i32, backend_config = {index = 0 : ui64}, operand_layouts = [dense<0> : tensor<1xindex>],
    result_layouts = [dense<0> : tensor<1xindex>]}> : (tensor<3xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32> } }
"""


def test_callbacks_receive_and_return_numpy_arrays(client):
    device = client.devices()[0]
    executable = _jaxlib.compile_text(CALLBACK, [device], [lambda x: (np.asarray(x) + 1,)])
    launch = _jaxlib.launcher(executable, [_jaxlib.result_handler((3,), np.float32, [device])], wait=True)
    (result,) = launch([_jaxlib.put([np.arange(3, dtype=np.float32)], [device], [device])])
    np.testing.assert_array_equal(_jaxlib.to_numpy(result), [1, 2, 3])


def test_modules_are_parsed_and_converted_to_hlo():
    module: _jaxlib.MlirObject = _jaxlib.parse_module(INCREMENT)
    assert "stablehlo.add" in str(module)
    assert _jaxlib.hlo_text(INCREMENT).startswith("HloModule m")
    assert _jaxlib.hlo_computation(INCREMENT).name() == "m"


def test_modules_are_built():
    negate = _jaxlib.mlir_dialects["stablehlo"].negate
    text = _jaxlib.build_module(["tensor<3xf32>"], lambda x: [negate(x), x])
    assert "func.func @main(%arg0: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)" in text
    assert "stablehlo.negate %arg0" in text


def test_a_serialized_module_has_its_instructions_as_text():
    text = _jaxlib.hlo_module_text(_jaxlib.hlo_computation(INCREMENT).as_serialized_hlo_module_proto())
    assert text.startswith("HloModule") and "f32[2,3]" in text and "add(" in text


def test_modules_are_serialized():
    artifact = _jaxlib.serialize_portable_artifact(INCREMENT, "1.0.0")
    with _jaxlib.mlir_ir.Context() as context:
        _jaxlib.mlir_dialects["stablehlo"].register_dialect(context)
        assert "stablehlo.add" in str(_jaxlib.deserialize_portable_artifact(artifact, context))
        assert _jaxlib.mlir_passmanager.PassManager.parse("builtin.module()", context) is not None
    assert "stablehlo.add" in str(_jaxlib.parse_portable_artifact(artifact))
    with pytest.raises(ValueError, match="bytes when only"):
        _jaxlib.parse_portable_artifact(artifact[:-20])
    assert _jaxlib.stablehlo_version() >= (1, 0, 0)
    assert b"stablehlo" in _jaxlib.refine_polymorphic_shapes(INCREMENT.encode())
    computation = _jaxlib.hlo_computation(INCREMENT).as_serialized_hlo_module_proto()
    assert b"add" in _jaxlib.hlo_to_stablehlo(computation)


def test_every_dialect_exists():
    assert all(dialect.__name__ and dir(dialect) for dialect in _jaxlib.mlir_dialects.values())


def test_compile_options():
    options = _jaxlib.compile_options(2, 1, [1, 0], [("xla_cpu_enable_fast_math", True)], b"profile")
    assert (options.num_replicas, options.num_partitions) == (2, 1)
    assert options.executable_build_options.fdo_profile == b"profile"


def test_shardings_are_serialized():
    sharding = _jaxlib.HloSharding.iota_tile((2, 1))
    message = _jaxlib.OpSharding()
    message.ParseFromString(sharding.to_proto().SerializeToString())
    assert _jaxlib.HloSharding.from_proto(message) == sharding


def test_instructions_of_a_profile(tmp_path):
    with pytest.raises(_jaxlib.RuntimeFailure):
        _jaxlib.profiled_instructions(str(tmp_path / "absent"))


_CLUSTER = """
import socket
from shardwise.base import _jaxlib
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{probe.getsockname()[1]}"
service = _jaxlib.cluster_service(address, 1, 30)
store = _jaxlib.cluster_store(address, 0, 30)
store.connect()
client = _jaxlib.cluster_cpu_client(store, 0, 1, 3, _jaxlib.cluster_collectives(store, "127.0.0.1"))
print(len(client.devices()), client.process_index())
print(_jaxlib.preemption_sync_manager(store).reached_sync_point(1))
store.shutdown()
service.shutdown()
"""


def test_cluster_of_one_process():
    """In a process of its own: an error of the coordination service ends the process."""
    run = subprocess.run([sys.executable, "-c", _CLUSTER], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["3", "0", "False"]


def test_libraries_that_are_no_plugins_are_runtime_failures(tmp_path):
    with pytest.raises(_jaxlib.RuntimeFailure, match="No such file"):
        _jaxlib.load_plugin("absent", str(tmp_path / "absent.so"))
    with pytest.raises(_jaxlib.RuntimeFailure, match="not initialized"):
        _jaxlib.plugin_client("absent", {})
    with pytest.raises(TypeError):
        _jaxlib.load_plugin_api("absent", "no capsule")


def test_devices_of_a_topology_are_for_compilation_only(client):
    devices = _jaxlib.topology_devices(_jaxlib.device_topology(client.devices()))
    assert [device.id for device in devices] == [device.id for device in client.devices()]
    assert _jaxlib.is_compile_only(devices[0]) and not _jaxlib.is_compile_only(client.devices()[0])
    assert _jaxlib.versions(devices[0]) == _jaxlib.topology_versions(client.devices()[0])
    assert _jaxlib.versions(client.devices()[0]) != _jaxlib.topology_versions(client.devices()[0])
    with pytest.raises(_jaxlib.RuntimeFailure, match="No compiler factory for platform: cpu"):
        _jaxlib.compile_for_topology(INCREMENT, devices[:2])
    with pytest.raises(TypeError):
        _jaxlib.plugin_topology("no capsule", "", {})


def test_pjrt_names_of_platforms(client):
    assert _jaxlib.pjrt_platform(client) == "cpu"


def test_options_of_gpu_plugins(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    options: _jaxlib.PluginOptions = _jaxlib.gpu_plugin_options()
    assert options["allocator"] == "platform"


_EXTENSION = """
calls = []
def register_custom_type(api, *arguments): calls.append(("type", api, *arguments))
def register_custom_call_target(api, *arguments): calls.append(("call", api, *arguments[:4]))
def ffi_types(): return {"state": 1}
def ffi_handlers(): return {"sort": 2}
"""


def test_kernels_of_gpus_are_registered_with_the_plugin(tmp_path, monkeypatch):
    """With a package of fake kernels, on a platform that nothing else uses."""
    package = tmp_path / "fake_kernels"
    package.mkdir()
    (package / "extension.py").write_text(_EXTENSION)
    for index, part in enumerate(("_solver", "_sparse", "_hybrid", "_linalg")):
        code = (
            f"def registrations(): return {{{part!r}: {index}}}\nis_ready = []\ninitialize = lambda: is_ready.append(1)"
        )
        (package / f"{part}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    _jaxlib.register_gpu_kernels("api", "FAKE", "fake_kernels", "extension")
    calls = import_module("fake_kernels.extension").calls
    assert calls[0][:3] == ("type", "api", "state")
    assert [call[1:5] for call in calls[1:]] == [
        ("api", "sort", 2, "FAKE"),
        *(("api", part, index, "FAKE") for index, part in enumerate(("_solver", "_sparse", "_hybrid", "_linalg"))),
    ]
    hybrid = import_module("fake_kernels._hybrid")
    assert hybrid.is_ready == []
    _jaxlib._initialize_hybrid()
    _jaxlib._initialize_hybrid()
    assert hybrid.is_ready == [1]


def test_jax_is_hidden_unless_it_is_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax._src.sharding_impls", "theirs")
    monkeypatch.setitem(sys.modules, "jax", "theirs")
    _jaxlib.hide_jax()
    assert sys.modules["jax._src.sharding_impls"] == "theirs"
    monkeypatch.delitem(sys.modules, "jax")
    _jaxlib.hide_jax()
    assert sys.modules["jax._src.sharding_impls"] is None


def test_version_of_the_extension():
    assert _jaxlib.extension_version() > 400


def test_registration_of_handlers(monkeypatch):
    calls = []
    monkeypatch.setattr(
        _jaxlib._xla, "register_custom_call_target", lambda *args, **options: calls.append((args, options))
    )
    monkeypatch.setattr(_jaxlib._xla, "register_custom_type", lambda *args, **options: calls.append((args, options)))
    _jaxlib.register_target("target", "capsule", "cpu", traits=1)
    _jaxlib.register_type("type", {"id": "capsule"}, "CUDA")
    assert calls == [
        (("target", "capsule"), {"platform": "cpu", "api_version": 1, "traits": 1}),
        (("type", {"id": "capsule"}), {"platform": "CUDA"}),
    ]
    assert (Path(_jaxlib.folder()) / "include/xla/ffi/api/ffi.h").exists()


def test_functions_of_triton_modules():
    module = "tt.func public @f(%x: !tt.ptr<f32>) {\n  tt.return\n}\ntt.func private @g() {\n  tt.return\n}"
    assert _jaxlib.triton_functions(module) == [("f", "public", "(!tt.ptr<f32>) -> ()"), ("g", "private", "() -> ()")]
    with pytest.raises(ValueError) as failure:
        _jaxlib.triton_functions("tt.func public @f() {\n  tt.unknown\n}")
    (location, message), *_ = failure.value.args
    assert ":2:" in location and "unknown" in message


def test_only_calls_of_jaxlib_ask_on_its_behalf():
    assert not _jaxlib.is_jaxlib_asking()


def test_every_name_is_exercised():
    defined = {name for name, value in vars(_jaxlib).items() if getattr(value, "__module__", "") == _jaxlib.__name__}
    source = Path(_jaxlib.__file__).read_text()
    defined |= set(re.findall(r"^(\w+) = _", source, re.MULTILINE))
    used = set(re.findall(r"_jaxlib\.(\w+)", Path(__file__).read_text()))
    assert {name for name in defined if not name.startswith("_")} <= used
