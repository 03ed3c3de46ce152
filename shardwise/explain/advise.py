"""advise: find the constraint, and the argument layout, that make a plan cheapest, by replanning with each candidate.

The candidates pin values around the costliest collective to layouts that could make it unnecessary: its operand to the
layout that the consumer needs, or to the same axes on another dim; and the results of the consumer and the operands of
the producer to such layouts. The program is replanned with each candidate. The advice is the cheapest candidate and its
savings, or that none is cheaper.

For arguments, the candidates are the layouts that their consumers need, and layouts with the mesh axes of costly
collectives moved to other dims of the arguments whose layouts conflict there, costliest first. Arguments whose tree
paths end with the same key, such as a weight and its moments, change together.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.program import Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.reason import Conversion
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.report.origins import layout_origins
from shardwise.compiler.search.pins import inserted_collectives, layouts_with, pin_candidates
from shardwise.compiler.search.replan import replan_with_inputs, replan_with_pin
from shardwise.compiler.search.search import Move, Search, move_limit
from shardwise.compiler.search.time_objective import TimeObjective
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import coarsen_to_first
from shardwise.explain.end_groups import path_patterns
from shardwise.explain.text import human_bytes, human_seconds

MAX_MOVES = 12


@final
@dataclass(frozen=True)
class Advice:
    """The constraint, or the layout of arguments, that makes a plan cheapest.

    Attributes:
        tried: the number of candidates for which the program was replanned.
        layout: the layout to pin the value to; None if no candidate is cheaper.
        what: a description of the value or the arguments.
        old_layout: the current layout of the arguments; None if the advice is a constraint.
        outputs: a description of the outputs whose sharding would change.
        seconds: the estimated time of a call with the constraint.
        sent: the bytes that each device would send with the constraint.
        before_seconds: the estimated time of a call without it.
        before_sent: the bytes that each device sends without it.
        overlaps: whether the hardware overlaps communication with compute, which these times ignore.
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
    problem, local = stages.problem, stages.partitioned
    inserted = inserted_collectives(problem, local)
    if not inserted:
        return Advice(0)

    def moves() -> Iterator[Move[_Change, LocalProgram]]:
        costliest = max(inserted, key=lambda e: (local.total_seconds(e, chip), local.times[e] * local.bytes_sent(e)))
        for value, layout in pin_candidates(problem, stages.plan, costliest):
            user_layout = coarsen_to_first(layout, meshes, problem.mesh)
            if user_layout is not None:  # else it uses a sub-axis, which a constraint cannot name
                yield Move(
                    _Change(user_layout, _describe_value(problem, value)),
                    lambda value=value, layout=layout: (
                        replan_with_pin(  # type: ignore[misc]
                            problem, value, layout, stages.plan.chip
                        ).local
                    ),
                )

    return _best_advice(stages, chip, meshes, moves())


def advise_arguments(stages: Stages, chip: Chip, meshes: Sequence[AbstractMesh]) -> Advice:
    """Return the best alternative layout of an argument, or of arguments whose tree paths end with the same key."""
    problem = stages.problem

    def moves() -> Iterator[Move[_Change, LocalProgram]]:
        for arguments, axes, needed in _costly_arguments(stages, chip):
            value, old_layout = arguments[0].value, arguments[0].layout
            what = path_patterns([argument.name for argument in arguments])
            for layout in dict.fromkeys([*needed, *layouts_with(value, old_layout, axes, problem.mesh)]):
                user_layout, user_old = (coarsen_to_first(each, meshes, problem.mesh) for each in (layout, old_layout))
                if user_layout is not None and user_old is not None:
                    layouts = {argument.value: layout for argument in arguments}
                    yield Move(
                        _Change(user_layout, what, user_old),
                        lambda layouts=layouts: replan_with_inputs(problem, layouts, stages.plan.chip),  # type: ignore[misc]
                    )

    return _best_advice(stages, chip, meshes, moves())


class _Change(NamedTuple):
    """A constraint, or another layout of arguments, with its description for the advice."""

    layout: Layout
    what: str
    old_layout: Layout | None = None


