"""Shardings of HLO as axes of a mesh, against the definition of their tiles."""

import math
import random

import numpy as np
import pytest

from shardwise.errors import UnsupportedError
from shardwise.stablehlo.hlo_shardings import HloMesh, parse_hlo_sharding


def tile_of_each_device(tiles, reshape, order):
    """Return the position of the tile of each device, one row for each."""
    devices = np.arange(math.prod(reshape)).reshape(reshape).transpose(order).reshape(tiles)
    positions = np.empty((devices.size, len(tiles)), int)
    for position, device in np.ndenumerate(devices):
        positions[device] = position
    return positions


def tile_by_axes(mesh, dims):
    """Return the same, from the mesh axes that shard each dim."""
    coordinates = np.indices(mesh.axis_sizes).reshape(len(mesh.axis_sizes), -1)
    columns = []
    for axes in dims:
        position = np.zeros(coordinates.shape[1], int)
        for axis in axes:
            index = mesh.axis_names.index(axis)
            position = position * mesh.axis_sizes[index] + coordinates[index]
        columns.append(position)
    return np.stack(columns, 1)


def random_sharding(rng):
    reshape = [rng.choice((2, 2, 4, 3)) for _ in range(rng.randrange(1, 4))]
    order = rng.sample(range(len(reshape)), len(reshape))
    tiles, sizes = [], [reshape[dim] for dim in order]
    while sizes:  # join and split the sizes at random
        count = rng.randrange(1, len(sizes) + 1)
        tiles.append(math.prod(sizes[:count]))
        del sizes[:count]
        if rng.random() < 0.3:
            tiles.append(1)
    return tiles, reshape, order


@pytest.mark.parametrize("seed", range(50))
def test_random_tiles(seed):
    tiles, reshape, order = random_sharding(random.Random(seed))
    text = f"{{devices={tiles}<={reshape}T({','.join(map(str, order))})}}".replace(" ", "")
    sharding = parse_hlo_sharding(text)
    mesh = HloMesh([sharding])
    np.testing.assert_array_equal(
        tile_by_axes(mesh.mesh, mesh.dims(sharding, len(tiles))), tile_of_each_device(tiles, reshape, order)
    )


def test_one_mesh_for_all_shardings():
    rows, columns, both = map(
        parse_hlo_sharding,
        (
            "{devices=[4,1,2]<=[8] last_tile_dim_replicate}",
            "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dims={replicated}}",
            "{devices=[8]0,1,2,3,4,5,6,7}",
        ),
    )
    mesh = HloMesh([rows, columns, both])
    assert (mesh.mesh.axis_names, mesh.mesh.axis_sizes) == (("axis0", "axis1"), (4, 2))
    assert mesh.dims(rows, 2) == (("axis0",), ())
    assert mesh.dims(columns, 2) == ((), ("axis1",))
    assert mesh.dims(both, 1) == (("axis0", "axis1"),)
    assert mesh.dims(parse_hlo_sharding("{replicated}"), 3) == ((), (), ())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["{manual}"], "only replicated and tiled"),
        (["{maximal device=1}"], "only replicated and tiled"),
        (["{devices=[2]1,0}"], "not in the order of a mesh"),
        (["{devices=[2,2]<=[8]}"], "not as many as its devices"),
        (["{devices=[3,2]<=[2,3]}"], "no mesh has its tiles"),
        (["{devices=[2]<=[2]}", "{devices=[4]<=[4]}"], "different numbers of devices"),
        (["{devices=[2,3]<=[6]}", "{devices=[3,2]<=[6]}"], "their tiles overlap"),
    ],
)
def test_shardings_that_no_mesh_has(texts, message):
    with pytest.raises(UnsupportedError, match=message):
        HloMesh(map(parse_hlo_sharding, texts))
