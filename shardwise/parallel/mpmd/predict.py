"""predict: predict the time and the memory of an MPMD pipeline on hardware that need not be present.

Each program of each stage is planned and simulated for the mesh of its rank. Their times are those of the schedule's
tasks, which `simulate_schedule` then places in time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

from shardwise import tree_util
from shardwise.base.config import config
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.traffic import one_hop
from shardwise.explain.simulate import Simulation
from shardwise.explain.text import human_bytes, human_seconds
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.array_types import device_bytes
from shardwise.parallel.mpmd.planned_program import plan_program
from shardwise.parallel.mpmd.simulate import GATHER, REDUCE, TaskTimes, simulate_schedule
from shardwise.parallel.mpmd.simulate import Simulation as ScheduleRun
from shardwise.parallel.mpmd.stage_programs import StagePrograms
from shardwise.parallel.mpmd.task import BACKWARD, FORWARD, INPUT, WEIGHT
from shardwise.parallel.mpmd.task_schedule import TaskSchedule


@final
@dataclass(frozen=True)
class StagePrediction:
    """The predicted programs of one stage on its rank.

    Attributes:
        programs: the simulation of each program by the kind of its tasks: `F`, and `B` or `I` and `W`. `gather` and
            `reduce` run once per step, if the parameters are gathered or the gradients reduced only once.
        param_bytes: the bytes of its parameters on each device.
        gathered_bytes: the bytes of the gathered parameters that a device holds besides these.
        gradient_bytes: the bytes of the sums of their gradients.
        activation_bytes: the bytes that a device holds for one microbatch between its forward and its backward pass.
        temporary_bytes: the most bytes that a program holds besides these.
        sent_bytes: the bytes of its result that a device sends to the next stage.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((8,), ("data",))
        >>> train = jax.parallel.mpmd_pipeline([lambda w, x: (x @ w).mean()], [mesh], 4)
        >>> w, x = (jax.ShapeDtypeStruct((rows, 4096), jnp.bfloat16) for rows in (4096, 1024))
        >>> train.simulate("h100")([w], x).stages[0].param_bytes  # a replicated weight
        33554432
    """

    programs: dict[str, Simulation]
    param_bytes: int
    gathered_bytes: int
    gradient_bytes: int
    activation_bytes: int
    temporary_bytes: int
    sent_bytes: int


@final
@dataclass(frozen=True)
class PipelineSimulation:
    """The predicted run of `MpmdPipeline.value_and_grad`. It prints as text.

    Attributes:
        chip: the hardware.
        stages: the predicted programs of each stage.
        run: the start and the end of each task.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((8,), ("data",))
        >>> train = jax.parallel.mpmd_pipeline([lambda w, x: (x @ w).mean()], [mesh], 4)
        >>> w, x = (jax.ShapeDtypeStruct((rows, 4096), jnp.bfloat16) for rows in (4096, 1024))
        >>> train.simulate("h100")([w], x).bubble
        0.0
    """

    chip: Chip
    stages: tuple[StagePrediction, ...]
    run: ScheduleRun

    @property
    def seconds(self) -> float:
        """The time until the last rank has finished."""
        return self.run.total

    @property
    def bubble(self) -> float:
        """The share of the time in which ranks run no task, the mean over ranks."""
        return self.run.bubble

    @property
    def flops(self) -> float:
        """The flops of all products on the devices of one rank, the mean over ranks, per device."""
        schedule = self.run.schedule
        tasks = [task for tasks in schedule.ranks for task in tasks]
        return sum(self.stages[task.stage].programs[task.kind].flops for task in tasks) / len(schedule.ranks)

    @property
    def utilization(self) -> float:
        """The flops of a device as a fraction of its peak flops."""
        return self.flops / (self.seconds * self.chip.bf16_flops) if self.seconds else 0.0

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """For each rank, an estimate of the bytes that a device holds, without the state of an optimizer."""
        return self.peak_bytes_with(optimizer_copies=0)

    def peak_bytes_with(self, optimizer_copies: int) -> tuple[int, ...]:
        """Return these bytes with the state of an optimizer that keeps so many arrays like the parameters."""
        schedule = self.run.schedule
        peaks = []
        for rank, live in enumerate(schedule.peak_activations):
            stages = [stage for number, stage in enumerate(self.stages) if rank in schedule.ranks_of_stage[number]]
            activations = live * max(stage.activation_bytes for stage in stages)
            held = sum(
                (1 + optimizer_copies) * stage.param_bytes + stage.gathered_bytes + stage.gradient_bytes
                for stage in stages
            )
            peaks.append(held + activations + max(stage.temporary_bytes for stage in stages))
        return tuple(peaks)

    @property
    def fits(self) -> bool:
        """Whether the devices of all ranks have as much memory."""
        return max(self.peak_bytes) <= self.chip.usable_memory

    def __str__(self) -> str:
        schedule = self.run.schedule
        lines = [
            f"{schedule.name} of {schedule.stages} stages on {len(schedule.ranks)} ranks of {self.chip.name}, "
            f"{schedule.microbatches} microbatches: {human_seconds(self.seconds)}, bubble {self.bubble:.1%}, "
            f"{100 * self.utilization:.1f}% of peak flops"
        ]
        for number, stage in enumerate(self.stages):
            times = ", ".join(f"{kind} {human_seconds(run.seconds)}" for kind, run in stage.programs.items())
            lines.append(f"  stage {number}: {times}; {human_bytes(stage.activation_bytes)} per microbatch")
        for rank, (idle, peak) in enumerate(zip(self.run.idle, self.peak_bytes, strict=True)):
            fits = "" if peak <= self.chip.usable_memory else " (does not fit)"
            lines.append(f"  rank {rank}: idle {human_seconds(idle)}; {human_bytes(peak)} per device{fits}")
        return "\n".join(lines)

    def write_trace(self, path: str | Path) -> None:
        """Write the tasks as a trace for Perfetto, one track per rank.

        Args:
            path: the file to write, in the JSON trace event format.
        """
        self.run.write_trace(path)


def predict_pipeline(schedule: TaskSchedule, programs: Sequence[StagePrograms], chip: Chip) -> PipelineSimulation:
    """Predict the run of a schedule.

    Args:
        schedule: the schedule.
        programs: the programs of each stage on its first rank.
        chip: the hardware.
    """
    splits = any(task.kind in (INPUT, WEIGHT) for tasks in schedule.ranks for task in tasks)
    stages: list[StagePrediction] = []
    known: dict[Any, StagePrediction] = {}  # most stages of a model are equal
    for stage in programs:
        with config.override("target_platform", chip.platform):
            program = stage.forward.trace(*stage.types[:3]).program
            shardings = [leaf.sharding for leaf in tree_util.tree_leaves(stage.types)]
            key = str(replace(program, name="")), tuple(shardings), stage.memory
            if key not in known:
                known[key] = _predict_stage(stage, splits, chip)
        stages.append(known[key])
    forward, first, second, gather, reduce = (
        [stage.programs[kind].seconds if kind in stage.programs else 0.0 for stage in stages]
        for kind in (FORWARD, INPUT if splits else BACKWARD, WEIGHT, GATHER, REDUCE)
    )
    transfer = _transfer_time(schedule, stages, [stage.mesh.size for stage in programs], chip)
    times = TaskTimes(forward, first, second, transfer, gather, reduce)
    return PipelineSimulation(chip, tuple(stages), simulate_schedule(schedule, times))


def _predict_stage(stage: StagePrograms, splits: bool, chip: Chip) -> StagePrediction:
    """Plan and simulate the programs of a stage."""
    _, x, targets, result = stage.types
    params, totals = stage.gathered_types, stage.sum_types
    forward = _simulate(stage.forward, (params, x, targets), chip)
    pull_back = forward.results[1]
    operands = (params, x, pull_back, split_floats(result)[0])
    activations = device_bytes((x, pull_back))
    if splits:
        halves = stage.halves(operands)
        leaves = [*tree_util.tree_leaves(operands), *halves.captured]
        first = _simulate(halves.first, (leaves,), chip)
        shared, kept = first.results[1], [leaves[index] for index in halves.kept]
        backward = {INPUT: first, WEIGHT: _simulate(halves.second, (totals, shared, kept), chip)}
        weights = len(tree_util.tree_leaves(params))
        activations = max(
            activations, device_bytes((shared, [leaves[index] for index in halves.kept if index >= weights]))
        )
    else:
        backward = {BACKWARD: _simulate(stage.backward, (*operands, totals), chip)}
    temporaries = [forward.temporary_bytes - device_bytes(forward.results)]
    temporaries += [program.temporary_bytes for program in backward.values()]
    gathered, once = 0, {}
    for kind, conversion, types in (
        (GATHER, stage.gather, tree_util.tree_leaves(stage.types.params)),
        (REDUCE, stage.reduce, totals),
    ):
        if conversion.function is not None:
            once[kind] = _simulate(conversion.function, ([types[index] for index in conversion.changes],), chip)
    if GATHER in once:
        gathered = device_bytes(once[GATHER].results)
    return StagePrediction(
        {kind: program.run for kind, program in {FORWARD: forward, **backward, **once}.items()},
        device_bytes(stage.types.params),
        gathered,
        device_bytes(totals),
        activations,
        max(0, *temporaries),
        device_bytes(result),
    )


@final
class _Program(NamedTuple):
    """A planned program.

    Attributes:
        run: its simulation.
        results: the types of its results, with the shardings that the planner chose.
        temporary_bytes: the most bytes that it holds besides its arguments.
    """

    run: Simulation
    results: Any
    temporary_bytes: int


def _simulate(function: Callable[..., Any], arguments: tuple[Any, ...], chip: Chip) -> _Program:
    """Plan and simulate a program."""
    prepared, results = plan_program(function, arguments, chip)
    run = Simulation(prepared.request, prepared.stages, chip)
    return _Program(run, results, run.peak_bytes - device_bytes(arguments))


def _transfer_time(
    schedule: TaskSchedule, stages: Sequence[StagePrediction], sizes: Sequence[int], chip: Chip
) -> float:
    """Return the longest time of a transfer between neighbouring ranks, whose devices are in the order of ranks."""
    times = [0.0]
    for number, stage in enumerate(stages[:-1]):
        first, second = (schedule.rank_of[each, 0] for each in (number, number + 1))
        if first != second:
            ring = chip.ring_of([first * sizes[number], second * sizes[number + 1]])
            times.append(ring.time(one_hop(stage.sent_bytes)))
    return max(times)
