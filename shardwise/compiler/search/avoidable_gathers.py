"""Avoidable gathers: large all-gathers that the user did not request and that one constraint would avoid.

An all-gather is *avoidable* if all of this holds:
- The partitioner inserted it, and not because of a constraint or the layout of an output.
- Each device receives more than 1 MiB.
- Afterwards the devices along its axes repeat the same work: no consumer of the value is sharded along these axes, even
  behind elementwise ops and ops that only move elements. (A weight that is gathered for a sharded batch does not
  qualify: the batch is sharded along these axes.)
- All these consumers could be sharded evenly along another dim of the value. Resharding the value to that dim is an
  all-to-all, which sends a fraction of the bytes of the all-gather.
- The program, replanned with the value pinned to that sharding, sends fewer bytes in total. (It may not: the new
  sharding can leave partial sums to reduce, or results that must be gathered.)
The planner does not try such a layout, because no pin puts these axes on that dim.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reason import Reshard
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.search.replan import replan_with_pin
from shardwise.compiler.search.search import Move, Search, bytes_sent, move_limit
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import coarsen_to_first

LARGE = 1 << 20  # bytes that each device receives
MAX_MOVES = 4  # the most plans to compute when checking whether a pin helps

Uses = Mapping[Value, Sequence[tuple[Equation, int]]]  # the equations that read each value, with the operand index


@final
@dataclass(frozen=True)
class AvoidableGather:
    """An all-gather that a constraint would avoid.

    Attributes:
        gather: the all-gather, in the local program.
        consumer: the first equation whose work the devices repeat.
        layout: the layout to pin the value to.
        sent: the bytes that each device sends for the all-gather.
        saved: the bytes by which each device's total traffic would shrink.
    """

    gather: Equation
    consumer: Equation
    layout: Layout
    sent: float
    saved: float

    def __str__(self) -> str:
        return (
            f"{self.consumer.op.name} at {self.consumer.source} is computed redundantly after an all-gather to "
            f"{self.gather.outputs[0].type} per device: {self.gather.reason}. Each device sends "
            f"{self.sent / 2**20:.1f} MiB. To shard the work and send {self.saved / 2**20:.1f} MiB less per device, "
            f"pin the value to {self.layout} with lax.with_sharding_constraint. See shardwise.explain."
        )


def avoidable_gathers(
    problem: LayoutProblem, plan: LayoutPlan, local: LocalProgram, meshes: Sequence[AbstractMesh]
) -> list[AvoidableGather]:
    """Return the avoidable gathers of a program, largest first. Layouts are in the axes of one of the user's meshes."""
    large = [
        equation
        for equation in local.program.walk()
        if isinstance(equation.op, AllGather)
        and isinstance(equation.reason, Reshard)
        and equation.outputs[0].type.nbytes > LARGE
    ]
    if not large:
        return []
    uses: dict[Value, list[tuple[Equation, int]]] = {}
    for equation in plan.choices:
        for index, value in enumerate(equation.inputs):
            uses.setdefault(value, []).append((equation, index))
    avoidable: list[AvoidableGather] = []
    limit = move_limit(len(problem.unfolded.equations), 1, MAX_MOVES)
    search: Search[tuple[Equation, Layout], LocalProgram, float] = Search(bytes_sent, local.sent, limit)
    for gather in sorted(large, key=lambda gather: -local.times[gather] * local.bytes_sent(gather)):
        trial = search.first(_moves(gather, uses, problem, plan, meshes))
        if trial is not None:
            consumer, layout = trial.change
            sent = local.times[gather] * local.bytes_sent(gather)
            avoidable.append(AvoidableGather(gather, consumer, layout, sent, local.sent - trial.cost))
    return avoidable


def _moves(
    gather: Equation, uses: Uses, problem: LayoutProblem, plan: LayoutPlan, meshes: Sequence[AbstractMesh]
) -> Iterator[Move[tuple[Equation, Layout], LocalProgram]]:
    """Yield pins that could avoid a gather, with the equation whose work they shard and the layout in users' axes."""
    for consumer, value, layout in _candidate_pins(gather, uses, problem, plan):
        user_layout = coarsen_to_first(layout, meshes, problem.mesh)
        if user_layout is None:
            continue  # it uses a sub-axis, which a constraint cannot name
        yield Move(
            (consumer, user_layout),
            lambda value=value, layout=layout: replan_with_pin(problem, value, layout, plan.chip).local,  # type: ignore[misc]
        )


def _candidate_pins(
    gather: Equation, uses: Uses, problem: LayoutProblem, plan: LayoutPlan
) -> Iterator[tuple[Equation, Value, Layout]]:
    """Yield pins that would shard the work after a gather, as (first equation of that work, value, layout)."""
    reason, op = gather.reason, gather.op
    assert isinstance(reason, Reshard) and isinstance(op, AllGather)
    consumers = [
        (equation, number)
        for equation, number in uses.get(reason.value, ())
        if equation.source == gather.source and plan.choices[equation].operands[number] == reason.after
    ]
    if not consumers or reason.value in problem.program.outputs:
        return
    dims = [
        dim
        for dim, size in enumerate(gather.inputs[0].type.shape)
        if dim != op.dim and not reason.after.dims[dim] and size % op.count == 0
    ]
    consumer, shardable = _shardable_dims(consumers, uses, plan, op.axes, dims)
    if consumer is not None:
        yield from ((consumer, reason.value, reason.after.with_dim(dim, op.axes)) for dim in sorted(shardable))


def _shardable_dims(
    consumers: Sequence[tuple[Equation, int]],
    uses: Uses,
    plan: LayoutPlan,
    axes: tuple[str, ...],
    dims: Sequence[int],
) -> tuple[Equation | None, set[int]]:
    """Return the dims of a value along which all work on it could be sharded, and the first equation of that work.

    Elementwise ops and ops that only move elements do not count as work: their consumers do. If any of the work is
    sharded along `axes` already, or a constraint or region boundary is in between, there is nothing to shard.
    """
    worker: Equation | None = None
    shardable = set(dims)
    pending = [(equation, number, {dim: dim for dim in dims}) for equation, number in consumers]
    visited: set[tuple[Equation, int]] = set()
    while pending:
        equation, number, moved_dims = pending.pop()  # `moved_dims`: where the dims are in this operand
        if (equation, number) in visited:
            continue
        visited.add((equation, number))
        choice = plan.choices[equation]
        used_axes = {axis for layout in (*choice.operands, *choice.results) for axis in layout.axes}
        if equation.op.constraint or equation.op.is_boundary or used_axes & set(axes):
            return None, set()
        rule = factor_rule(equation.op, tuple(value.type for value in equation.inputs))
        factors = {dim: rule.operands[number][moved] for dim, moved in moved_dims.items()}
        shardable -= {
            dim
            for dim, dim_factors in factors.items()
            if len(dim_factors) != 1 or dim_factors[0] in rule.need_replication or dim_factors[0] in rule.exchange
        }
        if not (equation.op.only_moves or equation.op.is_elementwise):
            worker = worker or equation
            continue
        for value, result in zip(equation.outputs, rule.results, strict=True):
            result_dims = {dim: result.index(mine) for dim, mine in factors.items() if mine in result}
            shardable &= set(result_dims)
            pending += [(user, user_number, result_dims) for user, user_number in uses.get(value, ())]
    return worker, shardable