def _best_advice(
    stages: Stages, chip: Chip, meshes: Sequence[AbstractMesh], moves: Iterator[Move[_Change, LocalProgram]]
) -> Advice:
    """Return the advice for the best of these moves."""
    local = stages.partitioned  # candidates are not scheduled either
    objective = TimeObjective(local, chip, stages.module.aliases)
    limit = move_limit(len(stages.problem.unfolded.equations), 2, MAX_MOVES)
    search: Search[_Change, LocalProgram, float] = Search(objective, objective.bound, limit)
    best = search.best(moves)
    if best is None:
        return Advice(search.tried)
    changed: dict[Layout, list[str]] = {}
    for name, old, new in zip(stages.problem.out_names, local.outputs, best.result.outputs, strict=True):
        if old.layout != new.layout:
            new_layout = coarsen_to_first(new.layout, meshes, best.result.mesh) or new.layout
            changed.setdefault(new_layout, []).append(name)
    return Advice(
        search.tried,
        *best.change,
        tuple(f"{path_patterns(names)} would then have sharding {layout}" for layout, names in changed.items()),
        best.cost,
        best.result.sent,
        objective.seconds,
        local.sent,
        chip.overlaps,
    )


@final
@dataclass(frozen=True)
class _Argument:
    """An argument with its name and current layout."""

    name: str
    value: Value
    layout: Layout

    @property
    def group(self) -> tuple[str, ArrayType, Layout]:
        """The last key of the tree path, the type and the layout. Arguments with equal groups change together."""
        keys = re.findall(r"\['[^']*'\]|\.\w+", self.name)
        return keys[-1] if keys else self.name, self.value.type, self.layout


def _costly_arguments(stages: Stages, chip: Chip) -> list[tuple[list[_Argument], tuple[str, ...], list[Layout]]]:
    """Return groups of arguments with mesh axes along which their layouts cause collectives.

    The last item lists the layouts that consumers need instead. Groups with the costliest reshards come first, because
    another layout is less likely to avoid reductions.
    """
    problem, local = stages.problem, stages.partitioned
    origins = layout_origins(problem, stages.plan)
    arguments: dict[str, _Argument] = {}  # pin name → argument
    for value, pin in zip(problem.program.inputs, problem.in_pins, strict=True):
        if pin.reason and not pin.open_dims:
            arguments[pin.reason] = _Argument(pin.reason, value, pin.layout)
    for equation in problem.program.equations:
        if equation.op.is_in_sharding:
            pin = problem.pinned[equation.inputs[0]]
            constraint = equation.op.describe(equation.source)
            arguments[constraint] = _Argument(pin.reason, equation.inputs[0], origins.pins[constraint])
    resharded = {argument.value: argument for argument in arguments.values()}
    costs: dict[tuple[tuple[str, ArrayType, Layout], tuple[str, ...]], list[float]] = {}  # reshards, reductions
    needed: dict[tuple[tuple[str, ArrayType, Layout], tuple[str, ...]], list[Layout]] = {}
    for equation in inserted_collectives(problem, local):
        axes = equation.op.communicates_along
        is_reduction = equation.op.reduces_across_devices
        groups = {arguments[pin].group for pin in origins.conflicting_pins(equation, axes) if pin in arguments}
        if isinstance(equation.reason, Conversion) and equation.reason.value in resharded:
            group = resharded[equation.reason.value].group
            groups.add(group)
            needed.setdefault((group, axes), []).append(Layout(equation.reason.after.dims))
        for group in groups:
            costs.setdefault((group, axes), [0.0, 0.0])[is_reduction] += local.total_seconds(equation, chip)
    members: dict[tuple[str, ArrayType, Layout], dict[Value, _Argument]] = {}
    for argument in arguments.values():
        members.setdefault(argument.group, {})[argument.value] = argument
    ranked = sorted(costs, key=lambda key: costs[key], reverse=True)
    return [(list(members[group].values()), axes, needed.get((group, axes), [])) for group, axes in ranked]


def _describe_value(problem: LayoutProblem, value: Value) -> str:
    """Describe a value: the name of an input, or the op that computes it."""
    for index, program_input in enumerate(problem.program.inputs):
        if program_input is value:
            return problem.in_pins[index].reason or f"input {index}"
    for equation in problem.program.walk():
        if value in equation.outputs:
            return f"the {value.type} result of {equation.op.name} at {equation.source}"
        if any(value in inner.inputs for inner in equation.op.programs):
            return f"the {value.type} input of the body of {equation.op.name} at {equation.source}"
    raise AssertionError("the value is not part of this program")
