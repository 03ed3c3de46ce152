"""The heap of temporaries: against counts by hand, and bounds that hold for all heaps."""

import random

from shardwise.compiler.partition.heap import Block, heap_bytes


def test_blocks_that_are_not_live_at_once_share_memory():
    assert heap_bytes([Block(8, ((0, 1),)), Block(5, ((2, 3),))]) == 8
    assert heap_bytes([Block(8, ((0, 2),)), Block(5, ((2, 3),))]) == 13
    assert heap_bytes([]) == 0


def test_a_block_is_placed_in_the_smallest_gap():
    long = [Block(4, ((0, 9),)), Block(3, ((0, 9),)), Block(2, ((0, 9),))]
    assert heap_bytes([*long, Block(1, ((0, 9),))]) == 10
    assert heap_bytes([Block(6, ((0, 3),)), Block(4, ((2, 9),)), Block(5, ((4, 9),))]) == 10


def test_buffers_that_replace_each_other_have_one_offset():
    chain = Block(4, ((0, 1), (2, 3)))
    assert heap_bytes([chain, Block(4, ((0, 1),)), Block(4, ((2, 3),))]) == 8


def test_the_heap_is_between_the_most_live_bytes_and_the_sum():
    generator = random.Random(0)
    for _ in range(50):
        blocks = []
        for _ in range(20):
            start = generator.randrange(30)
            blocks.append(Block(generator.randrange(1, 100), ((start, start + generator.randrange(8)),)))
        most = max(sum(b.bytes for b in blocks if b.ranges[0][0] <= t <= b.ranges[0][1]) for t in range(40))
        assert most <= heap_bytes(blocks) <= sum(b.bytes for b in blocks)
