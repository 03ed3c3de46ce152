"""The cost model of the planner. The unit is the time in which a device sends one byte over its fast links.

Communication costs follow the ring model: over n devices, an all-gather or reduce-scatter of a value of V bytes sends
V(n−1)/n per device, an all-reduce twice that, an all-to-all V(n−1)/n². Each byte costs more over slow links, and every
collective has a fixed latency. Compute costs make sharded work cheaper than replicated work. All figures are those of
the chip (`hardware.py`).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from shardwise.base.caches import registered_cache
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ops.control.region_boundary import Stack
from shardwise.compiler.ops.indexing.sort import TopK
from shardwise.compiler.ops.reduce.argminmax import ArgExtremum
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.shape.movement import MovementOp
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.propagate.candidates import PARTIAL_SUM, REPLICATED, State
from shardwise.compiler.shardings.mesh import AbstractMesh

FORBIDDEN = float("inf")
TO_PARTIAL = (
    1.0  # a replicated or sharded value becomes a term of a sum: sums are reduced before, if that costs the same
)
COMBINED_REDUCTIONS = 50  # the number of reductions that XLA combines into one, which share its latency


@final
@dataclass(frozen=True)
class LinkCost:
    """The costs of communication between the devices along some axes.

    A collective costs the latency of one hop: further hops overlap with other work. A reduction costs less, because
    XLA combines reductions over the same devices, such as those of the gradients of a training step. Inside a loop
    there are few to combine, so a reduction costs as much as a collective.

    Attributes:
        byte: the cost of sending one byte.
        collective: the latency of a collective.
        reduction: the latency of a reduction.
    """

    byte: float
    collective: float
    reduction: float

    @property
    def in_loop(self) -> "LinkCost":
        """The costs inside a loop."""
        return LinkCost(self.byte, self.collective, self.collective)


NO_LINK = LinkCost(1.0, 0.0, 0.0)  # along axes of size one


@final
@dataclass(frozen=True)
class Costs:
    """The costs on a mesh of such chips.

    Attributes:
        counts_hops: whether a collective costs the latency of all its hops, as in the timeline.
    """

    chip: Chip
    mesh: AbstractMesh
    counts_hops: bool = False

    def link_cost(self, *axes: str) -> LinkCost:
        """Return the costs of communication along these axes."""
        return _link_cost(self.chip, self.mesh, axes, self.counts_hops)

    def flop(self, dtype: DType) -> float:
        """Return the cost of one flop of a matrix product of this dtype."""
        return self.chip.sending_rate / (self.chip.flops(dtype) * self.chip.product_fraction)

    @cached_property
    def memory_byte(self) -> float:
        """The cost of moving one byte between a chip and its memory."""
        return self.chip.sending_rate / (self.chip.memory_bandwidth * self.chip.memory_fraction)


@registered_cache(maxsize=4096)
def _link_cost(chip: Chip, mesh: AbstractMesh, axes: tuple[str, ...], counts_hops: bool) -> LinkCost:
    if mesh.extent(axes) == 1:
        return NO_LINK
    latency = chip.link(mesh, axes).latency * chip.sending_rate
    byte = chip.sending_rate / chip.ring_bandwidth(mesh, axes)
    if counts_hops:
        hops = mesh.extent(axes) - 1
        return LinkCost(byte, latency * hops, latency * hops)
    return LinkCost(byte, latency, latency / COMBINED_REDUCTIONS)


def reshard_cost(
    before: State, after: State, unsharded_bytes: float, count: int, replicated_as_partial: bool, link: LinkCost
) -> float:
    """Return the cost of resharding a value along one axis.

    Args:
        before: the state of the value.
        after: the state that is needed.
        unsharded_bytes: the bytes of the value per device if it is not sharded along this axis.
        count: the size of the axis.
        replicated_as_partial: whether a replicated value may become a term of a sum.
        link: the costs of communication along the axis.
    """
    if before == after:
        return 0.0
    ring = unsharded_bytes * (count - 1) / count * link.byte
    if before == REPLICATED:
        if isinstance(after, int):
            return 0.0
        return TO_PARTIAL if after == PARTIAL_SUM and replicated_as_partial else FORBIDDEN
    if isinstance(before, int):
        if after == REPLICATED:
            return ring + link.collective
        if after == PARTIAL_SUM and replicated_as_partial:
            return TO_PARTIAL
        return ring / count + link.collective if isinstance(after, int) else FORBIDDEN
    if after == REPLICATED:
        return 2 * ring + link.reduction
    return ring + link.reduction if isinstance(after, int) else FORBIDDEN


def compute_cost(equation: Equation, split: float, costs: Costs) -> float:
    """Return the compute cost of an equation on one device if `split` devices share the work."""
    op = equation.op
    results = sum(value.type.nbytes for value in equation.outputs)
    operands = sum(value.type.nbytes for value in equation.inputs)
    if op.is_contraction:
        flops = op.flops(*(value.type for value in equation.inputs))
        flop_cost = costs.flop(equation.inputs[0].type.dtype)
        return (flop_cost * flops + costs.memory_byte * (operands + results)) / split
    if isinstance(op, (Reduce, ArgExtremum, TopK, Stack)):  # a loop writes one slice of a stack per iteration
        return costs.memory_byte * operands / split
    if isinstance(op, MovementOp):
        return costs.memory_byte * results / 5 / split
    return costs.memory_byte * results / split
