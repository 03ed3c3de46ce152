"""Mesh shapes for a number of devices."""

import math

from shardwise.compiler.plan.hardware import chip
from shardwise.layout_search.meshes import divisors, mesh_shapes


def test_mesh_shapes():
    assert [mesh.axis_sizes for mesh in mesh_shapes(8, chip("h100"))] == [(8,), (4, 2), (2, 4)]
    shapes = [mesh.axis_sizes for mesh in mesh_shapes(32, chip("h100"))]
    assert shapes == [
        (32,),
        (16, 2),
        (8, 4),
        (4, 8),
        (2, 16),
        (8, 2, 2),
        (4, 4, 2),
        (2, 8, 2),
        (4, 2, 4),
        (2, 4, 4),
        (2, 2, 8),
    ]
    assert all(math.prod(shape) == 32 for shape in shapes)


def test_divisors():
    for count in (1, 2, 36, 97, 1000):
        assert divisors(count) == [size for size in range(1, count + 1) if count % size == 0]
