"""predict: predict the time and the memory of an MPMD pipeline on hardware that need not be present.

Each program of each stage is planned and simulated for the mesh of its rank. Their times are those of the schedule's
tasks, which `simulate_schedule` then places in time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.traffic import one_hop
from shardwise.explain.text import human_bytes, human_seconds
from shardwise.parallel.mpmd.predict_stage import StagePrediction
from shardwise.parallel.mpmd.simulate import GATHER, REDUCE, TaskTimes, simulate_schedule
from shardwise.parallel.mpmd.simulate import Simulation as ScheduleRun
from shardwise.parallel.mpmd.task import BACKWARD, FORWARD, INPUT, WEIGHT
from shardwise.parallel.mpmd.task_schedule import TaskSchedule


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
        for rank, tasks in enumerate(schedule.ranks):
            stages = [stage for number, stage in enumerate(self.stages) if rank in schedule.ranks_of_stage[number]]
            held = sum(
                (1 + optimizer_copies) * stage.param_bytes + stage.gathered_bytes + stage.gradient_bytes
                for stage in stages
            )
            live: dict[tuple[int, int], int] = {}  # the bytes of each stage and microbatch
            peak = 0
            for task in tasks:
                stage, key = self.stages[task.stage], (task.stage, task.microbatch)
                if task.kind == FORWARD:
                    live[key] = stage.activation_bytes
                peak = max(peak, sum(live.values()) + stage.temporary_bytes[task.kind])
                if task.kind == INPUT:
                    live[key] = stage.awaiting_bytes
                elif task.ends_activations:
                    del live[key]
            peaks.append(held + peak)
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


def predict_pipeline(
    schedule: TaskSchedule, stages: Sequence[StagePrediction], sizes: Sequence[int], chip: Chip
) -> PipelineSimulation:
    """Predict the run of a schedule.

    Args:
        schedule: the schedule.
        stages: the predicted programs of each stage on its first rank.
        sizes: the number of devices of each stage.
        chip: the hardware.
    """
    forward, first, second, gather, reduce = (
        [stage.programs[kind].seconds if kind in stage.programs else 0.0 for stage in stages]
        for kind in (FORWARD, INPUT if schedule.splits_backward else BACKWARD, WEIGHT, GATHER, REDUCE)
    )
    transfer = _transfer_time(schedule, stages, sizes, chip)
    times = TaskTimes(forward, first, second, transfer, gather, reduce)
    return PipelineSimulation(chip, tuple(stages), simulate_schedule(schedule, times))


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
