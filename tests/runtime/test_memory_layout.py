"""Layouts in memory: only the default one is supported."""

import pytest

import shardwise as sw
from shardwise import P
from shardwise.runtime.memory_layout import Format, Layout, row_major, sharding_of_format


def test_arrays_are_row_major(mesh):
    sharding = sw.NamedSharding(mesh, P("data"))
    assert row_major(3, sharding) == Format(Layout((0, 1, 2)), sharding)
    assert sharding_of_format("f", row_major(3, sharding), 3) is sharding
    assert sharding_of_format("f", Format(None, sharding), 3) is sharding


@pytest.mark.parametrize("layout", [Layout((1, 0)), Layout((0,)), Layout((0, 1), ((8, 128),))])
def test_other_layouts_are_errors(layout):
    with pytest.raises(NotImplementedError, match=r"f: Layout\(.* is not supported. Arrays are row-major in memory"):
        sharding_of_format("f", Format(layout), 2)
