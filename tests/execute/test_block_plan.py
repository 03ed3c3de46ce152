"""Plans of blocks: the targets assemble the array from what the sources slice."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import P
from shardwise.execute.block_plan import plan_blocks
from shardwise.runtime.box import box_of

SPECS = [P(), P("data"), P(None, "data"), P("model", "data"), P(("model", "data"))]


@pytest.mark.parametrize("after", SPECS, ids=str)
@pytest.mark.parametrize("before", SPECS, ids=str)
def test_targets_assemble_their_shards_from_slices_of_the_sources(mesh, before, after):
    x = np.arange(7 * 10).reshape(7, 10)
    source, target = sw.NamedSharding(mesh, before), sw.NamedSharding(mesh, after)
    plan = plan_blocks(x.shape, source, target)
    shards = [x[index] for index in source.shard_indices(x.shape)]
    blocks = {
        number: [shards[number][tuple(slice(*span) for span in box)] for box in boxes] for number, boxes in plan.slices
    }
    for index, boxes, sources in zip(target.shard_indices(x.shape), plan.boxes, plan.sources, strict=True):
        assembled = np.full(x.shape, -1)
        for box, (number, block) in zip(boxes, sources, strict=True):
            assembled[tuple(slice(*span) for span in box)] = blocks[number][block]
        expected = np.full(x.shape, -1)
        expected[tuple(slice(*span) for span in box_of(index))] = x[index]
        np.testing.assert_array_equal(assembled, expected)


def test_a_device_keeps_what_it_holds(mesh):
    rows = sw.NamedSharding(mesh, P("data"))
    plan = plan_blocks((8, 4), rows, rows)
    assert [[number for number, _ in sources] for sources in plan.sources] == [[number] for number in range(8)]
