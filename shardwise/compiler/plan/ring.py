"""Ring: the links between the devices of a collective, and the time of a collective on them."""

from typing import final

from shardwise.compiler.ir.record import record
from shardwise.compiler.traffic import Algorithm, Traffic


@final
@record
class Ring:
    """The links between the devices of a collective, which are in `nodes` nodes.

    Latencies are means over the messages of an algorithm: of a ring of 64 devices in 8 nodes, 7 of 63 hops are between
    nodes.

    Attributes:
        bandwidth: the bytes per second that one device sends.
        latency: the seconds of a hop along the ring.
        tree_latency: the seconds of a level of a binary tree, whose lower levels are within nodes.
        aggregated_latency: the seconds of a level of parallel aggregated trees; None if a node has several of the
            devices, for which NCCL has no such trees.
    """

    bandwidth: float
    latency: float
    tree_latency: float
    aggregated_latency: float | None

    def time(self, traffic: Traffic) -> float:
        """Return the seconds of a collective by its fastest algorithm. This one formula prices all collectives."""
        times = [algorithm.bytes_sent / self.bandwidth + self.waiting(algorithm) for algorithm in traffic]
        return min(times, default=0.0)

    def waiting(self, algorithm: Algorithm) -> float:
        """Return the seconds of the latencies of an algorithm; infinity if it does not run on these links."""
        levels = algorithm.aggregated_levels
        if levels and self.aggregated_latency is None:
            return float("inf")
        return (
            algorithm.hops * self.latency
            + algorithm.tree_levels * self.tree_latency
            + levels * (self.aggregated_latency or 0.0)
        )

    def scaled(self, rate: float) -> "Ring":
        """Return the ring in another unit of time: one second is `rate` units."""
        aggregated = None if self.aggregated_latency is None else self.aggregated_latency * rate
        return Ring(self.bandwidth / rate, self.latency * rate, self.tree_latency * rate, aggregated)
