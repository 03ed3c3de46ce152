"""Memory kinds: arrays in non-default memories, and programs with such arguments and results."""

import copy
import pickle
import re
from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.transforms.host_copies import HostArrays
from shardwise.errors import ShardingError, TransferError
from shardwise.execute.executor import Launch
from shardwise.sharding import AbstractMesh, NamedSharding, PositionalSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P

KINDS = ("device", "pinned_host", "unpinned_host")
X = np.arange(30, dtype=np.float32).reshape(10, 3)  # 10 rows over 4: uneven


def shardings(mesh, kind):
    """One sharding of each class."""
    return {
        "one device": SingleDeviceSharding(sw.devices()[3], memory_kind=kind),
        "named": NamedSharding(mesh, P("data"), memory_kind=kind),
        "replicated": NamedSharding(mesh, P(), memory_kind=kind),
        "positional": PositionalSharding(sw.devices().reshape(4, 2), memory_kind=kind).replicate(1),
    }


def test_devices_list_their_memories():
    for device in sw.devices():
        assert [memory.kind for memory in device.addressable_memories()] == list(KINDS)
        assert device.default_memory().kind == "device"


def test_shardings_compare_by_memory_kind(mesh):
    for name, plain in shardings(mesh, None).items():
        assert plain.memory_kind == "device"
        there = plain.with_memory_kind("pinned_host")
        assert there == shardings(mesh, "pinned_host")[name] != plain
        assert there.memory_kind == "pinned_host" and "memory_kind='pinned_host'" in repr(there)
        assert there.with_memory_kind("device") == there.with_memory_kind(None) == plain
        assert hash(there.with_memory_kind("device")) == hash(plain)
        assert "memory" not in repr(plain)
        assert not there.is_equivalent_to(plain, 2) and there.is_equivalent_to(shardings(mesh, "pinned_host")[name], 2)


def test_derived_shardings_keep_the_memory_kind(mesh):
    there = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    assert there.with_spec(P("model")).memory_kind == there.update(spec=P()).memory_kind == "pinned_host"
    assert there.update(memory_kind="unpinned_host") == NamedSharding(mesh, P("data"), memory_kind="unpinned_host")
    grid = PositionalSharding(sw.devices(), memory_kind="pinned_host")
    for made in (grid.reshape(4, 2), grid.reshape(2, 4).T, grid.replicate(), grid.reshape(4, 2).reshape(8, 1)):
        assert made.memory_kind == "pinned_host"
    assert NamedSharding(AbstractMesh((4,), ("x",)), P("x"), memory_kind="pinned_host").memory_kind == "pinned_host"
    assert NamedSharding(AbstractMesh((4,), ("x",)), P("x")).memory_kind is None


@pytest.mark.parametrize("make", [NamedSharding, SingleDeviceSharding, PositionalSharding], ids=lambda m: m.__name__)
def test_an_unknown_memory_kind_raises_an_error_that_lists_the_known_ones(mesh, make):
    args = {NamedSharding: (mesh, P()), SingleDeviceSharding: (sw.devices()[0],), PositionalSharding: (sw.devices(),)}
    for kind in ("pinned", "host", ""):
        with pytest.raises(ShardingError) as caught:
            make(*args[make], memory_kind=kind)
        assert str(caught.value) == (
            f"{make.__name__}: memory_kind={kind!r} does not exist on cpu:0, which has 'device', 'pinned_host', "
            "'unpinned_host' and computes in 'device'"
        )
    with pytest.raises(ShardingError, match="'hbm' does not exist on cpu:0"):
        make(*args[make]).with_memory_kind("hbm")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["one device", "named", "replicated", "positional"])
def test_device_put_to_another_memory_and_back(mesh, kind, name):
    where = shardings(mesh, kind)[name]
    x = sw.device_put(X, where)
    assert x.sharding == where and x.sharding.memory_kind == kind and x.committed
    np.testing.assert_array_equal(x, X)
    assert str(x) == str(X) and repr(x).startswith("Array([[ 0.,  1.,  2.],")
    for shard in x.addressable_shards:
        assert shard.data.sharding.memory_kind == kind
        np.testing.assert_array_equal(shard.data, X[shard.index])
    for other in KINDS:
        for there in shardings(mesh, other).values():
            moved = sw.device_put(x, there)
            assert moved.sharding == there
            np.testing.assert_array_equal(moved, X)
    assert copy.deepcopy(x).sharding == where
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)), X)
    assert x.on_device_size_in_bytes() == sw.device_put(x, where.in_default_memory).on_device_size_in_bytes()


