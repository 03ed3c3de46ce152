"""Shardings: properties, equivalence, PositionalSharding, and errors."""

import re

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import ShardingError
from shardwise.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PositionalSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P


def ids(sharding, shape):
    """Return an array with the ids of the devices that hold each element, as bits."""
    devices = np.zeros(shape, int)
    for device, index in sharding.devices_indices_map(shape).items():
        devices[index] |= 1 << device.id
    return devices


def test_properties_of_a_named_sharding(mesh):
    sharding = NamedSharding(mesh, P("data", None))
    assert sharding.num_devices == 8
    assert sharding.addressable_devices == sharding.device_set == set(sw.devices())
    assert sharding.is_fully_addressable and not sharding.is_fully_replicated
    assert sharding.memory_kind == "device"
    assert sharding.with_spec(P("model")) == NamedSharding(mesh, P("model"))
    assert sharding.with_spec((None, "model")) == NamedSharding(mesh, P(None, "model"))
    assert sharding.update(spec=P()).is_fully_replicated
    other = sw.make_mesh((8,), ("data",))
    assert sharding.update(mesh=other) == NamedSharding(other, P("data"))
    assert sharding.addressable_devices_indices_map((8, 2)) == sharding.devices_indices_map((8, 2))


def test_equivalent_shardings_have_the_same_shards_on_the_same_devices(mesh):
    flat = sw.make_mesh((8,), ("x",))
    grid = PositionalSharding(sw.devices())
    both = NamedSharding(mesh, P(("data", "model")))
    assert both.is_equivalent_to(NamedSharding(flat, P("x")), 1)
    assert both.is_equivalent_to(grid, 1)
    assert not both.is_equivalent_to(NamedSharding(mesh, P(("model", "data"))), 1)
    assert not both.is_equivalent_to(SingleDeviceSharding(sw.devices()[0]), 1)
    assert NamedSharding(mesh, P()).is_equivalent_to(grid.replicate(), 3)
    assert not NamedSharding(mesh, P("data")).is_equivalent_to(NamedSharding(mesh, P(None, "data")), 2)
    one = Mesh(sw.devices()[:1], ("x",))
    assert NamedSharding(one, P("x")).is_equivalent_to(SingleDeviceSharding(sw.devices()[0]), 2)


def test_equal_shardings_are_equivalent_without_a_look_at_each_device(monkeypatch):
    mesh = AbstractMesh((500_000, 2), ("data", "model"))
    monkeypatch.setattr(NamedSharding, "device_set", property(lambda self: pytest.fail("enumerates a million devices")))
    assert NamedSharding(mesh, P("data")).is_equivalent_to(NamedSharding(mesh, P("data", None)), 2)


def test_positional_shardings_reshape_transpose_and_replicate():
    devices = np.arange(8)
    grid = PositionalSharding(sw.devices())
    for shape in [(8,), (4, 2), (2, 4), (2, 2, 2), (1, 8), (8, 1)]:
        found = grid.reshape(shape)
        assert found.shape == shape
        np.testing.assert_array_equal(ids(found, shape), 1 << devices.reshape(shape))
        np.testing.assert_array_equal(ids(found.T, shape[::-1]), 1 << devices.reshape(shape).T)
        assert found.mesh.flat_devices == tuple(sw.devices())  # one device order: all can be used in one program
    square = grid.reshape(4, 2)
    rows = square.replicate(1)
    assert rows.shape == (4, 1)
    np.testing.assert_array_equal(ids(rows, (4, 1)).ravel(), [0b11, 0b1100, 0b110000, 0b11000000])
    np.testing.assert_array_equal(ids(square.replicate(0), (1, 2)).ravel(), [0b01010101, 0b10101010])
    assert square.replicate(0, keepdims=False).shape == (2,)
    assert square.replicate().is_fully_replicated
    assert square.replicate(-1) == rows
    np.testing.assert_array_equal(ids(square.T.reshape(8), (8,)), 1 << devices.reshape(4, 2).T.ravel())
    assert square.reshape(2, -1).shape == (2, 4)
    assert square.reshape(2, 4) == grid.reshape(2, 4) and hash(square.reshape(2, 4)) == hash(grid.reshape(2, 4))
    assert square != square.T


