"""Traffic of collectives: the bytes that each device sends, and the number of sequential hops.

All formulas of collectives are in this module. The planner, the report and `simulate` price them with one formula,
`Link.time` in `plan/chip.py`: bytes over the bandwidth of the ring, and a latency per hop.
"""

from itertools import product
from typing import NamedTuple


class Algorithm(NamedTuple):
    """An algorithm of a collective.

    Attributes:
        bytes_sent: the bytes that each device sends.
        hops: the number of sequential messages, each of which waits for the one before. A planner may count only a part
            of them, if the others overlap with other work.
    """

    bytes_sent: float
    hops: float


Traffic = tuple[Algorithm, ...]  # the algorithms of a collective, of which the fastest runs; the first is a ring

NOTHING_SENT: Traffic = ()


def sends_bytes(traffic: Traffic) -> bool:
    """Return whether a collective sends anything: arrays may be empty."""
    return any(algorithm.bytes_sent for algorithm in traffic)


def all_gather(shard_bytes: float, count: int) -> Traffic:
    """Return the traffic of an all-gather: every shard travels around the ring."""
    return (Algorithm(shard_bytes * (count - 1), count - 1),)


def reduce_scatter(shard_bytes: float, count: int) -> Traffic:
    """Return the traffic of a reduce-scatter: sums of one block each travel around the ring."""
    return (Algorithm(shard_bytes * (count - 1) / count, count - 1),)


def all_to_all(shard_bytes: float, count: int) -> Traffic:
    """Return the traffic of an all-to-all: every device sends one block to each other device."""
    return (Algorithm(shard_bytes * (count - 1) / count, count - 1),)


def all_reduce(shard_bytes: float, count: int) -> Traffic:
    """Return the traffic of an all-reduce: by a ring, or by a tree, which sends more bytes in fewer hops.

    A ring is a reduce-scatter and an all-gather. In a binary tree a device sends to its parent, then to two children.
    """
    sent = 2 * shard_bytes * (count - 1) / count
    return (Algorithm(sent, 2 * (count - 1)), Algorithm(2 * sent, 2 * (count - 1).bit_length()))


def one_hop(sent: float) -> Traffic:
    """Return the traffic of messages that are sent concurrently, such as a permute or a halo exchange."""
    return (Algorithm(sent, 1),) if sent else NOTHING_SENT


def one_after_another(*collectives: Traffic) -> Traffic:
    """Return the traffic of collectives of which each starts when the one before has ended."""
    choices = product(*[traffic for traffic in collectives if traffic])
    return tuple([Algorithm(*map(sum, zip(*chosen, strict=True))) for chosen in choices if chosen])


def in_one_launch(*collectives: Traffic) -> Traffic:
    """Return the traffic of collectives of one kind that are sent together: each hop carries the bytes of all."""
    return tuple(
        [
            Algorithm(sum([each.bytes_sent for each in same]), max([each.hops for each in same]))
            for same in zip(*collectives, strict=True)
        ]
    )
