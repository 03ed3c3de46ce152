"""The forward passes of a pipeline, as a loop over the forward ticks of its schedule.

All functions run inside a manual region over the axis of the pipeline: they are the program of one device. A device
that is idle in a tick computes on values that are not used, so that all devices run the same program, with the same
collectives along other mesh axes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax, tree_util
from shardwise.api.transformations.custom import custom_jvp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.report.idle import idle_scope
from shardwise.compiler.trace.provenance import named_scope, provenance
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.pipeline_schedule import FORWARD, Schedule
from shardwise.typing import ArrayLike

_T = TypeVar("_T")
Stage = Callable[[Any, Any], Any]  # a function of the parameters of a stage, and of a microbatch


@final
class UnitArrays(NamedTuple):
    """The units of one device in a sequence of ticks, as arrays with an element per tick.

    Attributes:
        active: whether the device has work; where it is idle, the other arrays hold zeros.
        microbatch: the number of the microbatch.
        chunk: the number of the chunk.
        slot: where the input of the stage is stored.
    """

    active: Array
    microbatch: Array
    chunk: Array
    slot: Array


def unit_arrays(schedule: Schedule, ticks: Sequence[int], axis: str) -> UnitArrays:
    """Return the units of this device in some ticks of the schedule."""
    fields = [
        [(1, u.microbatch, u.chunk, u.slot) if (u := row[tick]) else (0,) * 4 for tick in ticks]
        for row in schedule.table
    ]
    table = np.asarray(fields, np.int32).reshape(schedule.devices, len(ticks), 4)
    active, *numbers = jnp.moveaxis(jnp.asarray(table)[lax.axis_index(axis)], -1, 0)
    return UnitArrays(active != 0, *numbers)


def ticks_of(schedule: Schedule, kind: str) -> list[int]:
    """Return the numbers of the forward or backward ticks."""
    return [tick for tick, other in enumerate(schedule.kinds) if other == kind]


def run_forward(stage: Stage, schedule: Schedule, axis: str, params: object, microbatches: _T) -> _T:
    """Run the forward passes of all microbatches.

    Args:
        stage: the function of one stage.
        schedule: the schedule.
        axis: the name of the mesh axis.
        params: the parameters of this device's stages, stacked along dim 0 by chunk.
        microbatches: the inputs of the first stage, stacked along dim 0.

    Returns:
        The results of the last stage, stacked along dim 0. Only those of the last device are meaningful.
    """
    ticks = ticks_of(schedule, FORWARD)
    device = lax.axis_index(axis)
    single = schedule.chunks == 1
    # A loop over slices has a cheap derivative. With chunks, the microbatch of a tick is looked up instead.
    fed = tree_util.tree_map(lambda x: pad_rows(x, len(ticks) - len(x)), microbatches) if single else None

    def run_tick(received: _T, tick: tuple[UnitArrays, _T | None]) -> tuple[_T, _T]:
        unit, fresh = tick
        fresh = fresh if single else take(microbatches, unit.microbatch)
        x = select((device == 0) & (unit.chunk == 0), fresh, received)
        y = stage(*_gate_floats(unit.active, (chunk_params(params, schedule, unit), x)))
        return send(y, axis, schedule, +1), y

    start = tree_util.tree_map(lambda x: jnp.zeros_like(x[0]), microbatches)
    units = unit_arrays(schedule, ticks, axis)
    with schedule_scope(schedule, axis):
        _, results = lax.scan(run_tick, start, (units, fed))
    finished = [
        index for index, tick in enumerate(ticks) if (u := schedule.table[-1][tick]) and u.chunk == schedule.chunks - 1
    ]
    if single:
        return tree_util.tree_map(lambda x: x[finished[0] :], results)
    return tree_util.tree_map(lambda x: x[np.asarray(finished)], results)


def schedule_scope(schedule: Schedule, axis: str) -> AbstractContextManager[None]:
    """Return the scope of the loops over ticks, which tells reports about the bubble: both passes have the same.

    A function with its own derivative rules is called in this scope too, because the ops of the rules have the source
    of the call.
    """
    name = idle_scope("pipeline", schedule.name, axis, schedule.idle[0] // 2, schedule.ticks // 2)
    return nullcontext() if name in provenance.scope else named_scope(name)


def chunk_params(params: _T, schedule: Schedule, unit: UnitArrays) -> _T:
    """Return the parameters of a unit's stage."""
    if schedule.chunks == 1:
        return tree_util.tree_map(lambda x: x.reshape(x.shape[1:]), params)  # does not change in the loop
    return take(params, unit.chunk)


def send(x: _T, axis: str, schedule: Schedule, step: int) -> _T:
    """Send a value to the next device (step 1) or the previous one (step -1).

    With several chunks the devices form a ring; with one, nothing passes between the last and the first device.
    """
    count = schedule.devices
    pairs = [(source, (source + step) % count) for source in range(count)]
    if schedule.chunks == 1:
        pairs = [(source, target) for source, target in pairs if target == source + step]
    return lax.ppermute(x, axis, pairs)


def take(tree: _T, number: ArrayLike) -> _T:
    """Return element `number` along dim 0 of every leaf."""
    return tree_util.tree_map(lambda x: lax.dynamic_index_in_dim(x, number, keepdims=False), tree)


def select(condition: ArrayLike, tree: _T, other: _T) -> _T:
    """Return `tree` where a scalar condition holds, else `other`."""
    return tree_util.tree_map(lambda x, y: jnp.where(condition, x, y), tree, other)


def pad_rows(x: Array, count: int) -> Array:
    """Append `count` rows of zeros."""
    return jnp.pad(x, [(0, count)] + [(0, 0)] * (x.ndim - 1))


def _gate_floats(active: Array, tree: _T) -> _T:
    """Return `tree`, whose cotangents are zero unless `active`.

    An idle device computes on values that no microbatch has. There a derivative may be infinite or NaN, and so would be
    its product with a cotangent of zero.
    """
    floats, others, join = split_floats(tree)
    return join(_gate(active, floats), others)


@custom_jvp
def _gate(active: Array, floats: list[Array]) -> list[Array]:
    return floats


@_gate.defjvp
def _gate_jvp(
    primals: tuple[Array, list[Array]], tangents: tuple[Array, list[Array]]
) -> tuple[list[Array], list[Array]]:
    (active, floats), (_, tangent) = primals, tangents
    return _gate(active, floats), select(active, tangent, [jnp.zeros_like(x) for x in tangent])