def test_reshape_to_sizes_without_common_factors_reorders_devices():
    six = PositionalSharding(sw.devices()[:6])
    np.testing.assert_array_equal(ids(six.reshape(3, 2).reshape(2, 3), (2, 3)), 1 << np.arange(6).reshape(2, 3))
    turned = np.arange(6).reshape(3, 2).T.reshape(3, 2)
    np.testing.assert_array_equal(ids(six.reshape(3, 2).T.reshape(3, 2), (3, 2)), 1 << turned)
    np.testing.assert_array_equal(
        ids(six.reshape(3, 2).replicate(1).reshape(1, 3), (1, 3)).ravel(), [0b11, 0b1100, 0b110000]
    )


def test_repr_of_positional_shardings():
    square = PositionalSharding(sw.devices()).reshape(4, 2)
    assert repr(square) == "PositionalSharding([[{0} {1}] [{2} {3}] [{4} {5}] [{6} {7}]])"
    assert repr(square.replicate(0)) == "PositionalSharding([[{0,2,4,6} {1,3,5,7}]])"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda mesh: NamedSharding(mesh, P("date")), "has no axis 'date'. Did you mean 'data'?"),
        (lambda mesh: NamedSharding(mesh, P("data", "data")), "an axis can shard one dim only"),
        (
            lambda mesh: NamedSharding(mesh, P("data", None, "model")).shard_shape((8, 8)),
            "P('data', None, 'model') has 3 entries, but the array has rank 2 (shape (8, 8)). Remove 1",
        ),
        (
            lambda mesh: PositionalSharding(sw.devices()).reshape(3, 2),
            "PositionalSharding: cannot reshape (8,), of 8 shards, to (3, 2)",
        ),
        (
            lambda mesh: PositionalSharding(sw.devices()).shard_shape((8, 8)),
            "PositionalSharding of shape (8,) cannot shard an array of rank 2 (shape (8, 8)): reshape it",
        ),
        (lambda mesh: PositionalSharding(sw.devices()).replicate(1), "PositionalSharding: (8,) has no dim 1"),
        (lambda mesh: PositionalSharding(sw.devices()).transpose(1), "(1,) is not a permutation of the dims of (8,)"),
        (
            lambda mesh: sw.make_mesh((16, 2), ("data", "model")),
            "make_mesh((16, 2), ('data', 'model')) needs 32 devices, but there are only 8.",
        ),
        (
            lambda mesh: sw.make_mesh((4, 2), ("a", "b"), (AxisType.Auto,)),
            "axis_types needs one type per axis: 1 types for the axes ('a', 'b')",
        ),
    ],
)
def test_invalid_shardings_raise_errors(mesh, make, message):
    with pytest.raises(ShardingError) as caught:
        make(mesh)
    assert message in str(caught.value)


@pytest.mark.parametrize(("spec", "advice"), [((None, "x"), "PartitionSpec(None, 'x')"), ("x", "PartitionSpec('x')")])
def test_a_spec_that_is_no_partition_spec(spec, advice):
    mesh = sw.make_mesh((2,), ("x",), devices=sw.devices()[:2])
    with pytest.raises(TypeError, match=re.escape(f"not {spec!r}: write {advice}")):
        NamedSharding(mesh, spec)


