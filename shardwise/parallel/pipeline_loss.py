"""The mean loss of the microbatches of a pipeline, whose gradients one loop computes together with its value.

Runs inside a manual region over the axis of the pipeline: it is the program of one device.
"""

from collections.abc import Callable
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.transformations.custom import custom_vjp
from shardwise.api.transformations.differentiate import vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import StrategyError
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.pipeline_forward import Stage, run_forward, schedule_scope, take
from shardwise.parallel.pipeline_schedule import Schedule
from shardwise.parallel.pipeline_training import Collected, run_both
from shardwise.typing import ArrayLike

Loss = Callable[..., Any]
Embed = Callable[..., Any]


@final
class _LossEnds:
    """The ends of a pipeline in training: `embed` before the first stage, `loss` after the last one.

    The first stage collects the cotangents of the batch and, with `embed`, of `shared`; the last one the loss, and the
    cotangents of `shared` and of the targets.
    """

    def __init__(
        self, loss: Loss, embed: Embed | None, count: int, batch: object, targets: object, shared: tuple[Any, ...]
    ):
        self.loss, self.embed, self.count, self.batch, self.targets = loss, embed, count, batch, targets
        self.shared_floats, self.shared_others, self.join_shared = split_floats(shared)

    def first(self, microbatch: ArrayLike) -> Any:
        rows = take(self.batch, microbatch)
        if self.embed is None:
            return rows
        return self.embed(rows, *self.join_shared(self.shared_floats, self.shared_others))

    def pull_back_first(self, microbatch: ArrayLike, cotangent: list[Any]) -> Collected:
        if (embed := self.embed) is None:
            return Collected([], cotangent)
        rows, others, join = split_floats(take(self.batch, microbatch))

        def embed_floats(rows: list[Any], shared: list[Any]) -> list[Any]:
            return split_floats(embed(join(rows, others), *self.join_shared(shared, self.shared_others)))[0]

        batch_ct, shared_ct = vjp(embed_floats, rows, self.shared_floats)[1](cotangent)
        return Collected(shared_ct, batch_ct)

    def last(self, microbatch: ArrayLike, y: object) -> tuple[list[Any], Collected]:
        y_floats, y_others, join_y = split_floats(y)
        rows, others, join = split_floats(take(self.targets, microbatch))

        def loss(y_floats: list[Any], rows: list[Any], shared: list[Any]) -> Array:
            arguments = join_y(y_floats, y_others), join(rows, others)
            return self.loss(*arguments, *self.join_shared(shared, self.shared_others)) / self.count

        value, pull_back = vjp(loss, y_floats, rows, self.shared_floats)
        y_ct, targets_ct, shared_ct = pull_back(jnp.ones_like(value))
        return y_ct, Collected([value, *shared_ct], targets_ct)


def loss_by_schedule(
    stage: Stage,
    schedule: Schedule,
    axis: str,
    loss: Loss,
    embed: Embed | None,
    arguments: tuple[Any, Any, Any, tuple[Any, ...]],
) -> Array:
    """Return the mean loss of the microbatches on the last device, and zero on the others.

    Where it is differentiated, one loop computes its value and all derivatives.

    Args:
        stage: the function of one stage.
        schedule: the schedule.
        axis: the name of the mesh axis.
        loss: a function of the results of a microbatch, of its targets and of `shared`; its result is a scalar.
        embed: a function from a microbatch and `shared` to the input of the first stage; None if it is the microbatch.
        arguments: the parameters of this device's stages, stacked along dim 0 by chunk; the microbatches and their
            targets, stacked along dim 0; `shared`, further arguments of `loss` and `embed`.
    """
    floats, others, join = split_floats(arguments)

    @custom_vjp
    def run(floats: list[Any], others: list[Any]) -> Array:
        params, batch, targets, shared = join(floats, others)
        inputs = embed_all(embed, batch, shared)
        value = mean_loss(loss, run_forward(stage, schedule, axis, params, inputs), targets, shared)
        return jnp.where(lax.axis_index(axis) == schedule.devices - 1, value, jnp.zeros_like(value))

    def run_with_gradients(floats: list[Any], others: list[Any]) -> tuple[Array, list[Array]]:
        params, *rest = join(floats, others)
        totals = run_both(stage, schedule, axis, params, _LossEnds(loss, embed, schedule.microbatches, *rest))
        value, *shared_ct = totals.last.summed
        if embed is not None:
            shared_ct = [one + other for one, other in zip(shared_ct, totals.first.summed, strict=True)]
        return value, [*totals.params, *totals.first.stacked, *totals.last.stacked, *shared_ct]

    def pull_back(gradients: list[Array], cotangent: Array) -> tuple[list[Array], None]:
        return [(cotangent * x).astype(x.dtype) for x in gradients], None

    run.defvjp(run_with_gradients, pull_back)
    with schedule_scope(schedule, axis):
        return run(floats, others)


def scalar_loss(loss: Loss) -> Loss:
    """Return a loss whose result is checked.

    Raises:
        StrategyError: when called, if the result is not a scalar.
    """

    def checked(*args: object) -> Any:
        value = loss(*args)
        if shape := jnp.shape(value):
            raise StrategyError(
                f"pipeline: the loss of a microbatch must be a scalar, not an array of shape {shape}: reduce it, for "
                "example with `.mean()`."
            )
        return value

    return checked


def embed_all(embed: Embed | None, batch: object, shared: tuple[Any, ...]) -> Any:
    """Return the inputs of the first stage for microbatches that are stacked along dim 0."""
    return batch if embed is None else lax.map(lambda rows: embed(rows, *shared), batch)


def mean_loss(loss: Loss, outputs: object, targets: object, shared: tuple[Any, ...]) -> Array:
    """Return the mean of the losses of microbatches that are stacked along dim 0."""
    return lax.map(lambda pair: loss(*pair, *shared), (outputs, targets)).mean()