def test_transfers_to_another_memory_copy(mesh):
    here = sw.device_put(X, sw.devices()[0])
    there = sw.device_put(here, SingleDeviceSharding(sw.devices()[0], memory_kind="pinned_host"))
    assert here.unsafe_buffer_pointer() != there.unsafe_buffer_pointer()
    same = sw.device_put(there, there.sharding)
    assert same.unsafe_buffer_pointer() == there.unsafe_buffer_pointer()
    copied = sw.device_put(there, there.sharding, may_alias=False)
    assert copied.unsafe_buffer_pointer() != there.unsafe_buffer_pointer() and copied.sharding == there.sharding
    donated = sw.device_put(there, here.sharding, donate=True)
    assert there.is_deleted() and not donated.is_deleted()
    np.testing.assert_array_equal(donated, X)


def test_creation_functions_use_the_memory_of_the_sharding(mesh):
    where = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    made = [
        sw.make_array_from_callback(X.shape, where, lambda index: X[index]),
        sw.make_array_from_process_local_data(where, X),
        jnp.asarray(X, device=where),
        sw.make_array_from_single_device_arrays(
            X.shape, where, [shard.data for shard in sw.device_put(X, where).addressable_shards]
        ),
        sw.make_array_from_single_device_arrays(
            X.shape, where, [shard.data for shard in sw.device_put(X, where.in_default_memory).addressable_shards]
        ),
    ]
    for array in made:
        assert array.sharding == where
        np.testing.assert_array_equal(array, X)
    ones = jnp.ones((4, 2), device=where)
    assert ones.sharding == where and ones.tolist() == [[1.0, 1.0]] * 4
    keys = sw.device_put(sw.random.split(sw.random.key(0), 4), where)
    assert keys.sharding == where
    np.testing.assert_array_equal(sw.random.key_data(keys), sw.random.key_data(sw.random.split(sw.random.key(0), 4)))


def test_results_of_ops_are_in_the_default_memory(mesh):
    where = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    x, y = sw.device_put(X, where), sw.device_put(X, where.in_default_memory)
    for found, expected in [(x + 1, X + 1), (x + y, X + X), (x.sum(0), X.sum(0)), (x[2:7], X[2:7])]:
        assert found.sharding.memory_kind == "device"
        np.testing.assert_allclose(found, expected)
    assert x.sharding == where  # the operand is not moved


@pytest.mark.parametrize("name", ["one device", "named", "replicated", "positional"])
def test_programs_with_arguments_and_results_in_another_memory(mesh, name):
    there = shardings(mesh, "pinned_host")[name]
    x = sw.device_put(X, there)
    traced = []

    def double(x):
        traced.append(1)
        return x * 2

    out = sw.jit(double, out_shardings=there)
    both = sw.jit(double, in_shardings=(there,), out_shardings=there)
    for f in (out, both):
        for argument in (x, sw.device_put(x, there.in_default_memory), X):
            found = f(argument)
            assert found.sharding == there
            np.testing.assert_array_equal(found, X * 2)
    assert sw.jit(double)(x).sharding == there.in_default_memory
    assert len(traced) == 3  # the memory kind is not part of the trace key
    mixed = sw.jit(lambda a, b: (a + b, a - b), out_shardings=(None, there))
    plus, minus = mixed(x, sw.device_put(x, there.in_default_memory))
    assert plus.sharding.memory_kind == "device" and minus.sharding == there
    np.testing.assert_array_equal(plus, 2 * X)


def test_compiled_functions_report_the_memory_of_arguments_and_results(mesh):
    there = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    x = sw.device_put(X, there)
    lowered = sw.jit(lambda x: x * 2, out_shardings=there).lower(x)
    assert lowered.out_info.sharding == there and lowered.args_info[0][0].sharding == there
    compiled = lowered.compile()
    assert compiled.input_shardings == ((there,), {}) and compiled.output_shardings == there
    assert compiled(x).sharding == there
    with pytest.raises(ValueError, match=r"the function was compiled for .*memory_kind='pinned_host'"):
        compiled(sw.device_put(x, there.in_default_memory))
    struct = sw.ShapeDtypeStruct(X.shape, X.dtype, sharding=there)
    assert sw.jit(lambda x: x * 2).lower(struct).compile()(x).sharding == there.in_default_memory


