"""Drawings of meshes, shards and specs: a cell for each device, shard or dim."""

import re

import pytest

from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.explain.drawing import device_text, draw_mesh, draw_shards, draw_spec


def titles(svg):
    """Return the titles of the boxes of a drawing."""
    return re.findall("<title>(.*?)</title>", svg)


@pytest.mark.parametrize(
    ("devices", "text"), [([3], "3"), ([0, 1], "0,1"), ([0, 1, 2, 3], "0–3"), ([0, 2, 4, 6, 8], "0,2,4,6,…")]
)
def test_many_devices_are_shortened(devices, text):
    assert device_text(devices) == text


def test_every_device_is_a_cell():
    svg = draw_mesh(AbstractMesh((4, 2), ("data", "model")))
    assert [svg.count(f"device {device}<") for device in range(9)] == [1] * 8 + [0]
    assert "data" in svg and "model" in svg


def test_a_mesh_without_axes_is_not_drawn():
    assert draw_mesh(AbstractMesh((), ())) == ""


def test_a_large_mesh_is_abbreviated():
    corner = [32 * row + column for row in (*range(6), 63) for column in (*range(6), 31)]
    svg = draw_mesh(AbstractMesh((64, 32), ("data", "model")))
    assert titles(svg) == [f"device {device}" for device in corner]
    assert svg.count(">…<") == 8 + 8 - 1  # a row and a column of them


def test_devices_have_their_ids():
    assert titles(draw_mesh(AbstractMesh((3,), ("x",)), [7, 5, 6])) == ["device 7", "device 5", "device 6"]


@pytest.mark.parametrize(
    ("dims", "devices"),
    [
        ((), ["devices 0–7"]),
        (((), ()), ["devices 0–7"]),
        ((("data",), ()), ["devices 0,1", "devices 2,3", "devices 4,5", "devices 6,7"]),
        ((("model",),), ["devices 0,2,4,6", "devices 1,3,5,7"]),
        ((("model",), (), ("data",)), [f"device {device}" for device in (0, 2, 4, 6, 1, 3, 5, 7)]),
    ],
)
def test_every_shard_is_a_cell_with_its_devices(dims, devices):
    assert titles(draw_shards(Layout(dims), AbstractMesh((4, 2), ("data", "model")))) == devices


def test_dims_are_labelled_with_their_axes():
    svg = draw_shards(Layout((("data", "model"), ())), AbstractMesh((4, 2), ("data", "model")))
    assert ">dim 0: data × model<" in svg and ">dim 1<" in svg


def test_a_long_axis_name_is_shortened():
    name = "n" * 100
    assert f">{'n' * 25}…<" in draw_mesh(AbstractMesh((2,), (name,)))


def test_every_dim_of_a_spec_is_a_box():
    svg = draw_spec([("data",), (), ("model", "expert"), None])
    assert titles(svg) == [
        "dim 0: sharded over data",
        "dim 1: not sharded",
        "dim 2: sharded over model × expert",
        "dim 3: chosen by the planner",
    ]
    assert draw_spec([]) == ""
