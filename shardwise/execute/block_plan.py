"""plan_blocks: the blocks that devices send to each other to reshard an array from one sharding to another."""

from dataclasses import dataclass
from typing import final

from shardwise.base.caches import registered_cache
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.runtime.box import Box, box_of, relative


@final
@dataclass(frozen=True)
class BlockPlan:
    """The blocks that each source slices from its shard, and the blocks that each target assembles.

    Sources and targets are indexed like the devices of their shardings.

    Attributes:
        slices: for each source, the boxes of its blocks, relative to its shard.
        boxes: for each target, the boxes of its blocks, relative to the global array.
        sources: for each box of a target, the source and the index of the block in the source.
    """

    slices: tuple[tuple[int, tuple[Box, ...]], ...]
    boxes: tuple[tuple[Box, ...], ...]
    sources: tuple[tuple[tuple[int, int], ...], ...]


@registered_cache(maxsize=4096)
def plan_blocks(shape: tuple[int, ...], before: Sharding, after: Sharding) -> BlockPlan:
    """Plan the blocks that reshard an array of this shape from one sharding to another.

    If several devices hold a block, the target prefers its own copy, then a copy in its own process.
    """
    holders: dict[Box, list[int]] = {}
    for number, index in enumerate(before.shard_indices(shape)):
        holders.setdefault(box_of(index), []).append(number)
    slices: dict[int, dict[Box, int]] = {}
    boxes, sources = [], []
    for target, (device, index) in enumerate(zip(after.devices, after.shard_indices(shape), strict=True)):
        blocks = {}
        for shard, numbers in holders.items():
            box = tuple((max(a, low), min(b, high)) for (a, b), (low, high) in zip(shard, box_of(index), strict=True))
            if all(low < high for low, high in box):
                near = [n for n in numbers if before.devices[n].process_index == device.process_index] or numbers
                source = next((n for n in numbers if before.devices[n] == device), near[target % len(near)])
                source_slices = slices.setdefault(source, {})
                blocks[box] = (source, source_slices.setdefault(relative(box, shard), len(source_slices)))
        boxes.append(tuple(blocks))
        sources.append(tuple(blocks.values()))
    return BlockPlan(tuple((source, tuple(local)) for source, local in slices.items()), tuple(boxes), tuple(sources))