def test_device_put_inside_a_program(mesh):
    there = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    x = sw.device_put(X, there.in_default_memory)

    def offloaded(x):
        kept = sw.device_put(x * 2, there)
        return kept, (kept + 1).sum(), sw.device_put(kept, there.in_default_memory)

    kept, total, back = sw.jit(offloaded)(x)
    assert kept.sharding == there
    assert total.sharding.memory_kind == back.sharding.memory_kind == "device"
    np.testing.assert_array_equal(kept, X * 2)
    np.testing.assert_array_equal(back, X * 2)
    assert float(total) == (X * 2 + 1).sum()
    inner = sw.jit(lambda x: sw.device_put(x, there))
    assert sw.jit(lambda x: inner(x * 3))(x).sharding == there  # through a nested jit
    assert sw.jit(lambda x: lax.with_sharding_constraint(x, there))(x).sharding == there
    assert lax.with_sharding_constraint(x, there).sharding == there
    one = SingleDeviceSharding(sw.devices()[0], memory_kind="pinned_host")
    assert sw.jit(lambda x: sw.device_put(x + 1, one))(jnp.zeros(3)).sharding == one


def test_device_put_to_another_memory_under_transformations(mesh):
    there = NamedSharding(mesh, P("data"), memory_kind="pinned_host")

    def loss(x):
        return (sw.device_put(jnp.sin(x), there) ** 2).sum()

    expected = 2 * np.sin(X) * np.cos(X)
    for transformed in (sw.grad(loss), sw.jit(sw.grad(loss))):
        np.testing.assert_allclose(transformed(jnp.asarray(X)), expected, rtol=1e-5, atol=1e-6)
    rows = sw.vmap(lambda row: sw.device_put(row * 2, SingleDeviceSharding(sw.devices()[0], memory_kind="pinned_host")))
    np.testing.assert_array_equal(rows(jnp.asarray(X)), X * 2)

    def step(carry, row):
        kept = sw.device_put(carry + row, NamedSharding(mesh, P(), memory_kind="pinned_host"))
        return kept, kept

    carry, rows = sw.jit(lambda x: lax.scan(step, jnp.zeros(3), x))(sw.device_put(X, there))
    np.testing.assert_allclose(rows, np.cumsum(X, 0))
    np.testing.assert_allclose(carry, X.sum(0))


def test_offloaded_values_are_annotated_in_stablehlo_for_gpus():
    there = SingleDeviceSharding(sw.devices()[0], memory_kind="pinned_host")
    lowered = sw.jit(lambda x: sw.device_put(x * 2, there) + 1).lower(jnp.asarray(X))
    assert "in_memory[kind='pinned_host']" in lowered.as_text("program")
    assert "annotate_device_placement" not in lowered.as_text()  # on CPUs, all memories are host memory
    program, pin = lowered._request.program, Pin(Layout.replicated(2))
    text = run_stages(program, AbstractMesh((1,), ("x",)), [pin], [pin], (), "cuda").module.text
    marks = re.findall(r"annotate_device_placement.*_xla_buffer_placement\"? = \"(\w+)\"", text)
    assert marks == ["pinned_host", "device"]  # to the host, and back for the addition


def test_arguments_and_results_in_pinned_host_memory_are_parameters_and_results_of_modules_for_gpus():
    x = jnp.asarray(X)
    program = sw.jit(lambda m, g: (m + g, g * 2)).lower(x, x)._request.program
    pins = [Pin(Layout.replicated(2))] * 2
    run = partial(run_stages, program, AbstractMesh((1,), ("x",)), pins, pins, (True, True))
    module = run("cuda", chip("h200"), host=HostArrays(frozenset({0}), frozenset({0}))).module
    head = next(line for line in module.text.splitlines() if "func.func" in line)
    attribute = 'mhlo.memory_kind = "pinned_host"'
    first, second, result, other = re.findall(r"tensor<10x3xf32>( \{[^}]*\})?", head)
    assert attribute in first and "tf.aliasing_output = 0" in first  # a donated argument is reused in its own memory
    assert attribute not in second and "tf.aliasing_output = 1" in second
    assert attribute in result and not other
    marks = re.findall(r"annotate_device_placement.*_xla_buffer_placement\"? = \"(\w+)\"", module.text)
    assert marks == ["device", "pinned_host"]
    assert (module.host_inputs, module.host_outputs) == ({0}, {0})
    assert run("cuda", chip("h200"), host=HostArrays(frozenset({0}))).module.aliases == {
        1: 0
    }  # no result is in host memory
    on_cpu = run("cpu", host=HostArrays(frozenset({0}), frozenset({0}))).module
    assert "memory_kind =" not in on_cpu.text and "annotate" not in on_cpu.text and not on_cpu.host_inputs


def test_arguments_in_host_memory_are_copied_before_they_are_resharded():
    """Devices reshard only in their own memory."""
    x = jnp.asarray(np.ones((8, 8), np.float32))
    program = sw.jit(lambda m: m @ m).lower(x)._request.program
    rows, columns = Pin(Layout((("x",), ()))), Pin(Layout(((), ("x",))))
    host = HostArrays(frozenset({0}), frozenset({0}))
    stages = run_stages(program, AbstractMesh((4,), ("x",)), [rows], [columns], (), "cuda", chip("h200"), host=host)
    names = [equation.op.name for equation in stages.local.program.equations]
    assert (names[0], names[-1]) == ("copy_to_device", "copy_to_host") and stages.local.collectives()
    assert (stages.module.host_inputs, stages.module.host_outputs) == ({0}, {0})


