"""advise: the single constraint that would make a plan cheaper, found by planning again with it.

Around the costliest collective some values are pinned to layouts that could make it unnecessary: its operand to what
takes it or to the same axes along another dim, and the results of what takes it, and what it was made of, to the layout
in which it was. Each is a whole plan of its own; the cheapest is told, with what it saves, and where none is cheaper
that is told too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reason import Cause, is_inserted
from shardwise.compiler.partition.reshard import collective_axes
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.hardware import Chip
from shardwise.compiler.plan.plan import Choice
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.report.replan import replan_limit, replan_with_pin
from shardwise.compiler.report.timeline import Timeline, timeline
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import coarsen_to_first
from shardwise.explain.text import human_bytes, human_seconds

TRIES = 12  # plans at most
_GAIN = 0.99  # what is not at least one percent cheaper is not worth a line
_MEMORY = 1.05  # nor what takes more memory: gathering once and for all is always cheap


@final
@dataclass(frozen=True)
class Advice:
    """What was found: the layout to pin, and the value as users know it; of the plan with it, time and bytes sent.

    `tried`: how many plans were made. Without a better one, `layout` is None. `outputs` says which results would lie
    elsewhere.
    """

    tried: int
    layout: Layout | None = None
    what: str = ""
    outputs: tuple[str, ...] = ()
    seconds: float = 0.0
    sent: float = 0.0
    before_seconds: float = 0.0
    before_sent: float = 0.0

    def __str__(self) -> str:
        if not self.tried:
            return ""
        plans = f"{self.tried} plan{'' if self.tried == 1 else 's'} with one more constraint"
        if self.layout is None:
            return f"none of {plans} around the costliest collective is cheaper"
        but = f"; {', '.join(self.outputs)}" if self.outputs else ""
        return (
            f"{self.what}, pinned to {self.layout} by with_sharding_constraint, would save "
            f"{human_seconds(self.before_seconds - self.seconds)} of {human_seconds(self.before_seconds)} and "
            f"{human_bytes(self.before_sent - self.sent)} of {human_bytes(self.before_sent)} sent "
            f"(the best of {plans}){but}"
        )


def advise(stages: Stages, chip: Chip, meshes: Sequence[AbstractMesh]) -> Advice:
    """The best single constraint, said on one of the user's meshes."""
    sharded, local, donated = stages.sharded, stages.local, stages.module.aliases
    inserted = [equation for equation in local.collectives() if is_inserted(equation.reason)]
    if not inserted:
        return Advice(0)
    now = timeline(local, chip, donated=donated)
    seconds, sent = _seconds(now), local.sent
    costliest = max(inserted, key=lambda e: (_time(e, local, chip), local.times[e] * local.bytes_sent(e)))
    bound = replan_limit(sharded, 2, TRIES)
    best, tried = Advice(0), 0
    for value, layout in _candidates(stages, costliest):
        said = coarsen_to_first(layout, meshes, sharded.mesh)
        if said is None:
            continue  # the user's meshes have no names for it
        if tried == bound:
            break
        tried += 1
        again = replan_with_pin(sharded, value, layout, stages.plan.chip)
        after = timeline(again, chip, donated=donated)
        better = _seconds(after) < (best.seconds if best.layout else _GAIN * seconds) and again.sent < sent
        if better and after.peak_bytes <= _MEMORY * now.peak_bytes:
            outputs = [
                f"output {number} would lie as {there.layout}"
                for number, (here, there) in enumerate(zip(local.outputs, again.outputs, strict=True))
                if here.layout != there.layout
            ]
            told = _told(sharded, value)
            best = Advice(0, said, told, tuple(outputs), _seconds(after), again.sent, seconds, sent)
    return replace(best, tried=tried)


def _time(equation: Equation, local: LocalProgram, chip: Chip) -> float:
    axes = collective_axes(equation.op)  # type: ignore[arg-type]
    return local.times[equation] * chip.collective_time(equation.op.name, local.bytes_sent(equation), local.mesh, axes)


def _candidates(stages: Stages, costliest: Equation) -> Iterator[tuple[Value, Layout]]:
    """Values around a collective, and layouts that could spare it; likelier ones first, none twice."""
    sharded, choices = stages.sharded, stages.plan.choices
    axes = collective_axes(costliest.op)  # type: ignore[arg-type]
    made = dict(zip(sharded.program.inputs, [pin.layout for pin in sharded.in_pins], strict=True))
    makers: dict[Value, Equation] = {}
    for equation, choice in choices.items():
        made.update(zip(equation.outputs, choice.results, strict=True))
        makers.update(dict.fromkeys(equation.outputs, equation))
    values, takers = _around(costliest, choices)
    near = [value for taker in takers for value in taker.outputs]
    near += [value for taker in takers for value in taker.inputs if value not in values]
    near += [operand for value in values if value in makers for operand in makers[value].inputs]
    wanted = [(value, layout) for value in values for layout in _moved(value, made.get(value), axes, sharded.mesh)]
    if isinstance(costliest.reason, Cause):
        wanted.append((costliest.reason.value, Layout(costliest.reason.after.dims)))
    for value in near:
        wanted += [(value, layout) for layout in _moved(value, made.get(value), axes, sharded.mesh)]
    seen = set()
    for value, layout in wanted:
        if value not in sharded.free and made.get(value) != layout and (value, layout) not in seen:
            seen.add((value, layout))
            yield value, layout


def _around(costliest: Equation, choices: Mapping[Equation, Choice]) -> tuple[list[Value], list[Equation]]:
    """The value that a collective moves, and the equations that need it so. One that an op makes of its own accord, to
    reach across cuts, moves that op's operands."""
    here = [equation for equation in choices if equation.source == costliest.source]
    cause = costliest.reason
    if isinstance(cause, Cause):
        return [cause.value], [equation for equation in here if cause.value in equation.inputs]
    takers = [equation for equation in here if cause.startswith(f"{equation.op.name} reaches across")]
    return list(dict.fromkeys(value for taker in takers for value in taker.inputs)), takers


def _moved(value: Value, layout: Layout | None, axes: tuple[str, ...], mesh: AbstractMesh) -> Iterator[Layout]:
    """The layout with these axes along each dim that they cut evenly, and nowhere."""
    if layout is None:
        return
    dims = tuple(tuple(axis for axis in dim if axis not in axes) for dim in layout.dims)
    for dim, size in enumerate(value.type.shape):
        cut = (*dims[dim], *axes)
        if size % mesh.extent(cut) == 0 and cut != layout.dims[dim]:
            yield Layout(dims).with_dim(dim, cut)
    yield Layout(dims)


def _told(sharded: ShardedProgram, value: Value) -> str:
    for number, given in enumerate(sharded.program.inputs):
        if given is value:
            return sharded.in_pins[number].reason or f"input {number}"
    for equation in sharded.program.walk():
        if value in equation.outputs:
            return f"the {value.type} that {equation.op.name} at {equation.source} gives"
        if any(value in inner.inputs for inner in equation.op.programs):
            return f"the {value.type} that {equation.op.name} at {equation.source} hands to its body"
    raise AssertionError("the value is not of this program")


def _seconds(found: Timeline) -> float:
    return sum(step.seconds for step in found.steps)
