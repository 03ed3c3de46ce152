"""avoidable: large gathers that nobody asked for and that a constraint would spare.

A gather is *avoidable* if all of this holds:
- the planner put it there, and not for a constraint or for the layout of an output;
- each device gets more than 1 MiB by it;
- afterwards the devices along its axes all do the same work: what takes the value cuts nothing along them, nor what
  takes it after ops that only move or map elements. (A weight that is gathered for a batch that is cut is not such a
  case: there the axes are at work.)
- all that could be cut along another of its dims, evenly: bringing the value there is an exchange, which sends a part
  of what the gather sends;
- planned again with the value pinned there, the program sends less: work that is cut so may leave terms of a sum, or
  results that somebody needs whole.
Such a layout is not tried by the planner, because no pin puts these axes on that dim: it follows the user.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ops.collective.collectives import AllGather
from shardwise.compiler.ops.control.region_boundary import BoundaryOp
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.shape.movement import MovementOp
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reason import Cause
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.report.replan import replan_limit, replan_with_pin
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import coarsen_to_first

LARGE = 1 << 20  # bytes that each device gets
TRIES = 4  # plans at most that are made to know whether a pin helps


@final
@dataclass(frozen=True)
class AvoidableGather:
    """A gather, what takes the value, the layout that would spare it; the bytes that a device sends for the gather, and
    those that the whole program would not send."""

    gather: Equation
    taker: Equation
    layout: Layout
    sent: float
    saved: float

    def __str__(self) -> str:
        return (
            f"{self.taker.op.name} at {self.taker.source} gathers a value of {self.gather.outputs[0].type} on each "
            f"device, and all of them then do the same work: {self.gather.reason}. Each device sends "
            f"{self.sent / 2**20:.1f} MiB. If the value is pinned to {self.layout} before, by "
            f"lax.with_sharding_constraint, the work is shared, and {self.saved / 2**20:.1f} MiB less are sent. See "
            "shardwise.explain."
        )


def avoidable_gathers(
    sharded: ShardedProgram, plan: LayoutPlan, local: LocalProgram, meshes: Sequence[AbstractMesh]
) -> list[AvoidableGather]:
    """Those of a program, the largest first. Layouts are said on one of the user's meshes."""
    large = [
        equation
        for equation in local.program.walk()
        if isinstance(equation.op, AllGather)
        and isinstance(equation.reason, Cause)
        and equation.outputs[0].type.nbytes > LARGE
    ]
    if not large:
        return []
    takers: dict[Value, list[tuple[Equation, int]]] = {}
    for equation in plan.choices:
        for place, value in enumerate(equation.inputs):
            takers.setdefault(value, []).append((equation, place))
    found: list[AvoidableGather] = []
    left = replan_limit(sharded, 1, TRIES)
    for gather in sorted(large, key=lambda gather: -local.times[gather] * local.bytes_sent(gather)):
        for taker, value, layout in _remedies(gather, takers, sharded, plan):
            said = coarsen_to_first(layout, meshes, local.mesh)
            if said is None:
                continue  # the user's meshes have no names for it
            if not left:
                return found
            left -= 1
            saved = local.sent - replan_with_pin(sharded, value, layout, plan.chip).sent
            if saved > 0:
                found.append(
                    AvoidableGather(gather, taker, said, local.times[gather] * local.bytes_sent(gather), saved)
                )
                break
    return found


def _remedies(
    gather: Equation,
    takers_of: Mapping[Value, Sequence[tuple[Equation, int]]],
    sharded: ShardedProgram,
    plan: LayoutPlan,
) -> Iterator[tuple[Equation, Value, Layout]]:
    """Layouts in which what follows a gather could be shared: of which value, and what would be shared first."""
    cause, op = gather.reason, gather.op
    assert isinstance(cause, Cause) and isinstance(op, AllGather)
    takers = [
        (equation, place)
        for equation, place in takers_of.get(cause.value, ())
        if equation.source == gather.source and plan.choices[equation].operands[place] == cause.after
    ]
    if not takers or cause.value in sharded.program.outputs:
        return
    dims = [
        dim
        for dim, size in enumerate(gather.inputs[0].type.shape)
        if dim != op.dim and not cause.after.dims[dim] and size % op.count == 0
    ]
    taker, fit = _shareable(takers, takers_of, plan, op.axes, dims)
    if taker is not None:
        yield from ((taker, cause.value, cause.after.with_dim(dim, op.axes)) for dim in sorted(fit))


def _shareable(
    takers: Sequence[tuple[Equation, int]],
    takers_of: Mapping[Value, Sequence[tuple[Equation, int]]],
    plan: LayoutPlan,
    axes: tuple[str, ...],
    dims: Sequence[int],
) -> tuple[Equation | None, set[int]]:
    """Where a value's takers all repeat along `axes` what they could share along dims: one that works, and these."""
    works: Equation | None = None
    fit = set(dims)
    waiting = [(equation, place, {dim: dim for dim in dims}) for equation, place in takers]
    seen: set[tuple[Equation, int]] = set()
    while waiting:
        equation, place, now = waiting.pop()  # `now`: where the dims are, after ops that moved them
        if (equation, place) in seen:
            continue
        seen.add((equation, place))
        choice = plan.choices[equation]
        at_work = {axis for layout in (*choice.operands, *choice.results) for axis in layout.axes}
        if isinstance(equation.op, (Constrain, BoundaryOp)) or at_work & set(axes):
            return None, set()
        rule = factor_rule(equation.op, tuple(value.type for value in equation.inputs))
        factors = {dim: rule.operands[place][at] for dim, at in now.items()}
        fit -= {
            dim
            for dim, mine in factors.items()
            if len(mine) != 1 or mine[0] in rule.need_replication or mine[0] in rule.exchange
        }
        if not isinstance(equation.op, (MovementOp, Elementwise)):
            works = works or equation
            continue
        for value, result in zip(equation.outputs, rule.results, strict=True):
            later = {dim: result.index(mine) for dim, mine in factors.items() if mine in result}
            fit &= set(later)
            waiting += [(after, at, later) for after, at in takers_of.get(value, ())]
    return works, fit