def test_simulated_steps_copy_states_from_and_to_host_memory():
    mesh = AbstractMesh((1,), ("x",))
    device, host = NamedSharding(mesh, P()), NamedSharding(mesh, P(), memory_kind="pinned_host")

    def step(state, x):
        gradients = [h.T @ x for h in [x @ x for _ in range(4)]]
        return [0.9 * m + g for m, g in zip(state, gradients, strict=True)]

    def simulated(place):
        state = [sw.ShapeDtypeStruct((4096, 4096), np.float32, sharding=place)] * 4
        x = sw.ShapeDtypeStruct((4096, 4096), np.float32, sharding=device)
        return sw.simulate(sw.jit(step, out_shardings=place), hardware="h200")(state, x)

    on_device, offloaded = simulated(device), simulated(host)
    copies = 8 * 4 * 4096**2 / chip("h200").host_link
    assert on_device.plan.host_copy_seconds == 0
    assert offloaded.plan.host_copy_seconds == pytest.approx(copies)
    assert on_device.seconds < copies < offloaded.seconds < on_device.seconds + copies
    assert offloaded.peak_bytes < on_device.peak_bytes
    assert "of copies from and to host memory" in str(offloaded.plan)


def test_donated_arguments_in_another_memory(mesh):
    there = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    x = sw.device_put(X, there)
    f = sw.jit(lambda x: x + 1, donate_argnums=0, out_shardings=there)
    for step in range(3):
        x = f(x)
        assert x.sharding == there
        np.testing.assert_array_equal(x, X + step + 1)


def test_memory_is_not_freed_before_pending_copies_finish(mesh):
    """Copies are asynchronous."""
    there = NamedSharding(mesh, P("data"), memory_kind="pinned_host")
    large = np.arange(8 * 2**18, dtype=np.float32)
    for _ in range(20):
        x = sw.device_put(large, there)
        y = sw.device_put(x, there.in_default_memory)
        del x
        assert float(y[-1]) == large[-1]


def test_transfer_guards_apply_to_arguments_in_another_memory(mesh):
    x = sw.device_put(X, NamedSharding(mesh, P("data"), memory_kind="pinned_host"))
    with sw.transfer_guard("disallow"):
        with pytest.raises(TransferError, match="device to device"):
            sw.jit(lambda x: x + 1)(x)
        sw.device_put(x, x.sharding.in_default_memory)  # an explicit transfer


def test_calls_without_other_memories_use_the_fast_path(mesh):
    f = sw.jit(lambda x: x + 1)
    f(jnp.zeros(3))
    ((launch, _),) = f._launches.values()
    assert isinstance(launch, Launch) and launch._is_simple


@pytest.mark.jax
def test_values_and_memories_like_jax():
    jax = pytest.importorskip("jax")
    spec = jax.sharding.PartitionSpec
    theirs = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    ours = sw.make_mesh((4, 2), ("data", "model"))
    value = np.arange(16, dtype=np.float32).reshape(8, 2)

    def kept(library, where, x):
        return library.device_put(x * 2, where)

    def kept_and_fetched(library, where, back, x):
        return library.device_put(library.device_put(x, where), back) + 1

    def programs(library, named, p):
        at = {kind: named(p("data"), kind) for kind in KINDS}
        x = library.device_put(value, at["device"])
        for kind, where in at.items():
            there = library.device_put(value, where)
            yield there
            yield library.device_put(there, at["device"])
            yield library.device_put(x, where)
            yield library.jit(lambda x: x * 2, out_shardings=where)(x)
            yield library.jit(lambda x: x * 2, in_shardings=where, out_shardings=at["device"])(there)
            if kind != "unpinned_host":  # which JAX treats as the default memory inside programs
                yield library.jit(partial(kept, library, where))(x)
                yield library.jit(partial(kept_and_fetched, library, where, at["device"]))(x)

    mine = programs(sw, lambda p, kind: NamedSharding(ours, p, memory_kind=kind), P)
    others = programs(jax, lambda p, kind: jax.sharding.NamedSharding(theirs, p, memory_kind=kind), spec)
    count = 0
    for found, expected in zip(mine, others, strict=True):
        assert found.sharding.memory_kind == expected.sharding.memory_kind
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
        count += 1
    assert count == 5 * 3 + 2 * 2
