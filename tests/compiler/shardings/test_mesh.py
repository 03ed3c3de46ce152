"""Meshes: coordinates and groups of devices, computed another way, and errors."""

import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest

from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh, absent_mesh
from shardwise.errors import ShardingError

MESHES = [AbstractMesh((), ()), AbstractMesh((3,), ("a",)), AbstractMesh((4, 2), "ab"), AbstractMesh((2, 3, 2), "abc")]


def places(mesh: AbstractMesh) -> list[dict[str, int]]:
    """Return the coordinates of all devices, in mesh order."""
    return [dict(zip(mesh.axis_names, index, strict=True)) for index in np.ndindex(mesh.axis_sizes)]


def axes_of(mesh: AbstractMesh) -> list[tuple[str, ...]]:
    names = mesh.axis_names
    return [axes for count in range(len(names) + 1) for axes in itertools.permutations(names, count)]


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_coordinates_have_the_first_axis_major(mesh):
    for axes in axes_of(mesh):
        ordered = sorted({tuple(place[axis] for axis in axes) for place in places(mesh)})
        expected = [ordered.index(tuple(place[axis] for axis in axes)) for place in places(mesh)]
        assert mesh.coordinates(axes).tolist() == expected
        assert mesh.extent(axes) == len(ordered)


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_groups_differ_only_along_their_axes_and_are_in_order(mesh):
    where = places(mesh)
    for axes in axes_of(mesh):
        groups = mesh.groups(axes).tolist()
        assert sorted(itertools.chain(*groups)) == list(range(mesh.device_count))
        for group in groups:
            rest = [{axis: where[device][axis] for axis in mesh.axis_names if axis not in axes} for device in group]
            assert rest == [rest[0]] * len(group)
            along = [tuple(where[device][axis] for axis in axes) for device in group]
            assert along == sorted(along)
            assert len(set(along)) == len(along) == mesh.extent(axes)


def test_names_sizes_and_text():
    mesh = AbstractMesh((4, 2), ("data", "model"))
    assert mesh.shape == {"data": 4, "model": 2}
    assert mesh.size == 8
    assert str(mesh) == "data=4, model=2"
    assert repr(mesh) == "AbstractMesh(data=4, model=2)"
    assert mesh == AbstractMesh([4, 2], ["data", "model"])
    assert hash(mesh) == hash(AbstractMesh((4, 2), ("data", "model")))
    assert mesh != AbstractMesh((4, 2), ("model", "data"))
    assert mesh != AbstractMesh((2, 4), ("data", "model"))


@pytest.mark.parametrize(
    ("sizes", "names", "message"),
    [
        (
            (4, 2),
            ("a",),
            "a mesh needs one name per axis: sizes (4, 2) have 2 axes, names ('a',) have 1",
        ),
        ((4, 2), ("a", "a"), "mesh axis names must differ: ['a'] repeat in ('a', 'a')"),
        ((4, 0), ("a", "b"), "mesh axis sizes must be at least 1, not (4, 0)"),
    ],
)
def test_invalid_meshes_raise(sizes, names, message):
    with pytest.raises(ShardingError) as caught:
        AbstractMesh(sizes, names)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ("date", "the mesh data=4, model=2 has no axis 'date'. Did you mean 'data'?"),
        ("x", "the mesh data=4, model=2 has no axis 'x'. Its axes are 'data', 'model'."),
    ],
)
def test_the_message_for_an_unknown_axis_has_a_suggestion(axis, message):
    assert AbstractMesh((4, 2), ("data", "model")).unknown_axis_message(axis) == message


class Device:
    """A device, which is opaque to meshes."""


class TestDevices:
    def test_a_grid_of_devices(self):
        devices = [Device() for _ in range(8)]
        mesh = Mesh(np.array(devices).reshape(4, 2), ("data", "model"))
        assert mesh.axis_names == ("data", "model")
        assert mesh.shape == {"data": 4, "model": 2}
        assert mesh.size == 8
        assert mesh.flat_devices == tuple(devices)
        assert mesh.abstract == AbstractMesh((4, 2), ("data", "model"))
        assert repr(mesh) == "Mesh(data=4, model=2)"

    def test_a_single_axis_name_may_be_a_string(self):
        devices = [Device() for _ in range(3)]
        assert Mesh(devices, "a") == Mesh(devices, ("a",))

    def test_meshes_are_equal_if_devices_and_names_are(self):
        devices = [Device() for _ in range(4)]
        mesh = Mesh(np.array(devices), "a")
        assert mesh == Mesh(devices, "a")
        assert hash(mesh) == hash(Mesh(devices, "a"))
        assert mesh != Mesh(devices[::-1], "a")
        assert mesh != Mesh(devices, "b")
        assert mesh != mesh.abstract

    def test_equal_meshes_are_one_object(self):
        devices = [Device() for _ in range(4)]
        mesh = Mesh(devices, "a")
        assert Mesh(np.array(devices), ("a",)) is mesh
        assert Mesh(devices, "a", AxisType.Explicit) is not mesh
        assert copy.copy(mesh) is mesh and copy.deepcopy({"mesh": mesh})["mesh"] is mesh

    def test_a_mesh_that_nobody_refers_to_is_freed(self):
        devices = [Device() for _ in range(2)]
        freed = weakref.ref(Mesh(devices, "a"))
        gc.collect()
        assert freed() is None

    def test_a_mesh_of_placeholders_pickles(self):
        mesh = absent_mesh(AbstractMesh((2, 3), ("a", "b")))
        assert pickle.loads(pickle.dumps(mesh)) is mesh

    def test_a_mesh_without_axes_has_no_devices(self):
        mesh = Mesh(np.empty((), object), ())
        assert mesh.empty and mesh.abstract.empty
        assert mesh.size == mesh.abstract.size == 0

    def test_the_array_of_devices_is_read_only(self):
        grid = np.array([Device(), Device()])
        mesh = Mesh(grid, "a")
        with pytest.raises(ValueError, match="read-only"):
            mesh.devices[0] = None

    def test_the_array_of_the_caller_is_copied(self):
        grid = np.array([Device(), Device()])
        mesh = Mesh(grid, "a")
        first = grid[0]
        grid[0] = Device()
        assert mesh.devices[0] is first
        assert mesh.flat_devices[0] is first

    def test_a_repeated_device_raises(self):
        device = Device()
        with pytest.raises(ShardingError, match="a mesh cannot contain a device twice"):
            Mesh([device, device], "a")

    @pytest.mark.parametrize(
        ("count", "names", "sizes"),
        [(8, "ab", (4, 2)), (8, "abc", (2, 2, 2)), (6, "ab", (3, 2)), (7, "ab", (7, 1)), (16, "ab", (4, 4))],
    )
    def test_a_flat_list_is_reshaped_with_a_warning(self, count, names, sizes):
        with pytest.warns(UserWarning, match=f"flat list of {count} devices for {len(names)} axis names"):
            mesh = Mesh([Device() for _ in range(count)], tuple(names))
        assert tuple(mesh.shape.values()) == sizes
