"""Pipeline parallelism: a sequence of stages on the devices along a mesh axis.

`pipeline` returns a `Pipeline`, a function of the stages' parameters and a batch. Called from `jit`, it opens a manual
region over its axis alone; inside a `shard_map` that is manual over the axis, it runs in that region.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import lax, tree_util
from shardwise.api.jit import jit
from shardwise.api.transformations.remat import checkpoint
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import StrategyError
from shardwise.parallel.pipeline_forward import Stage, run_forward
from shardwise.parallel.pipeline_loss import Embed, Loss, embed_all, loss_by_schedule, mean_loss, scalar_loss
from shardwise.parallel.pipeline_outputs import outputs_by_schedule
from shardwise.parallel.pipeline_region import (
    call_in_region,
    cast_to_activation,
    cast_to_varying,
    check_equal_rows,
    join_rows,
    split_rows,
    varying_axes,
)
from shardwise.parallel.pipeline_schedule import Schedule, check_schedule, pipeline_schedule


def pipeline(
    stage: Stage,
    microbatches: int,
    axis: str,
    schedule: str = "gpipe",
    *,
    mesh: Mesh | AbstractMesh | None = None,
    chunks: int = 1,
    remat: bool = True,
) -> "Pipeline":
    """Run a sequence of stages as a pipeline over a mesh axis: each device along it has the parameters of its stages.

    A batch is divided into microbatches, which pass from device to device. The result and its derivatives are those of
    the stages applied one after the other. `docs/pipeline.md` compares the schedules.

    Args:
        stage: a function `(params, x)` of the parameters of one stage and a microbatch, both pytrees. Its result has
            the types of `x`.
        microbatches: the number of microbatches. Microbatch `k` of `m` has the rows `k`, `k + m`, … of the batch.
        axis: the name of the mesh axis.
        schedule: "gpipe": all forward passes, then all backward passes. "1f1b": the backward pass of a microbatch
            starts as soon as its forward pass has ended. "interleaved": the same with several stages on each device.
        mesh: the mesh; by default the current one, or that of the `shard_map` around the call.
        chunks: the number of stages on each device, for "interleaved".
        remat: whether backward passes compute stages again from their inputs; else "gpipe" stores all residuals. The
            other schedules always compute them again.

    Returns:
        A `Pipeline`: a function `(stage_params, batch)` that returns the result of the last stage for the whole batch.
        Leaves of `stage_params` have a leading dim of stages, sharded over `axis`; with chunks, two: `leaf[c, d]` is
        stage `c·p + d` of a mesh axis of size `p`, and the second dim is sharded over `axis`.

    Raises:
        StrategyError: if an argument is not valid; when called, if sizes do not fit: stages, microbatches, or a result
            of `stage` of another type than its input.

    Example:
        >>> mesh = jax.make_mesh((4,), ("stage",))
        >>> weights = jax.device_put(jnp.full((4, 8, 8), 0.1), jax.NamedSharding(mesh, P("stage")))
        >>> run = jax.parallel.pipeline(lambda w, x: jnp.tanh(x @ w), 4, "stage", mesh=mesh)
        >>> jax.jit(run)(weights, jnp.ones((16, 8))).shape
        (16, 8)
    """
    check_schedule(schedule, microbatches, chunks)
    if not callable(stage):
        raise StrategyError(f"pipeline: stage must be a function of parameters and a microbatch, not {stage!r}")
    if not remat and schedule != "gpipe":
        raise StrategyError(
            f"pipeline: schedule {schedule!r} stores the inputs of stages only, and always computes stages again: "
            "leave remat out, or use schedule='gpipe'."
        )
    return Pipeline(stage, microbatches, axis, schedule, mesh, chunks, remat)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Pipeline:
    """Stages as a pipeline over a mesh axis; `pipeline` creates it. Call it with `(stage_params, batch)`.

    Attributes:
        stage: the function of one stage.
        microbatches: the number of microbatches.
        axis: the name of the mesh axis.
        name: the name of the schedule.
        mesh: the mesh, or None for the current one.
        chunks: the number of stages on each device.
        remat: whether "gpipe" computes stages again in the backward pass.
    """

    stage: Stage
    microbatches: int
    axis: str
    name: str
    mesh: Mesh | AbstractMesh | None
    chunks: int
    remat: bool

    def __repr__(self) -> str:
        name = getattr(self.stage, "__name__", repr(self.stage))
        return f"<pipeline of {name} over {self.axis!r}, {self.name}, {self.microbatches} microbatches>"

    def schedule(self, devices: int) -> Schedule:
        """Return the schedule on this number of devices; `print` draws it."""
        return pipeline_schedule(self.name, devices, self.microbatches, self.chunks)

    def __call__(self, stage_params: object, batch: object) -> Any:
        """Return the results of the last stage for a batch.

        Raises:
            StrategyError: if the sizes of the arguments do not fit the mesh axis or the microbatches, or if `stage`
                returns another type than it gets.
        """
        inputs = split_rows(batch, self.microbatches, "the batch")
        check_equal_rows(batch=inputs)
        return join_rows(self._stacked_outputs(stage_params, inputs))

    def with_loss(self, loss: Loss, embed: Embed | None = None) -> Callable[..., Any]:
        """Return a function `(stage_params, batch, targets, *shared)` that returns the mean loss of the microbatches.

        Its gradients are computed in the order of the schedule: with "1f1b" and "interleaved", a backward pass starts
        before all forward passes have ended, so that few microbatches are stored.

        Args:
            loss: a function `(outputs, targets, *shared)` of the results of one microbatch; it returns a scalar.
            embed: a function `(batch, *shared)` from one microbatch to the input of the first stage, such as token
                embedding; by default the microbatch is the input. The batch itself is on all devices.

        Raises:
            StrategyError: when called, in the cases of the pipeline itself, and if the loss is not a scalar.
        """

        checked = scalar_loss(loss)

        def mean_of_losses(stage_params: object, batch: object, targets: object, *shared: object) -> Array:
            rows = split_rows(batch, self.microbatches, "the batch")
            goals = split_rows(targets, self.microbatches, "the targets")
            check_equal_rows(batch=rows, targets=goals)
            if self.name == "gpipe":  # all results exist before the first backward pass
                shared = cast_to_varying(shared, varying_axes((rows, goals)))
                outputs = self._stacked_outputs(stage_params, embed_all(embed, rows, shared))
                return mean_loss(checkpoint(checked) if self.remat else checked, outputs, goals, shared)
            run = partial(self._device_loss, checked, embed)
            return call_in_region(self.axis, self.mesh, self.chunks, run, stage_params, (rows, goals, shared))

        return mean_of_losses

    @property
    def _traced_once(self) -> Stage:
        """The stage as a jitted function: its loops and their derivatives call it about ten times."""
        return jit(self.stage)

    def _stacked_outputs(self, stage_params: object, inputs: object) -> Any:
        """Return the results of the last stage for microbatches that are stacked along dim 0."""
        return call_in_region(self.axis, self.mesh, self.chunks, self._device_outputs, stage_params, (inputs,))

    def _device_outputs(self, devices: int, params: object, inputs: object) -> Any:
        """Return the results of the last stage on the last device, and zeros on the others."""
        stage = self._traced_once
        params, inputs, _ = cast_to_activation(stage, self.axis, None, params, inputs, ())
        if self.name == "gpipe":
            stage = checkpoint(stage) if self.remat else stage
            outputs = run_forward(stage, self.schedule(devices), self.axis, params, inputs)
        else:
            outputs = outputs_by_schedule(stage, self.schedule(devices), self.axis, params, inputs)
        is_last = lax.axis_index(self.axis) == devices - 1
        return tree_util.tree_map(lambda x: jnp.where(is_last, x, jnp.zeros_like(x)), outputs)

    def _device_loss(
        self,
        loss: Loss,
        embed: Embed | None,
        devices: int,
        params: object,
        batch: object,
        targets: object,
        shared: tuple[object, ...],
    ) -> Array:
        """Return the mean loss on the last device, and zero on the others."""
        stage = self._traced_once
        params, batch, shared = cast_to_activation(stage, self.axis, embed, params, batch, shared)
        targets, shared = cast_to_varying((targets, shared), varying_axes((batch, targets)))
        arguments = (params, batch, targets, shared)
        return loss_by_schedule(stage, self.schedule(devices), self.axis, loss, embed, arguments)
