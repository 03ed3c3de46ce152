"""The objective of the planner: the time of reshards and of compute, per device.

The unit is the time in which a device sends one byte over its fast links, so a cost is a number of bytes where latency
is small. Reshards are priced as the collectives that implement them (`compiler/traffic.py`, `Ring.time`), compute
by flops and memory traffic. All specs are the chip's (`hardware.py`).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from shardwise.compiler.candidates.candidate import PARTIAL_MAX, PARTIAL_SUM, REPLICATED, State
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.ring import Ring
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import (
    Traffic,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)

FORBIDDEN = float("inf")
TO_PARTIAL = (
    1.0  # cost of making a replicated or sharded value partial: breaks ties in favour of reducing the sum first
)
COMBINED_REDUCTIONS = 50  # reductions per launch, as XLA combines the sums of gradients


@final
@dataclass(frozen=True)
class Costs:
    """The cost model of a mesh of one kind of chip.

    Attributes:
        exposes_hops: whether a collective costs the latency of all its messages, as in the timeline. Otherwise it is a
            ring and costs one hop: the others overlap with other work, in a loop with other iterations. Outside loops
            a reduction then costs even less, because XLA combines reductions over the same devices into one launch.
    """

    chip: Chip
    mesh: AbstractMesh
    exposes_hops: bool = False

    def ring(self, *axes: str) -> Ring:
        """Return the links of a ring along these axes, in the planner's unit of time."""
        ring = self._rings.get(axes)
        if ring is None:
            ring = self._rings[axes] = self.chip.ring(self.mesh, axes).scaled(self.chip.sending_rate)
        return ring

    @cached_property
    def _rings(self) -> dict[tuple[str, ...], Ring]:
        return {}

    def price(self, ring: Ring, traffic: Traffic, reduces: bool = False, times: int = 1) -> float:
        """Return the cost of a collective that runs `times` times.

        Args:
            ring: the links between its devices.
            traffic: the bytes and hops of each algorithm.
            reduces: whether it is a reduction.
            times: how many times it runs in one call; more than once in a loop.
        """
        if not self.exposes_hops:
            exposed = 1 / COMBINED_REDUCTIONS if reduces and times == 1 else 1
            traffic = tuple([algorithm._replace(hops=exposed if algorithm.hops else 0) for algorithm in traffic[:1]])
        return times * ring.time(traffic)

    def flop(self, dtype: DType) -> float:
        """Return the cost of one flop of a matrix product of this dtype."""
        return self.chip.sending_rate / self.chip.product_rate(dtype)

    @cached_property
    def memory_byte(self) -> float:
        """The cost of moving one byte between a chip and its memory."""
        return self.chip.sending_rate / (self.chip.memory_bandwidth * self.chip.memory_fraction)


def reshard_cost(
    before: State,
    after: State,
    unsharded_bytes: float,
    axis: str,
    replicated_as_partial: bool,
    costs: Costs,
    times: int,
) -> float:
    """Return the cost of resharding a value along one axis, `times` times.

    Args:
        before: the current state of the value.
        after: the required state.
        unsharded_bytes: the bytes of the value per device if it is not sharded along this axis.
        axis: the axis.
        replicated_as_partial: whether a replicated value may become a term of a sum.
        costs: the cost model.
        times: how many times it is resharded in one call.
    """
    if before == after or (before == REPLICATED and isinstance(after, int)):
        return 0.0
    if after == PARTIAL_SUM and (before == REPLICATED or isinstance(before, int)):
        return times * TO_PARTIAL if replicated_as_partial else FORBIDDEN
    if after == PARTIAL_MAX and before == REPLICATED:
        return times * TO_PARTIAL if replicated_as_partial else FORBIDDEN
    if before == REPLICATED or not (after == REPLICATED or isinstance(after, int)):
        return FORBIDDEN
    count, ring = costs.mesh.shape[axis], costs.ring(axis)
    if isinstance(before, int):
        # An all-gather and a slice have the hops of an all-to-all and send more bytes, so they are no alternative here.
        collective = all_gather if after == REPLICATED else all_to_all
        return costs.price(ring, collective(unsharded_bytes / count, count), times=times)
    collective = all_reduce if after == REPLICATED else reduce_scatter
    return costs.price(ring, collective(unsharded_bytes, count), reduces=True, times=times)


@final
@dataclass(frozen=True)
class JointGather:
    """The costs of gathering a value along several axes, depending on its state along one of them.

    An all-gather along several axes sends the entire value over the links of all of them. So the costs along single
    axes, each with the shards of the others, do not add up to it.

    Attributes:
        sharded: the cost along the other axes if the value stays sharded along this axis.
        whole: the cost along the other axes if the value is not sharded along this axis.
        joint: the cost of one gather along all axes.
    """

    sharded: float
    whole: float
    joint: float


def joint_gather(unsharded_bytes: float, axis: str, others: tuple[str, ...], costs: Costs, times: int) -> JointGather:
    """Return the costs of gathering a value along an axis and others.

    Args:
        unsharded_bytes: the bytes of the value per device if it is sharded along the other axes only.
        axis: the axis.
        others: the other axes along which the value is gathered.
        costs: the cost model.
        times: how many times it is gathered in one call.
    """
    count, shards = costs.mesh.shape[axis], costs.mesh.extent(others)
    ring, joint_ring = costs.ring(*others), costs.ring(axis, *others)
    return JointGather(
        costs.price(ring, all_gather(unsharded_bytes / count, shards), times=times),
        costs.price(ring, all_gather(unsharded_bytes, shards), times=times),
        costs.price(joint_ring, all_gather(unsharded_bytes / count, count * shards), times=times),
    )


def compute_cost(equation: Equation, split: float, costs: Costs) -> float:
    """Return the compute cost of an equation on one device if `split` devices share the work."""
    op, types = equation.op, [value.type for value in equation.inputs]
    accessed = op.fused_bytes(types, [value.type for value in equation.outputs])
    flops = op.flops(*types)
    return ((costs.flop(types[0].dtype) * flops if flops else 0.0) + costs.memory_byte * accessed) / split
