"""The meshes that the command line of the examples describes."""

import pytest
from command_line import make_mesh

from shardwise.errors import ShardingError

AXES = ("data", "model")


@pytest.mark.parametrize(
    "devices, sizes", [(1, (1, 1)), (2, (2, 1)), (3, (3, 1)), (4, (2, 2)), (6, (3, 2)), (8, (4, 2)), (None, (4, 2))]
)
def test_default_mesh(devices, sizes):
    assert make_mesh(None, devices, AXES).axis_sizes == sizes
    assert make_mesh(None, devices, ("data",)).axis_sizes == (devices or 8,)


def test_mesh_of_the_command_line():
    mesh = make_mesh("data=1,model=4", None, AXES)
    assert dict(mesh.shape) == {"data": 1, "model": 4}


@pytest.mark.parametrize(
    "text, devices, message",
    [
        ("data=4,model=4", None, "needs 16 devices, but there are only 8"),
        ("data=2,model=2", 8, "--mesh data=2,model=2 has 4 devices, but --devices is 8"),
        ("data=4", None, "--mesh data=4: write a size for each axis, such as data=2,model=2"),
        ("data=4,modle=2", None, "--mesh data=4,modle=2: write a size for each axis"),
        ("data=4,data=2", None, "--mesh data=4,data=2: write a size for each axis"),
        ("data=4,model=two", None, "--mesh data=4,model=two: write a size for each axis"),
        (None, 9, "needs 9 devices, but there are only 8"),
        (None, 0, "at least 1"),
    ],
)
def test_mesh_that_does_not_fit(text, devices, message):
    with pytest.raises(ShardingError, match=message):
        make_mesh(text, devices, AXES)
