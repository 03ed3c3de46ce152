"""device_put between all kinds of shardings, bare specs, programs over several meshes, and array creation."""

import itertools

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import DeviceMismatchError, ShardingError
from shardwise.execute import transfer
from shardwise.experimental.layout import Format, Layout
from shardwise.runtime.array import ArrayImpl
from shardwise.sharding import Mesh, NamedSharding, PositionalSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P


def shardings():
    devices = sw.devices()
    wide = sw.make_mesh((4, 2), ("data", "model"))
    tall = sw.make_mesh((2, 4), ("data", "model"))
    back = Mesh(np.array(devices[::-1]).reshape(4, 2), ("p", "q"))
    six, turned = sw.make_mesh((3, 2), ("a", "b")), sw.make_mesh((2, 3), ("a", "b"))
    three = sw.make_mesh((3,), ("x",), devices=devices[5:])
    return {
        "cpu0": SingleDeviceSharding(devices[0]),
        "cpu6": SingleDeviceSharding(devices[6]),
        "wide": NamedSharding(wide, P("data", "model")),
        "wide rows": NamedSharding(wide, P("model")),
        "wide copies": NamedSharding(wide, P()),
        "tall": NamedSharding(tall, P("model", "data")),
        "backwards": NamedSharding(back, P(None, "p")),
        "six": NamedSharding(six, P("a", "b")),
        "turned": NamedSharding(turned, P("a", "b")),
        "three": NamedSharding(three, P("x")),
        "grid": PositionalSharding(devices).reshape(4, 2).replicate(0),
    }


NAMES = list(shardings())


@pytest.mark.parametrize(("before", "after"), list(itertools.product(NAMES, NAMES)))
def test_device_put_does_not_copy_through_the_host(before, after, monkeypatch):
    found = shardings()
    x = np.arange(60, dtype=np.int32).reshape(10, 6)
    there = sw.device_put(x, found[before])
    with monkeypatch.context() as patched:
        patched.setattr(ArrayImpl, "numpy", _refused)
        moved = sw.device_put(there, found[after])
    assert moved.sharding == found[after]
    assert moved.committed
    for shard in moved.addressable_shards:
        np.testing.assert_array_equal(shard.data, x[shard.index])
        assert shard.data.devices() == {shard.device}


def _refused(self):
    raise AssertionError("an array was read on the host")


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.complex64, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (3, 0), (7, 2, 5)])
def test_all_dtypes_and_ranks_are_moved(mesh, dtype, shape):
    x = (np.arange(np.prod(shape)).reshape(shape) % 3).astype(dtype)
    spec = P(*[("data", "model")][: len(shape)])
    one = sw.device_put(x, sw.devices()[2])
    many = sw.device_put(one, NamedSharding(mesh, spec))
    three = sw.device_put(many, NamedSharding(sw.make_mesh((3,), ("x",)), P(*["x"][: len(shape)])))
    again = sw.device_put(three, sw.devices()[7])
    for found in (one, many, three, again):
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(found), x)


def test_shards_that_stay_are_not_copied(mesh):
    x = sw.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))
    flat = sw.make_mesh((8,), ("x",))
    same = sw.device_put(sw.device_put(x, NamedSharding(mesh, P(("data", "model")))), NamedSharding(flat, P("x")))
    again = sw.device_put(same, NamedSharding(mesh, P(("data", "model"))))
    assert again.buffers is same.buffers
    copies = sw.device_put(np.ones(4, np.float32), NamedSharding(mesh, P()))
    here = sw.device_put(copies, sw.devices()[5])
    assert _address(here) == _address(copies.addressable_shards[5].data)
    own = sw.device_put(copies, sw.devices()[5], may_alias=False)
    assert _address(own) != _address(copies.addressable_shards[5].data)
    assert own.tolist() == [1.0] * 4


def _address(array):
    return array.buffers.unsafe_buffer_pointer()


def test_donated_memory_is_deleted():
    x = sw.device_put(np.ones(4, np.float32), sw.devices()[0])
    y = sw.device_put(x, sw.devices()[1], donate=True)
    assert x.is_deleted()
    assert y.tolist() == [1.0] * 4
    kept = sw.device_put(y, sw.devices()[1], donate=True)
    assert not kept.is_deleted()  # shares memory
    with pytest.raises(RuntimeError, match=r"the operand of device_put is a f32\[4\] whose memory was freed"):
        sw.device_put(x, sw.devices()[2])
    with pytest.raises(ValueError, match="pass donate=True or may_alias=True, not both"):
        sw.device_put(y, sw.devices()[2], donate=True, may_alias=True)


