"""Drawings of meshes: a cell for each device."""

import pytest

from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.explain.drawing import device_text, draw_mesh


@pytest.mark.parametrize(
    ("devices", "text"), [([3], "3"), ([0, 1], "0,1"), ([0, 1, 2, 3], "0–3"), ([0, 2, 4, 6, 8], "0,2,4,6,…")]
)
def test_many_devices_are_shortened(devices, text):
    assert device_text(devices) == text


def test_every_device_is_a_cell():
    svg = draw_mesh(AbstractMesh((4, 2), ("data", "model")))
    assert [svg.count(f"device {device}<") for device in range(9)] == [1] * 8 + [0]
    assert "data" in svg and "model" in svg


def test_a_mesh_that_is_too_large_is_not_drawn():
    assert draw_mesh(AbstractMesh((17, 2), ("data", "model"))) == ""
    assert draw_mesh(AbstractMesh((), ())) == ""
