"""advise: find the single constraint that makes a plan cheapest, by planning again with each candidate.

The candidates pin values around the costliest collective to layouts that could make it unnecessary: its operand to the
layout that the consumer needs, or to the same axes along another dim; the results of the consumer and the operands of
the producer to such layouts too. The program is planned again with each of them. The advice names the cheapest and what
it saves, or says that none is cheaper.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reason import Conversion, Exchange, is_inserted
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

MAX_REPLANS = 12
_TIME_RATIO = 0.99  # a plan must be at least one percent faster to be advised
_MEMORY_RATIO = 1.05  # and may need only little more memory: gathering everything once would always be fast


@final
@dataclass(frozen=True)
class Advice:
    """The constraint that makes a plan cheapest.

    Attributes:
        tried: the number of candidates for which the program was planned again.
        layout: the layout to pin the value to; None if no candidate is cheaper.
        what: the value, in words.
        outputs: which outputs would have another sharding, in words.
        seconds: the estimated time of a call with the constraint.
        sent: the bytes that each device would send with the constraint.
        before_seconds: the estimated time of a call without it.
        before_sent: the bytes that each device sends without it.
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
        candidates = f"{self.tried} constraint{'' if self.tried == 1 else 's'} tried"
        if self.layout is None:
            return f"none of {candidates} around the costliest collective makes the plan cheaper"
        changes = f"; {', '.join(self.outputs)}" if self.outputs else ""
        return (
            f"pinning {self.what} to {self.layout} with lax.with_sharding_constraint would save "
            f"{human_seconds(self.before_seconds - self.seconds)} of {human_seconds(self.before_seconds)} and "
            f"{human_bytes(self.before_sent - self.sent)} of {human_bytes(self.before_sent)} sent per device "
            f"(best of {candidates}){changes}"
        )


def advise(stages: Stages, chip: Chip, meshes: Sequence[AbstractMesh]) -> Advice:
    """Return the best single constraint, with its layout in the axes of one of the user's meshes."""
    sharded, local, donated = stages.sharded, stages.local, stages.module.aliases
    inserted = [equation for equation in local.collectives() if is_inserted(equation.reason)]
    if not inserted:
        return Advice(0)
    now = timeline(local, chip, donated=donated)
    seconds, sent = _total_seconds(now), local.sent
    costliest = max(inserted, key=lambda e: (_collective_seconds(e, local, chip), local.times[e] * local.bytes_sent(e)))
    limit = replan_limit(sharded, 2, MAX_REPLANS)
    best, tried = Advice(0), 0
    for value, layout in _candidates(stages, costliest):
        user_layout = coarsen_to_first(layout, meshes, sharded.mesh)
        if user_layout is None:
            continue  # it shards along a part of a user's axis, which a constraint cannot name
        if tried == limit:
            break
        tried += 1
        replanned = replan_with_pin(sharded, value, layout, stages.plan.chip)
        after = timeline(replanned, chip, donated=donated)
        bound = best.seconds if best.layout else _TIME_RATIO * seconds
        is_cheaper = _total_seconds(after) < bound and replanned.sent < sent
        if is_cheaper and after.peak_bytes <= _MEMORY_RATIO * now.peak_bytes:
            outputs = [
                f"output {number} would then have sharding {new.layout}"
                for number, (old, new) in enumerate(zip(local.outputs, replanned.outputs, strict=True))
                if old.layout != new.layout
            ]
            what = _describe_value(sharded, value)
            best = Advice(0, user_layout, what, tuple(outputs), _total_seconds(after), replanned.sent, seconds, sent)
    return replace(best, tried=tried)


def _collective_seconds(equation: Equation, local: LocalProgram, chip: Chip) -> float:
    axes = collective_axes(equation.op)  # type: ignore[arg-type]
    return local.times[equation] * chip.collective_time(equation.op.name, local.bytes_sent(equation), local.mesh, axes)


def _candidates(stages: Stages, costliest: Equation) -> Iterator[tuple[Value, Layout]]:
    """Yield values around a collective with layouts that could avoid it; likelier ones first, each once."""
    sharded, choices = stages.sharded, stages.plan.choices
    axes = collective_axes(costliest.op)  # type: ignore[arg-type]
    layouts = dict(zip(sharded.program.inputs, [pin.layout for pin in sharded.in_pins], strict=True))
    producers: dict[Value, Equation] = {}
    for equation, choice in choices.items():
        layouts.update(zip(equation.outputs, choice.results, strict=True))
        producers.update(dict.fromkeys(equation.outputs, equation))
    values, consumers = _moved_values(costliest, choices)
    near = [value for consumer in consumers for value in consumer.outputs]
    near += [value for consumer in consumers for value in consumer.inputs if value not in values]
    near += [operand for value in values if value in producers for operand in producers[value].inputs]
    pins = [
        (value, layout) for value in values for layout in _layouts_with(value, layouts.get(value), axes, sharded.mesh)
    ]
    if isinstance(costliest.reason, Conversion):
        pins.append((costliest.reason.value, Layout(costliest.reason.after.dims)))
    for value in near:
        pins += [(value, layout) for layout in _layouts_with(value, layouts.get(value), axes, sharded.mesh)]
    seen = set()
    for value, layout in pins:
        if value not in sharded.free and layouts.get(value) != layout and (value, layout) not in seen:
            seen.add((value, layout))
            yield value, layout


def _moved_values(costliest: Equation, choices: Mapping[Equation, Choice]) -> tuple[list[Value], list[Equation]]:
    """Return the values that a collective moves, and the equations that need it.

    If an op exchanges data between shards by its own rule, these are the op's operands.
    """
    same_source = [equation for equation in choices if equation.source == costliest.source]
    reason = costliest.reason
    if isinstance(reason, Conversion):
        return [reason.value], [equation for equation in same_source if reason.value in equation.inputs]
    consumers = [e for e in same_source if isinstance(reason, Exchange) and e.op.name == reason.site.op]
    return list(dict.fromkeys(value for consumer in consumers for value in consumer.inputs)), consumers


def _layouts_with(value: Value, layout: Layout | None, axes: tuple[str, ...], mesh: AbstractMesh) -> Iterator[Layout]:
    """Yield the layout with `axes` moved to each dim that they shard evenly, and without them."""
    if layout is None:
        return
    dims = tuple(tuple(axis for axis in dim if axis not in axes) for dim in layout.dims)
    for dim, size in enumerate(value.type.shape):
        moved = (*dims[dim], *axes)
        if size % mesh.extent(moved) == 0 and moved != layout.dims[dim]:
            yield Layout(dims).with_dim(dim, moved)
    yield Layout(dims)


def _describe_value(sharded: ShardedProgram, value: Value) -> str:
    """Return a value in words: the name of an input, or the op that computes it."""
    for number, program_input in enumerate(sharded.program.inputs):
        if program_input is value:
            return sharded.in_pins[number].reason or f"input {number}"
    for equation in sharded.program.walk():
        if value in equation.outputs:
            return f"the {value.type} result of {equation.op.name} at {equation.source}"
        if any(value in inner.inputs for inner in equation.op.programs):
            return f"the {value.type} input of the body of {equation.op.name} at {equation.source}"
    raise AssertionError("the value is not part of this program")


def _total_seconds(steps: Timeline) -> float:
    return sum(step.seconds for step in steps.steps)
