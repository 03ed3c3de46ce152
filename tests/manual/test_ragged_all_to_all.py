"""ragged_all_to_all equals a loop over senders and receivers: values, gradients, vmap, groups, plan and lowering."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.base._jaxlib import hlo_text
from shardwise.compiler.lower.lower import lower
from shardwise.sharding import AbstractMesh
from shardwise.sharding import PartitionSpec as P
from tests.manual.devices import Devices
from tests.manual.stages import simulated, trace_and_partition

SIZES = {"x": 4, "y": 2}
DEVICES = Devices(SIZES)
ALL = P(("x", "y"))
ROWS, PLACES, WIDTH = 12, 24, 3  # of a device's operand, of its output, and of each row
CASES = {
    "x": (("x",), None, 1),
    "two slices per device": (("x",), None, 2),
    "y x": (("y", "x"), None, 1),
    "x in groups": (("x",), [[3, 0], [1, 2]], 1),
}


@pytest.fixture(scope="module")
def mesh():
    return sw.make_mesh(tuple(SIZES.values()), tuple(SIZES))


def operands(axes, groups, per_device, seed=0):
    """Random slices for all devices, which do not overlap: operand, output, and the four arrays of slices."""
    rng = np.random.default_rng(seed)
    count = DEVICES.count(axes) if groups is None else len(groups[0])
    slices = count * per_device
    total = len(DEVICES.coordinates)
    x = rng.normal(size=(total, ROWS, WIDTH)).astype(np.float32)
    output = rng.normal(size=(total, PLACES, WIDTH)).astype(np.float32)
    sizes = np.zeros((total, slices), np.int32)
    for _ in range(ROWS - 2):  # each device sends at most all but two of its rows
        sizes[np.arange(total), rng.integers(0, slices, total)] += rng.integers(0, 2, total)
    starts = np.cumsum(sizes, 1).astype(np.int32) - sizes + 1
    received = exchanged(sizes, axes, groups)
    received = np.minimum(received, PLACES // slices)  # so that all of them fit
    sizes = exchanged(received, axes, groups)
    spaced = np.broadcast_to(np.arange(slices, dtype=np.int32) * (PLACES // slices), sizes.shape)
    places = exchanged(spaced[:, rng.permutation(slices)], axes, groups)
    return x, output, starts, sizes, places, received


def exchanged(slices, axes, groups):
    """The array of slices after an all-to-all, for all devices."""
    return np.stack(DEVICES.all_to_all(list(slices), axes, 0, 0, True, groups)).astype(np.int32)


def oracle(x, output, starts, sizes, places, axes, groups, dtype=np.float32):
    """The results of all devices, by a loop over senders and slices."""
    results = output.copy()
    for members in DEVICES.groups_along(axes, groups):
        per_device = starts.shape[1] // len(members)
        for sender in members:
            for index in range(starts.shape[1]):
                receiver = members[index // per_device]
                start, size, place = starts[sender, index], sizes[sender, index], places[sender, index]
                results[receiver, place : place + size] = x[sender, start : start + size]
    return results


def exchange_on(mesh, axes, groups, check=True):
    """ragged_all_to_all as a function of arrays with a leading dim of all devices."""

    def on_device(*shards):
        squeezed = [shard[0] for shard in shards]
        return lax.ragged_all_to_all(*squeezed, axis_name=axes, axis_index_groups=groups)[None]

    return sw.shard_map(on_device, mesh=mesh, in_specs=ALL, out_specs=ALL, check_vma=check)


@pytest.mark.parametrize("case", CASES)
def test_equals_a_loop_over_senders_on_devices_and_simulated(case, mesh):
    axes, groups, per_device = CASES[case]
    args = operands(axes, groups, per_device)
    expected = oracle(*args[:5], axes, groups)
    assert args[3].sum() > 40 and not np.array_equal(expected, args[1])
    np.testing.assert_array_equal(sw.jit(exchange_on(mesh, axes, groups))(*args), expected)
    abstract = exchange_on(AbstractMesh(tuple(SIZES.values()), tuple(SIZES)), axes, groups)
    np.testing.assert_array_equal(simulated(abstract, abstract_mesh(), *args), expected)


def abstract_mesh():
    return AbstractMesh(tuple(SIZES.values()), tuple(SIZES))


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
def test_gradient_is_the_adjoint(check, mesh):
    axes, groups, per_device = CASES["two slices per device"]
    x, output, *slices = operands(axes, groups, per_device)
    exchange = exchange_on(mesh, axes, groups, check)
    cotangent = np.random.default_rng(1).normal(size=output.shape).astype(np.float32)

    @sw.jit
    def adjoint(x, output):
        result, pull = sw.vjp(lambda x, output: exchange(x, output, *slices), x, output)
        return result, pull(cotangent)

    result, (of_x, of_output) = adjoint(x, output)
    left = np.vdot(np.asarray(result), cotangent)
    np.testing.assert_allclose(left, np.vdot(x, of_x) + np.vdot(output, of_output), rtol=1e-4)
    # Rows that are not sent have no gradient, nor have rows of the output that received rows replace.
    zeros = np.zeros_like
    np.testing.assert_array_equal(of_output, oracle(zeros(x), cotangent, *slices[:3], axes, groups))
    sent = oracle(np.ones_like(x), zeros(output), *slices[:3], axes, groups)
    assert np.count_nonzero(of_x) == np.count_nonzero(sent) > 0


def test_tangents_of_operand_and_output(mesh):
    axes, groups, per_device = CASES["x"]
    x, output, *slices = operands(axes, groups, per_device)
    exchange = exchange_on(mesh, axes, groups)
    result, tangent = sw.jvp(lambda x: exchange(x, output, *slices), (x,), (2 * x,))
    np.testing.assert_array_equal(tangent, oracle(2 * x, 0 * output, *slices[:3], axes, groups))
    np.testing.assert_array_equal(result, oracle(x, output, *slices[:3], axes, groups))


def test_vmap_of_a_batch_equals_a_loop(mesh):
    axes, groups, per_device = CASES["two slices per device"]
    batches = [operands(axes, groups, per_device, seed) for seed in range(3)]
    stacked = [np.stack(arrays, 1) for arrays in zip(*batches, strict=True)]

    def on_device(*shards):
        mapped = sw.vmap(lambda *args: lax.ragged_all_to_all(*args, axis_name="x"))
        return mapped(*(shard[0] for shard in shards))[None]

    result = sw.jit(sw.shard_map(on_device, mesh=mesh, in_specs=ALL, out_specs=ALL))(*stacked)
    expected = np.stack([oracle(*args[:5], axes, groups) for args in batches], 1)
    np.testing.assert_array_equal(result, expected)


def test_vmap_binds_the_axis():
    args = [array[::2] for array in operands(("x",), None, 2)]  # the devices along x, for y = 0
    exchange = sw.vmap(lambda *args: lax.ragged_all_to_all(*args, axis_name="i"), axis_name="i")
    everything = operands(("x",), None, 2)
    np.testing.assert_array_equal(exchange(*args), oracle(*everything[:5], ("x",), None)[::2])
    with pytest.raises(NotImplementedError, match="needs it to be the only axis"):
        nested = sw.vmap(
            sw.vmap(lambda *args: lax.ragged_all_to_all(*args, axis_name=("i", "j")), axis_name="j"), axis_name="i"
        )
        nested(*(array.reshape(2, 2, *array.shape[1:]) for array in args))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.bool_, np.int8, ml_dtypes.int2], ids=str)
def test_dtypes(dtype, mesh):
    axes, groups, per_device = CASES["x"]
    x, output, *slices = operands(axes, groups, per_device)
    x, output = (x > 0).astype(dtype), (output > 0).astype(dtype)
    result = sw.jit(exchange_on(mesh, axes, groups))(x, output, *slices)
    assert result.dtype == dtype
    np.testing.assert_array_equal(
        np.asarray(result).astype(int), oracle(x.astype(int), output.astype(int), *slices[:3], axes, groups)
    )


def test_rows_outside_of_the_arrays_are_not_sent(mesh):
    total = len(DEVICES.coordinates)
    x = np.arange(total * 4, dtype=np.float32).reshape(total, 4, 1)
    output = np.full((total, 6, 1), -1, np.float32)

    def fill(*values):
        return np.broadcast_to(np.array(values, np.int32), (total, 4))

    slices = fill(0, 2, -1, 0), fill(9, 9, 3, 0), fill(4, -1, 1, 0), fill(9, 9, 3, 0)
    args = x, output, *slices
    result = sw.jit(exchange_on(mesh, ("x",), None))(*args)
    np.testing.assert_array_equal(result, simulated(exchange_on(abstract_mesh(), ("x",), None), abstract_mesh(), *args))
    by_position = np.asarray(result)[::2, :, 0]
    np.testing.assert_array_equal(by_position[0], [-1, -1, -1, -1, 24, 25])  # the last sender's rows
    np.testing.assert_array_equal(by_position[1], [27, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(by_position[2], [-1, -1, 24, 25, -1, -1])


def test_plan_counts_the_bytes_of_an_even_exchange(mesh):
    args = operands(("x",), None, 1)
    (row,) = sw.jit(exchange_on(mesh, ("x",), None)).lower(*args).plan.collectives
    assert (row.kind, row.axes, row.type) == ("ragged_all_to_all", ("x",), "f32[12,3]")
    assert row.sent == ROWS * WIDTH * 4 * 3 / 4
    assert row.reason == "written by hand, along 'x'"


def test_gpus_run_the_collective_of_xla():
    args = operands(("x",), [[3, 0], [1, 2]], 1)
    abstract = abstract_mesh()
    function = exchange_on(abstract, ("x",), [[3, 0], [1, 2]])
    _, stages, _ = trace_and_partition(lambda *xs: [function(*xs)], args, abstract, [(("x", "y"),)] * 6)
    (line,) = [
        line
        for line in hlo_text(lower(stages.local, platform="cuda").text).splitlines()
        if "ragged-all-to-all(" in line
    ]
    assert "replica_groups={{6,0},{2,4},{7,1},{3,5}}" in line
    assert "channel_id" not in line  # with a channel, the groups would consist of partitions


def test_empty_operand_leaves_the_output(mesh):
    args = operands(("x",), None, 1)
    result = sw.jit(exchange_on(mesh, ("x",), None))(args[0][:, :0], args[1], *args[2:])
    np.testing.assert_array_equal(result, args[1])


def test_bad_operands_are_errors(mesh):
    args = operands(("x",), None, 1)

    def check(error, message, **changes):
        names = ("operand", "output", "input_offsets", "send_sizes", "output_offsets", "recv_sizes")
        changed = [changes.get(name, array) for name, array in zip(names, args, strict=True)]
        with pytest.raises(error, match=message):
            exchange_on(mesh, ("x",), None)(*changed)

    check(ValueError, "send_sizes must be integers of rank 1, one per slice, not f32", send_sizes=args[3] * 1.0)
    check(ValueError, "recv_sizes must be integers of rank 1", recv_sizes=args[5][..., None])
    check(TypeError, "must have equal sizes and dtypes", input_offsets=args[2][:, :2])
    check(TypeError, "equal sizes of all dims but the first", output=args[1][..., :2])
    check(TypeError, "of equal dtypes", output=args[1].astype(np.int32))
    slices = dict(zip(("input_offsets", "send_sizes", "output_offsets", "recv_sizes"), args[2:], strict=True))
    odd = {name: array[:, :3] for name, array in slices.items()}
    check(TypeError, "the number of slices, 3, must be a multiple of the number of members, 4", **odd)
    with pytest.raises(NameError, match="unbound axis name 'z'"):
        lax.ragged_all_to_all(jnp.ones(3), jnp.ones(3), *[jnp.ones(1, int)] * 4, axis_name="z")
