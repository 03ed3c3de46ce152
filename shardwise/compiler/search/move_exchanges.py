"""move_exchanges: shard a chain of ops along another dim if the ops exchange much data along the sharded dim.

A scan along a sharded dim, such as a linear recurrence, slices and pads that dim at every level, and each of these ops
exchanges data between the shards. Along another dim the entire chain is local, with one all-to-all before it and one
after it. `choose` does not find this, because its candidates shard only dims that the user's pins reach. Trying every
dim in every program would override the user's choices and take much longer, so this pass runs only if exchanges are a
large part of the communication.

Each move lets the axes shard one other dim, either instead of the exchanged dim or in addition to it. The first kind
moves the entire chain at once. `choose` cannot reach that plan, because it optimizes one axis at a time and no single
step towards it pays off. The second kind leaves parts of the chain where they are.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from shardwise.compiler.candidates.axis_seeds import Dim, DimMove
from shardwise.compiler.candidates.dim_groups import DimGroups, dim_groups
from shardwise.compiler.candidates.layout_problem import ProgramStructure, rebuild
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Value
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.reason import Conversion, Exchange
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.eliminate import IdentityCache
from shardwise.compiler.search.improve import fastest
from shardwise.compiler.search.search import Move, move_limit
from shardwise.compiler.shardings.layout import Layout, Pin

LARGE_SHARE = 0.2  # of the seconds of all collectives: from this share on, exchanges are worth a search
SMALL = 1 << 16  # bytes that each device exchanges per call: below this, replanning takes longer than it saves
MAX_MOVES = 4


def move_exchanges(program: PartitionedProgram, donated: Collection[int] = ()) -> PartitionedProgram:
    """Return the program with its costliest chain of exchanges sharded along another dim, if that is faster.

    Args:
        program: the program and its plan.
        donated: the inputs whose buffers are reused for outputs.
    """
    exchanging = _exchanging_operands(program)
    if not exchanging or not _exchange_much(program, exchanging):
        return program
    groups = dim_groups(program.problem.unfolded.equations)
    chain = _largest_chain(program, exchanging, groups)
    if chain is None:
        return program
    limit = move_limit(len(program.problem.unfolded.equations), 2, MAX_MOVES)
    return fastest(program, _moves(program, chain, groups), limit, donated)


@final
@dataclass(frozen=True)
class _Operand:
    """An operand whose sharded dim makes its op read elements of other shards.

    Attributes:
        value: the operand.
        dim: the dim.
        layout: the layout in which it is produced.
        bytes: its bytes, summed over all runs of the op.
    """

    value: Value
    dim: int
    layout: Layout
    bytes: float


def _exchanging_operands(program: PartitionedProgram) -> list[_Operand]:
    """Return the operands whose ops exchange data, or gather them because that is cheaper for one op alone.

    Operands sharded along Explicit axes are omitted, because types decide there.
    """
    problem, choices = program.problem, program.plan.choices
    explicit = set(problem.mesh.explicit_axes)
    layouts = {value: pin.layout for value, pin in problem.pinned.items()}
    operands = []
    for equation, choice in choices.items():
        rule = factor_rule(equation.op, tuple([value.type for value in equation.inputs]))
        if rule.exchange:
            runs = problem.unfolded.run_counts[equation]
            for value, dims in zip(equation.inputs, rule.operands, strict=True):
                layout = layouts.get(value)
                for dim, axes in enumerate(layout.dims if layout is not None else ()):
                    if axes and explicit.isdisjoint(axes) and not rule.exchange.isdisjoint(dims[dim]):
                        assert layout is not None
                        operands.append(_Operand(value, dim, layout, runs * value.type.nbytes))
        layouts.update(zip(equation.outputs, choice.results, strict=True))
    return operands


def _exchange_much(program: PartitionedProgram, operands: Sequence[_Operand]) -> bool:
    """Return whether exchanges, and gathers that replace them, are a large part of the communication."""
    local, chip = program.local, program.plan.chip
    gathered = {operand.value for operand in operands}
    exchanged = total = sent = 0.0
    for equation in local.collectives():
        seconds, reason = local.total_seconds(equation, chip), equation.reason
        total += seconds
        if isinstance(reason, Exchange) or (isinstance(reason, Conversion) and reason.value in gathered):
            exchanged += seconds
            sent += local.times[equation] * local.bytes_sent(equation)
    return sent >= SMALL and exchanged >= LARGE_SHARE * total


@final
@dataclass
class _Chain:
    """Ops that exchange data along one group of connected dims.

    Attributes:
        dim: a value and its dim in the group.
        axes: the mesh axes that shard the group.
        bytes: the bytes of all operands.
        others: for each other group that these axes can shard evenly, a dim in it, and the bytes of the operands
            that have a dim in it.
    """

    dim: Dim
    axes: dict[str, None] = field(default_factory=dict)
    bytes: float = 0.0
    others: dict[int, tuple[Dim, float]] = field(default_factory=dict)


def _largest_chain(program: PartitionedProgram, operands: Sequence[_Operand], groups: DimGroups) -> _Chain | None:
    """Return the chain with the most bytes; None if no other dim can be sharded."""
    chains: dict[int, _Chain] = {}
    for operand in operands:
        chain = chains.setdefault(groups.find(operand.value, operand.dim), _Chain((operand.value, operand.dim)))
        chain.axes.update(dict.fromkeys(operand.layout.dims[operand.dim]))
        chain.bytes += operand.bytes
    largest, chain = max(chains.items(), key=lambda item: item[1].bytes)
    extent = program.problem.mesh.extent(chain.axes)
    uneven = {largest}  # groups that are no target: they would be uneven, or are sharded already
    for operand in operands:
        if groups.find(operand.value, operand.dim) != largest:
            continue
        for dim, size in enumerate(operand.value.type.shape):
            group = groups.find(operand.value, dim)
            if size % extent or operand.layout.dims[dim]:
                uneven.add(group)
            first, covered = chain.others.get(group, ((operand.value, dim), 0.0))
            chain.others[group] = first, covered + operand.bytes
    for group in uneven:
        chain.others.pop(group, None)
    return chain if chain.others else None


def _moves(program: PartitionedProgram, chain: _Chain, groups: DimGroups) -> Iterator[Move[None, PartitionedProgram]]:
    """Yield the moves of a chain to other dims, beginning with the dims that most of its ops have."""
    problem, plan = program.problem, program.plan
    structure, tables = ProgramStructure(problem.unfolded, groups), IdentityCache()
    out_pins = [
        Pin(layout, reason=pin.reason if pin else "")
        for layout, pin in zip(plan.outputs, problem.out_pins, strict=True)
    ]

    def attempt(moves: frozenset[DimMove]) -> PartitionedProgram:
        moved = rebuild(problem, out_pins=out_pins, structure=structure, moves=moves)
        new_plan = choose(moved, plan.chip, tables)
        return PartitionedProgram(moved, new_plan, partition(moved, new_plan))

    ranked = sorted(chain.others.values(), key=lambda item: -item[1])
    for other, _ in ranked:
        for source in (chain.dim, None):
            moves = frozenset(DimMove(axis, source, other) for axis in chain.axes)
            yield Move(None, lambda moves=moves: attempt(moves))  # type: ignore[misc]
