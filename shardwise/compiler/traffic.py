"""Traffic of collectives: the bytes that each device sends, and the number of sequential messages.

All formulas of collectives are in this module. The planner, the report and `simulate` price them with one formula,
`Ring.time` in `plan/ring.py`: bytes over the bandwidth between the devices, and a latency per message. The algorithms
are those of NCCL: rings, double binary trees for all-reduces, parallel aggregated trees for gathers and scatters.
"""

from itertools import product
from typing import NamedTuple


class Algorithm(NamedTuple):
    """An algorithm of a collective.

    A message waits for the one before. A planner may count only a part of the messages, if the others overlap with
    other work.

    Attributes:
        bytes_sent: the bytes that each device sends.
        hops: the number of sequential messages along a ring.
        tree_levels: the number of sequential messages along a binary tree.
        aggregated_levels: the number of sequential messages along parallel aggregated trees.
    """

    bytes_sent: float
    hops: float = 0
    tree_levels: float = 0
    aggregated_levels: float = 0


Traffic = tuple[Algorithm, ...]  # the algorithms of a collective, of which the fastest runs; the first is a ring

NOTHING_SENT: Traffic = ()


def sends_bytes(traffic: Traffic) -> bool:
    """Return whether a collective sends anything: arrays may be empty."""
    return any(algorithm.bytes_sent for algorithm in traffic)


def all_gather(shard_bytes: float, count: int) -> Traffic:
    """Return the traffic of an all-gather: every shard travels around the ring, or down a tree of its own."""
    return _ring_or_aggregated(shard_bytes * (count - 1), count)


def reduce_scatter(shard_bytes: float, count: int) -> Traffic:
    """Return the traffic of a reduce-scatter: sums of one block each travel around the ring, or up a tree."""
    return _ring_or_aggregated(shard_bytes * (count - 1) / count, count)


def all_to_all(shard_bytes: float, count: int) -> Traffic:
    """Return the traffic of an all-to-all: every device sends one block to each other device."""
    return (Algorithm(shard_bytes * (count - 1) / count, count - 1),)


def all_reduce(shard_bytes: float, count: int) -> Traffic:
    """Return the traffic of an all-reduce: by a ring, or by trees, which send a little more in fewer messages.

    A ring is a reduce-scatter and an all-gather. Of two binary trees, each reduces one half of the array and broadcasts
    the sum. A device is a leaf in one and has two children in the other: it sends two halves up and two down.
    """
    sent = 2 * shard_bytes * (count - 1) / count
    return Algorithm(sent, hops=2 * (count - 1)), Algorithm(2 * shard_bytes, tree_levels=2 * _levels(count))


def one_hop(sent: float) -> Traffic:
    """Return the traffic of messages that are sent concurrently, such as a permute or a halo exchange."""
    return (Algorithm(sent, hops=1),) if sent else NOTHING_SENT


def one_after_another(*collectives: Traffic) -> Traffic:
    """Return the traffic of collectives of which each starts when the one before has ended."""
    choices = product(*[traffic for traffic in collectives if traffic])
    return tuple([Algorithm(*map(sum, zip(*chosen, strict=True))) for chosen in choices if chosen])


def in_one_launch(*collectives: Traffic) -> Traffic:
    """Return the traffic of collectives of one kind that are sent together: each hop carries the bytes of all."""
    return tuple(
        [
            Algorithm(
                sum([each.bytes_sent for each in same]), *map(max, zip(*[each[1:] for each in same], strict=True))
            )
            for same in zip(*collectives, strict=True)
        ]
    )


def _ring_or_aggregated(sent: float, count: int) -> Traffic:
    return Algorithm(sent, hops=count - 1), Algorithm(sent, aggregated_levels=_levels(count))


def _levels(count: int) -> int:
    """Return the levels of a binary tree of this many devices below its root."""
    return (count - 1).bit_length()
