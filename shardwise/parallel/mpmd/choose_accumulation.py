"""choose_accumulation: choose whether a stage gathers parameters and reduces gradients once per step.

Loops over the microbatches of the stage, planned within the memory limit, propose shardings. The programs of the stage
are planned with each proposal, and the fastest that fits in memory is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from shardwise.compiler.plan.chip import Chip
from shardwise.execute.request import memory_limit_of
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.accumulation import Accumulation, plan_accumulation
from shardwise.parallel.mpmd.predict_stage import StagePrediction
from shardwise.parallel.mpmd.simulate import GATHER, REDUCE
from shardwise.parallel.mpmd.stage_programs import StagePrograms

NEGLIGIBLE = 0.01  # the share of exposed communication below which gathering and reducing once does not pay


@final
@dataclass(frozen=True)
class StageMemory:
    """What the devices of a stage hold besides the arrays of one microbatch.

    Attributes:
        microbatches: the number of microbatches that the stage runs in a step.
        live_activations: the largest number of microbatches whose residuals the rank holds at once.
        stages: the number of stages on the rank.
        optimizer_copies: the number of arrays like the parameters that the optimizer keeps.
        chip: the hardware.
    """

    microbatches: int
    live_activations: int
    stages: int
    optimizer_copies: int
    chip: Chip

    @property
    def limit(self) -> int | None:
        """The most bytes that a device may hold; None for no limit."""
        return memory_limit_of(self.chip)

    def excess(self, prediction: StagePrediction) -> int:
        """Return by how many bytes the rank exceeds the limit if all its stages are like this one."""
        held = (1 + self.optimizer_copies) * prediction.param_bytes
        held += prediction.gathered_bytes + prediction.gradient_bytes
        activations = self.live_activations * max(prediction.activation_bytes, prediction.awaiting_bytes)
        held = self.stages * held + activations + max(prediction.temporary_bytes.values())
        return 0 if self.limit is None else max(0, held - self.limit)

    def seconds(self, prediction: StagePrediction) -> float:
        """Return the time of all programs of the stage in a step."""
        return sum(
            program.seconds * (1 if kind in (GATHER, REDUCE) else self.microbatches)
            for kind, program in prediction.programs.items()
        )


def choose_accumulation(
    build: Callable[[Accumulation], StagePrograms],
    predict: Callable[[StagePrograms], StagePrediction],
    unchanged: Accumulation,
    memory: StageMemory,
) -> Accumulation:
    """Choose the shardings of a stage's parameters and sums of gradients during a step.

    Args:
        build: returns the programs of the stage.
        predict: predicts them.
        unchanged: the shardings of the parameters.
        memory: the memory of the devices that other arrays need.
    """
    stage = build(unchanged)
    if memory.microbatches == 1 or stage.mesh.size == 1:
        return unchanged
    first = predict(stage)
    passes = first.programs.values()
    if sum(run.plan.exposed_seconds for run in passes) < NEGLIGIBLE * sum(run.seconds for run in passes):
        return unchanged
    limit = memory.limit
    if limit is not None:
        limit -= (memory.live_activations - 1) * max(first.activation_bytes, first.awaiting_bytes)
        limit = limit // memory.stages - memory.optimizer_copies * first.param_bytes
    types = stage.types
    arguments = (types.params, types.x, types.targets, split_floats(types.result)[0])

    def loop(pins_params: bool) -> Accumulation:
        return plan_accumulation(
            stage.tasks, arguments, memory.microbatches, stage.mesh, limit, memory.chip, pins_params
        )

    both = loop(pins_params=False)
    proposals = [unchanged, both, Accumulation(both.params, unchanged.sums)]
    # Without gathered parameters, more memory is left for sums.
    sums = both.sums if limit is None or both.params == unchanged.params else loop(pins_params=True).sums
    proposals.append(Accumulation(unchanged.params, sums))

    def cost(accumulation: Accumulation) -> tuple[float, float]:
        prediction = first if accumulation == unchanged else predict(build(accumulation))
        return memory.excess(prediction), memory.seconds(prediction)

    return min(dict.fromkeys(proposals), key=cost)
