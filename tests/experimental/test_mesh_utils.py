"""Device arrays for meshes: plain ones, and hybrid ones with slow links between granules."""

from dataclasses import dataclass

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import ShardingError
from shardwise.experimental import mesh_utils
from shardwise.sharding import Mesh


@dataclass(frozen=True)
class Chip:
    id: int
    process_index: int
    slice_index: int


CHIPS = [Chip(id, id // 2, id // 4) for id in range(8)]


def ids(grid):
    return np.vectorize(lambda device: device.id)(grid)


def test_device_mesh_keeps_the_order_of_devices():
    grid = mesh_utils.create_device_mesh((4, 2))
    assert ids(grid).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert Mesh(grid, ("data", "model")).shape == {"data": 4, "model": 2}
    assert ids(mesh_utils.create_device_mesh((3,), sw.devices()[5:])).tolist() == [5, 6, 7]
    assert mesh_utils.create_device_mesh([2, 2, 2], allow_split_physical_axes=True).shape == (2, 2, 2)


def test_hybrid_mesh_keeps_granules_contiguous():
    slices = mesh_utils.create_hybrid_device_mesh((2, 2), (1, 2), CHIPS)
    assert ids(slices).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    rows = mesh_utils.create_hybrid_device_mesh((1, 4), (2, 1), CHIPS[::-1])
    assert ids(rows).tolist() == [[3, 2, 1, 0], [7, 6, 5, 4]]
    processes = mesh_utils.create_hybrid_device_mesh((1, 2), (2, 2), CHIPS, process_is_granule=True)
    assert ids(processes).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    unsorted = mesh_utils.create_hybrid_device_mesh((4,), (2,), CHIPS[::-1], should_sort_granules_by_key=False)
    assert ids(unsorted).tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    here = mesh_utils.create_hybrid_device_mesh((4, 2), (1, 1))
    assert ids(here).tolist() == ids(mesh_utils.create_device_mesh((4, 2))).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mesh_utils.create_device_mesh((4, 4)),
            "create_device_mesh: a mesh of shape (4, 4) needs 16 devices, not 8: pass that many as `devices`",
        ),
        (
            lambda: mesh_utils.create_hybrid_device_mesh((4,), (2,)),
            "create_hybrid_device_mesh: dcn_mesh_shape (2,) needs 2 granules of devices, but by process_index there",
        ),
        (lambda: mesh_utils.create_hybrid_device_mesh((4,), (2, 1), CHIPS), "must have the same number of dims"),
        (
            lambda: mesh_utils.create_hybrid_device_mesh((3,), (2,), CHIPS),
            "create_hybrid_device_mesh: a mesh of shape (3,) needs 3 devices, not 4",
        ),
    ],
)
def test_wrong_shapes_raise(call, message):
    with pytest.raises(ShardingError) as caught:
        call()
    assert message in str(caught.value)
