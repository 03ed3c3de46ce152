"""Forward and backward passes of a pipeline in one loop, in the order of a schedule such as 1F1B.

A device stores the input of a stage from its forward pass to its backward pass, which computes the stage again. All
functions run inside a manual region over the axis of the pipeline: they are the program of one device. A device that
is idle in a tick computes on values that no microbatch has, and drops the results, which may be NaN.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, final

import shardwise.numpy as jnp
from shardwise import lax, tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.transformations.differentiate import vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.pipeline_forward import (
    Stage,
    UnitArrays,
    chunk_params,
    schedule_scope,
    select,
    send,
    take,
    unit_arrays,
)
from shardwise.parallel.pipeline_schedule import BACKWARD, FORWARD, Schedule
from shardwise.typing import ArrayLike

_T = TypeVar("_T")


@final
class Collected(NamedTuple):
    """Arrays from one end of a pipeline: `summed` over the microbatches, and `stacked`, one for each microbatch."""

    summed: list[Any]
    stacked: list[Any]


class Ends(Protocol):
    """The computations before the first stage and after the last one, and their derivatives."""

    def first(self, microbatch: ArrayLike) -> Any:
        """Return the input of the first stage."""
        ...

    def pull_back_first(self, microbatch: ArrayLike, cotangent: list[Array]) -> Collected:
        """Return the arrays to collect, from the cotangents of the floating-point leaves of the first stage's input."""
        ...

    def last(self, microbatch: ArrayLike, y: object) -> tuple[list[Array], Collected]:
        """Return the cotangents of the floating-point leaves of the last stage's result, and the arrays to collect."""
        ...


@final
class Totals(NamedTuple):
    """The results of a loop on one device.

    Attributes:
        params: the cotangents of the floating-point leaves of the parameters, stacked by chunk.
        first: the arrays that the first stage collects; zeros on all devices but the first one.
        last: the arrays that the last stage collects; zeros on all devices but the last one.
    """

    params: list[Any]
    first: Collected
    last: Collected


@final
class _State(NamedTuple):
    """The state that a device carries from tick to tick.

    Attributes:
        activation: the value that the previous device sent.
        cotangent: the cotangents that the next device sent.
        stored: the inputs of stages whose backward pass is to come, stacked by slot.
        totals: the results so far.
    """

    activation: Any
    cotangent: list[Any]
    stored: Any
    totals: Totals


def run_both(stage: Stage, schedule: Schedule, axis: str, params: object, ends: Ends) -> Totals:
    """Run the forward and backward passes of all microbatches.

    Args:
        stage: the function of one stage.
        schedule: the schedule.
        axis: the name of the mesh axis.
        params: the parameters of this device's stages, stacked along dim 0 by chunk.
        ends: computes the inputs of the first stage and the cotangents of the last stage's results.
    """
    device = lax.axis_index(axis)

    def is_first(unit: UnitArrays) -> Array:
        return (device == 0) & (unit.chunk == 0)

    def is_last(unit: UnitArrays) -> Array:
        return (device == schedule.devices - 1) & (unit.chunk == schedule.chunks - 1)

    def run_forward_unit(state: _State, unit: UnitArrays) -> _State:
        x = select(is_first(unit), ends.first(unit.microbatch), state.activation)
        stored = _put(state.stored, unit.slot, x, unit.active)
        y = stage(chunk_params(params, schedule, unit), x)
        return state._replace(activation=send(y, axis, schedule, +1), stored=stored)

    def run_backward_unit(state: _State, unit: UnitArrays) -> _State:
        x_floats, x_others, join_x = split_floats(take(state.stored, unit.slot))
        p_floats, p_others, join_params = split_floats(chunk_params(params, schedule, unit))

        def run_stage(p_floats: list[Any], x_floats: list[Any]) -> tuple[list[Any], Any]:
            y = stage(join_params(p_floats, p_others), join_x(x_floats, x_others))
            return split_floats(y)[0], y

        _, pull_back, y = vjp(run_stage, p_floats, x_floats, has_aux=True)
        end_cotangent, last = ends.last(unit.microbatch, y)
        params_ct, x_ct = pull_back(select(is_last(unit), end_cotangent, state.cotangent))
        first = ends.pull_back_first(unit.microbatch, x_ct)
        before = state.totals
        totals = Totals(
            _add_to_chunk(before.params, schedule, unit, params_ct),
            _collect(before.first, unit, first, is_first(unit)),
            _collect(before.last, unit, last, is_last(unit)),
        )
        return state._replace(cotangent=send(x_ct, axis, schedule, -1), totals=totals)

    run_unit = {FORWARD: run_forward_unit, BACKWARD: run_backward_unit}
    state = _first_state(schedule, params, ends)
    for first_tick, pattern, count in _runs(schedule.kinds):
        length = len(pattern)
        units = [
            unit_arrays(schedule, range(first_tick + offset, first_tick + length * count, length), axis)
            for offset in range(length)
        ]

        def run_ticks(state: _State, units: list[UnitArrays], pattern: str = pattern) -> tuple[_State, None]:
            for kind, unit in zip(pattern, units, strict=True):
                state = run_unit[kind](state, unit)
            return state, None

        with schedule_scope(schedule, axis):
            state, _ = lax.scan(run_ticks, state, units)
    return state.totals