def test_axis_types_are_kept():
    plain = sw.make_mesh((4, 2), ("a", "b"))
    assert plain.axis_types == (AxisType.Auto, AxisType.Auto)
    assert sw.make_mesh((4, 2), ("a", "b"), (AxisType.Auto,) * 2) == plain
    explicit = sw.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Explicit, AxisType.Auto))
    assert explicit.axis_types == (AxisType.Explicit, AxisType.Auto)
    assert explicit != plain
    x = sw.device_put(np.arange(8.0), NamedSharding(explicit, P("a")))
    assert (x + sw.device_put(x, NamedSharding(plain, P("b")))).tolist() == list(np.arange(8.0) * 2)
    with pytest.warns(UserWarning, match="Manual axes a of a mesh are planned like Auto axes outside `shard_map`"):
        sw.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Manual, AxisType.Auto))
    with pytest.raises(TypeError, match=r"axis_types accepts AxisType.Auto, .* not 'Auto'"):
        sw.make_mesh((4, 2), ("a", "b"), axis_types=("Auto", "Auto"))


def test_unsharded_dims_have_the_index_of_everything(mesh):
    """As in JAX: `slice(None)` where a dim has one shard, bounds where it has several."""
    everything = slice(None)
    rows = NamedSharding(mesh, P("data"))
    assert rows.devices_indices_map((8, 3))[sw.devices()[2]] == (slice(2, 4), everything)
    assert NamedSharding(mesh, P()).devices_indices_map((8, 3))[sw.devices()[5]] == (everything, everything)
    single = SingleDeviceSharding(sw.devices()[1])
    assert single.devices_indices_map((2, 2)) == {sw.devices()[1]: (everything, everything)}
    columns = NamedSharding(sw.make_mesh((1, 8), ("one", "rest")), P("one", "rest"))
    assert columns.devices_indices_map((8, 8))[sw.devices()[1]] == (everything, slice(1, 2))
    x = sw.device_put(np.arange(24).reshape(8, 3), rows)
    assert [shard.index for shard in x.addressable_shards] == list(rows.devices_indices_map((8, 3)).values())


def test_replicated(mesh):
    assert NamedSharding(mesh, P("data")).replicated == NamedSharding(mesh, P())
    single = SingleDeviceSharding(sw.devices()[1])
    assert single.replicated == single
    grid = PositionalSharding(sw.devices()[:4]).reshape(2, 2)
    assert grid.replicated.is_fully_replicated and grid.replicated.devices == grid.devices


def test_compatible_shapes_and_invalid_specs(mesh):
    grid = NamedSharding(mesh, P("data", "model"))
    grid.check_compatible_aval((8, 2))
    with pytest.raises(ValueError):
        grid.check_compatible_aval((8,))
    with pytest.raises(ValueError, match="cannot contain another tuple"):
        P("data", ("model", ("data",)))
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Spec", (P,), {})
    with pytest.raises(ShardingError, match="cannot be None"):
        Mesh(np.array(sw.devices()).reshape(4, 2), ("x", None))
    with pytest.raises(ShardingError, match="memory_kind='somewhere' is none of"):
        NamedSharding(mesh.abstract_mesh, P(), memory_kind="somewhere")


def test_aval_is_the_type(mesh):
    x = sw.device_put(np.ones((8, 2), np.float32), NamedSharding(mesh, P("data")))
    assert (str(x.aval), x.aval.shape) == ("f32[8,2]", (8, 2))
    assert sw.jit(lambda x: x * x.aval.shape[0])(x)[0, 0] == 8


def test_arrays_keep_the_spec_that_they_were_put_with(mesh):
    """`P("data")` and `P("data", None)` are the same layout: each array shows its own, and one program serves both."""
    value = np.ones((8, 3), np.float32)
    specs = [P("data", None), P("data"), P("data", None)]
    arrays = [sw.device_put(value, NamedSharding(mesh, spec)) for spec in specs]
    assert [x.sharding.spec for x in arrays] == specs
    traced = []

    @sw.jit
    def double(x):
        traced.append(x)
        return 2 * x

    results = [double(x) for x in (*arrays, *arrays)]
    assert {y.sharding.spec for y in results} == {P("data")} and len(traced) == 1
    assert len({id(launch) for launch, _ in double._launches.values()}) == 1 and len(double._launches) == 2
