"""What a choice costs, in bytes that one device could have sent in the same time.

Communication is counted by the ring model: over n devices, gathering or scattering V whole bytes sends V(n−1)/n,
reducing twice that, exchanging V(n−1)/n². Every collective also costs a fixed latency. Compute is counted so that work
that is cut beats work that is repeated.
"""

from dataclasses import dataclass, replace
from typing import final

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation
from shardwise.compiler.ops.aggregate import ArgExtreme
from shardwise.compiler.ops.reduce import Reduction
from shardwise.compiler.ops.shape import Movement
from shardwise.compiler.ops.sort import TopK
from shardwise.compiler.propagate.candidates import PARTIAL_SUM, REPLICATED, State

FORBIDDEN = float("inf")


@final
@dataclass(frozen=True)
class Hardware:
    """Link bytes that one device could send in the time of: one flop, one byte of memory traffic, one collective.

    A reduction waits less than other collectives: XLA combines those over the same devices into one, and the sums of a
    training step (gradients, loss) are all of that kind.
    """

    flop: float
    memory_byte: float
    collective: float
    reduction: float


# Virtual devices share one memory: a collective is a copy and a rendezvous.
CPU = Hardware(flop=1e-3, memory_byte=0.03, collective=20_000, reduction=200)


def reshard_cost(
    before: State, after: State, whole_bytes: float, count: int, adopts: bool, hardware: Hardware
) -> float:
    """From one state to another along one axis of `count` devices, of a value of `whole_bytes` along it."""
    if before == after:
        return 0.0
    if count == 1:  # nothing moves; but what cannot become a term of a sum still cannot
        hardware = replace(hardware, collective=0.0, reduction=0.0)
    ring = whole_bytes * (count - 1) / count
    if before == REPLICATED:
        if isinstance(after, int):
            return 0.0
        return 0.0 if after == PARTIAL_SUM and adopts else FORBIDDEN
    if isinstance(before, int):
        if after == REPLICATED:
            return ring + hardware.collective
        if after == PARTIAL_SUM and adopts:  # gathered, and then a term of the sum
            return ring + hardware.collective
        return ring / count + hardware.collective if isinstance(after, int) else FORBIDDEN
    if after == REPLICATED:
        return 2 * ring + hardware.reduction
    return ring + hardware.reduction if isinstance(after, int) else FORBIDDEN


def compute_cost(equation: Equation, split: float, hardware: Hardware) -> float:
    """The work of one equation on one device, where `split` devices share it."""
    op = equation.op
    results = sum(value.type.nbytes for value in equation.outputs)
    operands = sum(value.type.nbytes for value in equation.inputs)
    if op.multiplies:
        rule = factor_rule(op, tuple(value.type for value in equation.inputs))
        flops = 2.0
        for size in rule.sizes:
            flops *= size
        return (hardware.flop * flops + hardware.memory_byte * (operands + results)) / split
    if isinstance(op, (Reduction, ArgExtreme, TopK)):
        return hardware.memory_byte * operands / split
    if isinstance(op, Movement):
        return hardware.memory_byte * results / 5 / split
    return hardware.memory_byte * results / split
