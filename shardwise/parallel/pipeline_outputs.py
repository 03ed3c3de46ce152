"""The results of a pipeline, with a derivative in the order of its schedule.

Runs inside a manual region over the axis of the pipeline: it is the program of one device.
"""

from typing import Any, TypeVar, final

from shardwise.api.transformations.custom import custom_vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.pipeline_forward import Stage, run_forward, schedule_scope, take
from shardwise.parallel.pipeline_schedule import Schedule
from shardwise.parallel.pipeline_training import Collected, run_both
from shardwise.typing import ArrayLike

_T = TypeVar("_T")


@final
class _GivenCotangents:
    """The ends of a pipeline with given inputs and cotangents of its results; collects the cotangents of inputs."""

    def __init__(self, microbatches: object, cotangents: list[Array]):
        self.microbatches, self.cotangents = microbatches, cotangents

    def first(self, microbatch: ArrayLike) -> Any:
        return take(self.microbatches, microbatch)

    def pull_back_first(self, microbatch: ArrayLike, cotangent: list[Any]) -> Collected:
        return Collected([], cotangent)

    def last(self, microbatch: ArrayLike, y: object) -> tuple[list[Any], Collected]:
        return take(self.cotangents, microbatch), Collected([], [])


def outputs_by_schedule(stage: Stage, schedule: Schedule, axis: str, params: object, microbatches: _T) -> _T:
    """Return the results of the last stage, as `run_forward` does.

    The derivative stores no activations: it runs the forward passes again, in one loop with the backward passes.
    """
    floats, others, join = split_floats((params, microbatches))

    @custom_vjp
    def run(floats: list[Any], others: list[Any]) -> Any:
        return split_floats(run_forward(stage, schedule, axis, *join(floats, others)))[:2]

    def run_and_keep(floats: list[Any], others: list[Any]) -> Any:
        return run(floats, others), (floats, others)

    def pull_back(
        arguments: tuple[list[Array], list[Array]], cotangent: tuple[list[Array], list[Array]]
    ) -> tuple[list[Array], None]:
        params, microbatches = join(*arguments)
        totals = run_both(stage, schedule, axis, params, _GivenCotangents(microbatches, cotangent[0]))
        return [*totals.params, *totals.first.stacked], None

    run.defvjp(run_and_keep, pull_back)
    with schedule_scope(schedule, axis):
        y_floats, y_others = run(floats, others)
    return split_floats(microbatches)[2](y_floats, y_others)
