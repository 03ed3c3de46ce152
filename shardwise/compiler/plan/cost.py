"""What a choice costs, in bytes that one device could have sent over its fastest links in the same time.

Communication is counted by the ring model: over n devices, gathering or scattering V whole bytes sends V(n−1)/n,
reducing twice that, exchanging V(n−1)/n². Over a slower link each byte counts for more. Every collective also costs a
fixed latency. Compute is counted so that work that is cut beats work that is repeated. All figures are the chip's: see
`hardware.py`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from shardwise.caches import registered_cache
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ops.control.region_boundary import Stack
from shardwise.compiler.ops.indexing.sort import TopK
from shardwise.compiler.ops.reduce.argminmax import ArgExtremum
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.shape.movement import MovementOp
from shardwise.compiler.plan.hardware import Chip
from shardwise.compiler.propagate.candidates import PARTIAL_SUM, REPLICATED, State
from shardwise.compiler.shardings.mesh import AbstractMesh

FORBIDDEN = float("inf")
COMBINED_REDUCTIONS = 50  # reductions of a program that XLA combines into one: they share its latency


@final
@dataclass(frozen=True)
class LinkCost:
    """Between the devices along some axes: what one byte costs, one collective, and one reduction.

    A collective waits for one hop: what more it waits, others can use. A reduction waits less: XLA combines those over
    the same devices, and the sums of a training step (gradients, loss) are all of that kind. In a loop there are few.
    """

    byte: float
    collective: float
    reduction: float

    @property
    def in_loop(self) -> "LinkCost":
        """The same inside a loop."""
        return LinkCost(self.byte, self.collective, self.collective)


NO_LINK = LinkCost(1.0, 0.0, 0.0)  # along axes of one device


@final
@dataclass(frozen=True)
class Costs:
    """What the devices of a mesh cost, if they are such chips."""

    chip: Chip
    mesh: AbstractMesh

    def link_cost(self, *axes: str) -> LinkCost:
        """Between the devices along these axes."""
        return _link_cost(self.chip, self.mesh, axes)

    def flop(self, dtype: DType) -> float:
        """One flop of products of this dtype."""
        return self.chip.fast_link.bandwidth / self.chip.flops(dtype)

    @cached_property
    def memory_byte(self) -> float:
        """One byte between a chip and its memory."""
        return self.chip.fast_link.bandwidth / self.chip.memory_bandwidth


@registered_cache(maxsize=4096)
def _link_cost(chip: Chip, mesh: AbstractMesh, axes: tuple[str, ...]) -> LinkCost:
    if mesh.extent(axes) == 1:
        return NO_LINK
    link = chip.link(mesh, axes)
    latency = link.latency * chip.fast_link.bandwidth
    return LinkCost(chip.fast_link.bandwidth / link.bandwidth, latency, latency / COMBINED_REDUCTIONS)


def reshard_cost(
    before: State, after: State, whole_bytes: float, count: int, replicated_as_partial: bool, link: LinkCost
) -> float:
    """From one state to another along one axis of `count` devices, of a value of `whole_bytes` along it."""
    if before == after:
        return 0.0
    ring = whole_bytes * (count - 1) / count * link.byte
    if before == REPLICATED:
        if isinstance(after, int):
            return 0.0
        return 0.0 if after == PARTIAL_SUM and replicated_as_partial else FORBIDDEN
    if isinstance(before, int):
        if after == REPLICATED:
            return ring + link.collective
        if after == PARTIAL_SUM and replicated_as_partial:  # gathered, and then a term of the sum
            return ring + link.collective
        return ring / count + link.collective if isinstance(after, int) else FORBIDDEN
    if after == REPLICATED:
        return 2 * ring + link.reduction
    return ring + link.reduction if isinstance(after, int) else FORBIDDEN


def compute_cost(equation: Equation, split: float, costs: Costs) -> float:
    """The work of one equation on one device, where `split` devices share it."""
    op = equation.op
    results = sum(value.type.nbytes for value in equation.outputs)
    operands = sum(value.type.nbytes for value in equation.inputs)
    if op.is_contraction:
        rule = factor_rule(op, tuple(value.type for value in equation.inputs))
        flops = 2.0
        for size in rule.sizes:
            flops *= size
        worth = costs.flop(equation.inputs[0].type.dtype)
        return (worth * flops + costs.memory_byte * (operands + results)) / split
    if isinstance(op, (Reduce, ArgExtremum, TopK, Stack)):  # a loop writes one slice of a stack each turn
        return costs.memory_byte * operands / split
    if isinstance(op, MovementOp):
        return costs.memory_byte * results / 5 / split
    return costs.memory_byte * results / split
