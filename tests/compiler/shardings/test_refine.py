"""Refined meshes: a layout places the same elements on every device when it is expressed on the common mesh."""

import itertools

import numpy as np
import pytest

from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, parse_mesh
from shardwise.compiler.shardings.refine import (
    coarsen_layout,
    common_mesh,
    merge_sub_axes,
    refine_pin,
    split_mesh,
    sub_axes_of,
)

DEVICES = list(range(24))  # devices are opaque to meshes


def mesh_of(sizes, names="abcd", devices=DEVICES):
    return Mesh(np.array(devices[: int(np.prod(sizes))], object).reshape(sizes), tuple(names[: len(sizes)]))


def layouts(mesh, ndim=2):
    names = mesh.axis_names
    for count in range(len(names) + 1):
        for axes in itertools.permutations(names, count):
            for cuts in itertools.combinations_with_replacement(range(count + 1), ndim - 1):
                ends = (0, *cuts, count)
                yield Layout(tuple(axes[low:high] for low, high in itertools.pairwise(ends)))


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ((4, 2), (2, 4), (2, 2, 2)),
        ((8,), (4, 2), (4, 2)),
        ((2, 1, 4), (4, 2), (2, 2, 2)),
        ((4, 6), (12, 2), (4, 3, 2)),
        ((24,), (2, 3, 4), (2, 3, 4)),
        ((1,), (1, 1), (1,)),
    ],
)
def test_a_layout_on_the_common_mesh_places_the_same_elements(first, second, common):
    one, other = mesh_of(first), mesh_of(second, "pqrs")
    fine = common_mesh([one, other])
    assert tuple(size for size in fine.axis_sizes if size > 1 or common == (1,)) == common
    for mesh in (one, other):
        for layout in layouts(mesh):
            pin = refine_pin(Pin(layout, frozenset({0}), "why"), mesh.abstract, fine.abstract)
            shape = (7, 24)
            assert pin.layout.shard_indices(shape, fine.abstract) == layout.shard_indices(shape, mesh.abstract)
            assert (pin.open_dims, pin.reason) == (frozenset({0}), "why")
            back = coarsen_layout(pin.layout, mesh.abstract, fine.abstract)
            # axes of size 1 shard nothing, and are dropped
            long = Layout(tuple(tuple(axis for axis in dim if mesh.shape[axis] > 1) for dim in layout.dims))
            assert back == long or fine is mesh


def test_the_axis_names_of_the_common_mesh():
    fine = common_mesh([mesh_of((4, 2), "ab"), mesh_of((2, 4), "cd")])
    assert str(fine.abstract) == "c=2, a:(2)2=2, b=2"
    assert sub_axes_of(AbstractMesh((4, 2), "ab"), fine.abstract) == {"a": ("c", "a:(2)2"), "b": ("b",)}
    assert coarsen_layout(Layout((("a:(2)2",), ())), AbstractMesh((4, 2), "ab"), fine.abstract) is None
    assert coarsen_layout(Layout((("a:(2)2", "c"), ())), AbstractMesh((4, 2), "ab"), fine.abstract) is None


def test_meshes_without_a_common_refinement():
    assert common_mesh([mesh_of((3, 2)), mesh_of((2, 3))]) is None
    assert common_mesh([mesh_of((4,)), mesh_of((4,), devices=DEVICES[::-1])]) is None


def test_sub_axes_are_merged_to_the_axes_of_the_user():
    fine = split_mesh(AbstractMesh((8, 2), ("data", "model")), {"data": 4})
    assert len(fine.axis_names) == 3
    assert merge_sub_axes(fine) == AbstractMesh((8, 2), ("data", "model"))
    assert merge_sub_axes(merge_sub_axes(fine)) == merge_sub_axes(fine)


def test_meshes_print_their_axis_types():
    mesh = parse_mesh("data=4, model=2 explicit, rest=1 manual")
    assert str(mesh) == "data=4, model=2 explicit, rest=1 manual"
    assert parse_mesh(str(mesh)) == mesh != parse_mesh("data=4, model=2, rest=1")