def test_donate_may_be_a_tree(mesh):
    rows = NamedSharding(mesh, P("data"))
    swapped = NamedSharding(sw.sharding.Mesh(mesh.devices.T, ("a", "b")), P("b"))  # the same shards, in another order
    for target in (NamedSharding(mesh, P(None, "data")), swapped, sw.devices()[0]):
        x, y, z = (sw.device_put(np.arange(32.0).reshape(8, 4) + k, rows) for k in range(3))
        results = sw.device_put({"x": x, "y": [y, z]}, target, donate={"x": True, "y": [False, True]})
        assert [a.is_deleted() for a in (x, y, z)] == [True, False, True]
        for k, result in enumerate([results["x"], *results["y"]]):
            np.testing.assert_array_equal(result, np.arange(32.0).reshape(8, 4) + k)
    (kept,) = sw.device_put([y], rows, donate=True)
    (copied,) = sw.device_put([y], rows, may_alias=[False])
    addresses = [_address(array.addressable_shards[0].data) for array in (y, kept, copied)]
    assert not y.is_deleted() and addresses[0] == addresses[1] != addresses[2]
    with pytest.raises(ShardingError, match="donate must be a tree prefix of x"):
        sw.device_put((y, y), rows, donate=(True,))


def test_resharding_between_meshes_is_one_program(monkeypatch):
    """Resharding from 4×2 to 2×4 is one compiled program, not a transfer block by block."""
    monkeypatch.setattr(transfer, "_redistributed", _refused)
    found = shardings()
    x = np.arange(60.0, dtype=np.float32).reshape(10, 6)
    for before, after in itertools.permutations(["wide", "wide rows", "wide copies", "tall", "grid", "backwards"], 2):
        moved = sw.device_put(sw.device_put(x, found[before]), found[after])
        np.testing.assert_array_equal(np.asarray(moved), x)


def test_programs_over_several_meshes_of_the_same_devices(mesh):
    tall = sw.make_mesh((2, 4), ("a", "b"))
    x, w = np.arange(80.0, dtype=np.float32).reshape(10, 8), np.arange(48.0, dtype=np.float32).reshape(8, 6)
    left, right = sw.device_put(x, NamedSharding(mesh, P("data"))), sw.device_put(w, NamedSharding(tall, P(None, "a")))
    wanted = NamedSharding(tall, P("b", "a"))

    def f(x, w):
        y = sw.lax.with_sharding_constraint(x @ w, NamedSharding(tall, P("b")))
        total, _ = sw.lax.scan(lambda c, _: (sw.lax.with_sharding_constraint(c * 2, wanted), None), y, None, length=3)
        return total

    found = sw.jit(f, out_shardings=wanted)(left, right)
    assert found.sharding == wanted
    np.testing.assert_allclose(np.asarray(found), x @ w * 8, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(left @ right), x @ w, rtol=1e-6)
    assert (left + 1).sharding == NamedSharding(mesh, P("data"))
    backwards = shardings()["backwards"]
    with pytest.raises(DeviceMismatchError, match="cannot run on different devices at once"):
        left @ sw.device_put(w, backwards)


def test_positional_shardings_in_programs():
    grid = PositionalSharding(sw.devices()).reshape(4, 2)
    x = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    y, z = sw.device_put(x, grid.replicate(1)), sw.device_put(x, grid.replicate(0))
    found = sw.jit(jnp.dot)(y, z)
    assert found.sharding == grid
    np.testing.assert_allclose(np.asarray(found), x @ x)
    turned = grid.T.reshape(2, 4)
    found = sw.jit(lambda x: x + 1, in_shardings=grid, out_shardings=turned)(x)
    assert found.sharding == turned
    np.testing.assert_array_equal(np.asarray(found), x + 1)
    found = sw.jit(lambda x: sw.lax.with_sharding_constraint(x * 2, grid.reshape(8, 1)))(y)
    assert found.sharding == grid.reshape(8, 1)
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, x[shard.index] * 2)


def test_results_have_the_requested_sharding(mesh):
    flat = sw.make_mesh((8,), ("x",))
    x = sw.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("data")))
    f = sw.jit(lambda x: x * 2, out_shardings=NamedSharding(flat, P("x")))
    assert f(x).sharding == NamedSharding(flat, P("x"))
    assert [shard.data.shape for shard in f(x).addressable_shards] == [(1,)] * 8


def test_constraints_outside_jit(mesh):
    x = sw.lax.with_sharding_constraint(np.arange(10.0, dtype=np.float32), NamedSharding(mesh, P("data")))
    assert x.sharding == NamedSharding(mesh, P("data"))
    y = sw.lax.with_sharding_constraint(x, NamedSharding(mesh, P("model")))
    assert y.sharding == NamedSharding(mesh, P("model"))
    np.testing.assert_array_equal(np.asarray(y), np.arange(10.0))


MAKERS = {
    "zeros": (lambda where: jnp.zeros((64, 48), device=where), np.zeros((64, 48))),
    "ones": (lambda where: jnp.ones((64, 48), jnp.bfloat16, device=where), np.ones((64, 48))),
    "full": (lambda where: jnp.full((64, 48), 3, device=where), np.full((64, 48), 3)),
    "eye": (lambda where: jnp.eye(64, 48, 1, device=where), np.eye(64, 48, 1)),
    "arange": (lambda where: jnp.arange(2, 50, 1, device=where), np.arange(2, 50)),
    "jit": (lambda where: sw.jit(lambda: jnp.ones((64, 48)) * 2, out_shardings=where)(), np.full((64, 48), 2)),
    "zeros_like": (lambda where: jnp.zeros_like(jnp.ones((64, 48), device=where)), np.zeros((64, 48))),
}


