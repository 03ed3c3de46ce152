"""advise: find the constraint, and the layout of an argument, that make a plan cheapest, by planning again with each.

The candidates pin values around the costliest collective to layouts that could make it unnecessary: its operand to the
layout that the consumer needs, or to the same axes along another dim; the results of the consumer and the operands of
the producer to such layouts too. The program is planned again with each of them. The advice names the cheapest and what
it saves, or says that none is cheaper.

For arguments, the candidates are the layouts that their consumers need, and those with the mesh axes of costly
collectives moved to other dims of the arguments whose layouts are in conflict there, the costliest first. Arguments
whose tree paths end with the same key, such as a weight and its moments, change together.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllReduce, ReduceScatter
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reason import Conversion
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.report.origins import layout_origins
from shardwise.compiler.report.pin_candidates import inserted_collectives, layouts_with, pin_candidates
from shardwise.compiler.report.replan import is_in_sharding, replan_limit, replan_with_inputs, replan_with_pin
from shardwise.compiler.report.timeline import timeline
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import coarsen_to_first
from shardwise.explain.end_groups import path_patterns
from shardwise.explain.text import human_bytes, human_seconds

MAX_REPLANS = 12
_TIME_RATIO = 0.99  # a plan must be at least one percent faster to be advised
_MEMORY_RATIO = 1.05  # and may need only little more memory: gathering everything once would always be fast


@final
@dataclass(frozen=True)
class Advice:
    """The constraint, or the layout of arguments, that makes a plan cheapest.

    Attributes:
        tried: the number of candidates for which the program was planned again.
        layout: the layout to pin the value to; None if no candidate is cheaper.
        what: the value or the arguments, in words.
        old_layout: the present layout of the arguments; None if the advice is a constraint.
        outputs: which outputs would have another sharding, in words.
        seconds: the estimated time of a call with the constraint.
        sent: the bytes that each device would send with the constraint.
        before_seconds: the estimated time of a call without it.
        before_sent: the bytes that each device sends without it.
        overlaps: whether the hardware overlaps communication with compute, which these times do not count.
    """

    tried: int
    layout: Layout | None = None
    what: str = ""
    old_layout: Layout | None = None
    outputs: tuple[str, ...] = ()
    seconds: float = 0.0
    sent: float = 0.0
    before_seconds: float = 0.0
    before_sent: float = 0.0
    overlaps: bool = False

    def __str__(self) -> str:
        if not self.tried:
            return ""
        candidates = f"{self.tried} constraint{'' if self.tried == 1 else 's'} tried"
        if self.layout is None:
            return f"none of {candidates} around the costliest collective makes the plan cheaper"
        without = " without overlap" if self.overlaps else ""
        saving = (
            f"would save {human_seconds(self.before_seconds - self.seconds)} of "
            f"{human_seconds(self.before_seconds)}{without} "
            f"and {human_bytes(self.before_sent - self.sent)} of {human_bytes(self.before_sent)} sent per device"
        )
        changes = f"; {', '.join(self.outputs)}" if self.outputs else ""
        if self.old_layout is not None:
            return (
                f"passing {self.what} in {self.layout} instead of {self.old_layout} {saving} (best of {self.tried} "
                f"other layouts of arguments tried){changes}"
            )
        return (
            f"pinning {self.what} to {self.layout} with lax.with_sharding_constraint {saving} (best of {candidates})"
            f"{changes}"
        )


def advise(stages: Stages, chip: Chip, meshes: Sequence[AbstractMesh]) -> Advice:
    """Return the best single constraint, with its layout in the axes of one of the user's meshes."""
    search = _Search(stages, chip, meshes)
    if not search.inserted:
        return Advice(0)
    costliest = max(search.inserted, key=lambda e: (search.seconds_of(e), search.sent_by(e)))
    limit = replan_limit(stages.sharded, 2, MAX_REPLANS)
    for value, layout in pin_candidates(stages.sharded, stages.plan, costliest):
        user_layout = coarsen_to_first(layout, meshes, stages.sharded.mesh)
        if user_layout is None:
            continue  # it shards along a part of a user's axis, which a constraint cannot name
        if search.tried == limit:
            break
        replanned = replan_with_pin(stages.sharded, value, layout, stages.plan.chip)
        search.add(replanned.local, user_layout, _describe_value(stages.sharded, value))
    return search.result()


def advise_arguments(stages: Stages, chip: Chip, meshes: Sequence[AbstractMesh]) -> Advice:
    """Return the best other layout of an argument, or of arguments whose tree paths end with the same key."""
    search, sharded = _Search(stages, chip, meshes), stages.sharded
    limit = replan_limit(sharded, 2, MAX_REPLANS)
    for arguments, axes, needed in _costly_arguments(search, sharded, stages):
        value, old_layout = arguments[0].value, arguments[0].layout
        what = path_patterns([argument.name for argument in arguments])
        for layout in dict.fromkeys([*needed, *layouts_with(value, old_layout, axes, sharded.mesh)]):
            user_layout, user_old = (coarsen_to_first(each, meshes, sharded.mesh) for each in (layout, old_layout))
            if user_layout is None or user_old is None:
                continue
            if search.tried == limit:
                return search.result()
            layouts = {argument.value: layout for argument in arguments}
            search.add(replan_with_inputs(sharded, layouts, stages.plan.chip), user_layout, what, user_old)
    return search.result()