def _runs(kinds: str) -> list[tuple[int, str, int]]:
    """Return the loops of a schedule: the first tick, the kinds of ticks in an iteration, the number of iterations.

    `FFFBFBBB` is FF, then FB twice, then BB.
    """
    match = re.fullmatch("(F*?)((?:FB)*)(B*)", kinds)
    assert match is not None, kinds
    runs = [(match.start(n), kind, len(match[n]) // len(kind)) for n, kind in ((1, "F"), (2, "FB"), (3, "B"))]
    return [run for run in runs if run[2]]


def _first_state(schedule: Schedule, params: object, ends: Ends) -> _State:
    """Return the state before the first tick: zeros of the types that the ticks compute."""

    def collect(microbatch: ArrayLike) -> Any:
        x = ends.first(microbatch)
        x_floats = split_floats(x)[0]
        return x, x_floats, ends.pull_back_first(microbatch, x_floats), ends.last(microbatch, x)[1]

    x, x_floats, first, last = eval_shape(collect, 0)

    def zeros(tree: _T, *leading: int) -> _T:
        return tree_util.tree_map(lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), tree)

    def empty(collected: Collected) -> Collected:
        return Collected(zeros(collected.summed), zeros(collected.stacked, schedule.microbatches))

    totals = Totals(zeros(split_floats(params)[0]), empty(first), empty(last))
    return _State(zeros(x), zeros(x_floats), zeros(x, max(schedule.stored)), totals)


def _collect(before: Collected, unit: UnitArrays, new: Collected, is_end: Array) -> Collected:
    """Add the arrays of a unit to those that were collected before, if the unit is at this end of the pipeline."""
    condition = unit.active & is_end
    return Collected(
        _add(before.summed, new.summed, condition), _put(before.stacked, unit.microbatch, new.stacked, condition)
    )


def _put(tree: _T, number: ArrayLike, values: _T, condition: ArrayLike) -> _T:
    """Replace element `number` along dim 0 of every leaf where a scalar condition holds."""

    def put(leaf: Array, value: Array, old: Array) -> Array:
        return lax.dynamic_update_index_in_dim(leaf, jnp.where(condition, value, old), number, 0)

    return tree_util.tree_map(put, tree, values, take(tree, number))


def _add(totals: Sequence[Array], terms: Sequence[Array], condition: ArrayLike) -> list[Array]:
    """Add terms to totals where a scalar condition holds; a term may be NaN where it does not."""
    pairs = zip(totals, terms, strict=True)
    return [total + jnp.where(condition, term, jnp.zeros_like(term)) for total, term in pairs]


def _add_to_chunk(totals: list[Any], schedule: Schedule, unit: UnitArrays, terms: list[Any]) -> list[Any]:
    """Add terms to the totals of a unit's chunk, unless the device is idle."""
    if schedule.chunks == 1:
        return _add(totals, [term[None] for term in terms], unit.active)
    sums = _add(take(totals, unit.chunk), terms, unit.active)
    return [lax.dynamic_update_index_in_dim(total, new, unit.chunk, 0) for total, new in zip(totals, sums, strict=True)]