@pytest.mark.parametrize("name", MAKERS)
def test_arrays_are_created_in_shards(mesh, name, monkeypatch):
    make, expected = MAKERS[name]
    spec = P("model", "data") if expected.ndim == 2 else P(("data", "model"))
    where = NamedSharding(mesh, spec)
    with monkeypatch.context() as patched:  # no transfer: each device creates its own shard
        patched.setattr("shardwise.api.meshes.placement.transfer", _refused)
        patched.setattr("shardwise.execute.executor.transfer", _refused)
        patched.setattr("shardwise.api.meshes.placement.place", _refused)
        x = make(where)
    assert x.sharding == where
    piece = x.dtype.itemsize * expected.size // 8
    assert [shard.data.on_device_size_in_bytes() for shard in x.addressable_shards] == [piece] * 8
    assert x.on_device_size_in_bytes() == x.nbytes
    np.testing.assert_array_equal(np.asarray(x).astype(float), expected)


def test_creation_functions_accept_devices_and_specs(mesh):
    assert jnp.zeros(3, device=sw.devices()[4]).devices() == {sw.devices()[4]}
    assert str(jnp.full(2, 0.0, device=sw.devices()[1])) == "[0. 0.]"
    assert str(jnp.full(2, -0.0, device=sw.devices()[1])) == "[-0. -0.]"
    assert jnp.asarray([1, 2], device=sw.devices()[2]).devices() == {sw.devices()[2]}
    assert jnp.full(2, jnp.float32(3), device=sw.devices()[2]).devices() == {sw.devices()[2]}
    with mesh:
        assert jnp.ones((8, 8), device=P("data")).sharding == NamedSharding(mesh, P("data"))
    inside = sw.jit(lambda: jnp.ones(8, device=NamedSharding(mesh, P("data"))))()
    assert inside.sharding == NamedSharding(mesh, P("data"))
    with pytest.raises(ValueError, match="full needs a Sharding or a device, not 'cpu'"):
        jnp.zeros(3, device="cpu")


def test_a_format_with_the_default_layout_is_a_sharding(mesh):
    sharding = NamedSharding(mesh, P("data"))
    for layout in (None, Layout((0, 1))):
        x = sw.device_put({"x": np.ones((8, 2))}, Format(layout, sharding))["x"]
        assert x.sharding == sharding
    with pytest.raises(
        NotImplementedError, match=r"device_put: Layout\(major_to_minor=\(1, 0\), tiling=None, .*\) is not"
    ):
        sw.device_put(np.ones((8, 2)), Format(Layout((1, 0)), sharding))


def test_errors_of_device_put(mesh):
    with pytest.raises(ShardingError, match=r"device_put: cannot shard f32\[8\]\.\n  .* has 2 entries"):
        sw.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("data", "model")))
    with pytest.raises(
        ShardingError, match="has UNCONSTRAINED dims, which only the planner of a compiled function can decide"
    ):
        sw.device_put(np.ones(8), NamedSharding(mesh, P(P.UNCONSTRAINED)))
    with pytest.raises(TypeError, match=r"device_put: a bare P\('data'\) needs a mesh"):
        sw.device_put(np.ones(8), P("data"))
    with pytest.raises(ValueError, match="device_put needs a Sharding or a device, not 3"):
        sw.device_put(np.ones(8), 3)


def test_constants_in_traced_functions_are_constrained_as_traced_values_are(mesh):
    rows = NamedSharding(mesh, P("data"))
    x = sw.device_put(np.arange(8.0), rows)
    for value in (1, np.ones(8, np.float32), jnp.ones(8)):
        f = sw.jit(lambda x, value=value: x + sw.device_put(value, sw.devices()[1]))
        np.testing.assert_array_equal(f(x), np.arange(8.0) + 1)
        assert f(x).sharding == rows and not f(np.arange(8.0)).committed
    region = sw.shard_map(
        lambda x: x + sw.device_put(1, sw.devices()[0]), mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )
    np.testing.assert_array_equal(sw.jit(region)(x), np.arange(8.0) + 1)
    kept = jnp.ones(8)
    placed = sw.jit(lambda: sw.device_put(kept, rows, donate=True))()
    assert placed.sharding == rows and not kept.is_deleted()


def test_meshes_are_made_of_axis_shapes_or_axis_sizes():
    mesh = sw.make_mesh((4, 2), ("a", "b"))
    assert sw.make_mesh(axis_sizes=(4, 2), axis_names=("a", "b")) == mesh
    assert sw.make_mesh(axis_shapes=(4, 2), axis_names=("a", "b")) == mesh
    for arguments in ({"axis_names": ("a",)}, {"axis_shapes": (4,), "axis_sizes": (4,), "axis_names": ("a",)}):
        with pytest.raises(TypeError, match="as axis_shapes or axis_sizes, and axis_names"):
            sw.make_mesh(**arguments)


def test_a_single_name_of_an_axis():
    assert sw.make_mesh((4,), "batch").axis_names == sw.make_mesh((4,), ("batch",)).axis_names == ("batch",)