@final
class _Search:
    """The present plan, and the best of the candidates that were tried so far.

    Times are compared without overlap: a collective that is hidden now may be exposed by the next change of a program.
    """

    def __init__(self, stages: Stages, chip: Chip, meshes: Sequence[AbstractMesh]):
        self.stages = stages
        self.chip = replace(chip, overlaps=False)
        self.overlaps = chip.overlaps
        self.meshes = meshes
        self.tried = 0
        self._best = Advice(0)
        local = stages.local
        self.inserted = inserted_collectives(stages.sharded, local)
        self._now = timeline(local, self.chip, donated=stages.module.aliases)

    def seconds_of(self, equation: Equation) -> float:
        """Return the estimated time of a collective, all runs together."""
        local = self.stages.local
        return local.times[equation] * local.collective_seconds(equation, self.chip)

    def sent_by(self, equation: Equation) -> float:
        """Return the bytes that each device sends for a collective, all runs together."""
        return self.stages.local.times[equation] * self.stages.local.bytes_sent(equation)

    def add(self, replanned: LocalProgram, layout: Layout, what: str, old_layout: Layout | None = None) -> None:
        """Compare a new plan with the best so far. `layout` and `what` describe the candidate, for the advice."""
        self.tried += 1
        local = self.stages.local
        seconds = self._now.seconds
        after = timeline(replanned, self.chip, donated=self.stages.module.aliases)
        bound = self._best.seconds if self._best.layout else _TIME_RATIO * seconds
        is_cheaper = after.seconds < bound and replanned.sent < local.sent
        if is_cheaper and after.peak_bytes <= _MEMORY_RATIO * self._now.peak_bytes:
            changed: dict[Layout, list[str]] = {}
            for name, old, new in zip(self.stages.sharded.out_names, local.outputs, replanned.outputs, strict=True):
                if old.layout != new.layout:
                    new_layout = coarsen_to_first(new.layout, self.meshes, replanned.mesh) or new.layout
                    changed.setdefault(new_layout, []).append(name)
            outputs = tuple(
                f"{path_patterns(names)} would then have sharding {new_layout}" for new_layout, names in changed.items()
            )
            self._best = Advice(
                0, layout, what, old_layout, outputs, after.seconds, replanned.sent, seconds, local.sent, self.overlaps
            )

    def result(self) -> Advice:
        return replace(self._best, tried=self.tried)


@final
@dataclass(frozen=True)
class _Argument:
    """An argument with its name and present layout."""

    name: str
    value: Value
    layout: Layout

    @property
    def group(self) -> tuple[str, ArrayType, Layout]:
        """The last key of the tree path, the type and the layout: arguments that change together have these equal."""
        keys = re.findall(r"\['[^']*'\]|\.\w+", self.name)
        return keys[-1] if keys else self.name, self.value.type, self.layout


def _costly_arguments(
    search: _Search, sharded: ShardedProgram, stages: Stages
) -> list[tuple[list[_Argument], tuple[str, ...], list[Layout]]]:
    """Return groups of arguments with mesh axes along which their layouts cause collectives.

    The last item lists the layouts that consumers need in place of theirs. Those with the costliest reshards come
    first, because another layout avoids reductions less often.
    """
    origins = layout_origins(sharded, stages.plan)
    arguments: dict[str, _Argument] = {}  # by the names of their pins
    for value, pin in zip(sharded.program.inputs, sharded.in_pins, strict=True):
        if pin.reason and not pin.open_dims:
            arguments[pin.reason] = _Argument(pin.reason, value, pin.layout)
    for equation in sharded.program.equations:
        if is_in_sharding(equation):
            pin = sharded.pinned[equation.inputs[0]]
            constraint = equation.op.describe(equation.source)  # type: ignore[attr-defined]
            arguments[constraint] = _Argument(pin.reason, equation.inputs[0], origins.pins[constraint])
    resharded = {argument.value: argument for argument in arguments.values()}
    costs: dict[tuple[tuple[str, ArrayType, Layout], tuple[str, ...]], list[float]] = {}  # of reshards, of reductions
    needed: dict[tuple[tuple[str, ArrayType, Layout], tuple[str, ...]], list[Layout]] = {}
    for equation in search.inserted:
        axes = equation.op.communicates_along
        is_reduction = isinstance(equation.op, (AllReduce, ReduceScatter))
        groups = {arguments[pin].group for pin in origins.conflicting_pins(equation, axes) if pin in arguments}
        if isinstance(equation.reason, Conversion) and equation.reason.value in resharded:
            group = resharded[equation.reason.value].group
            groups.add(group)
            needed.setdefault((group, axes), []).append(Layout(equation.reason.after.dims))
        for group in groups:
            costs.setdefault((group, axes), [0.0, 0.0])[is_reduction] += search.seconds_of(equation)
    members: dict[tuple[str, ArrayType, Layout], dict[Value, _Argument]] = {}
    for argument in arguments.values():
        members.setdefault(argument.group, {})[argument.value] = argument
    ranked = sorted(costs, key=lambda key: costs[key], reverse=True)
    return [(list(members[group].values()), axes, needed.get((group, axes), [])) for group, axes in ranked]


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
