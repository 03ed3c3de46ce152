"""predict_stage: predict the time and the memory of the programs of one stage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from shardwise import tree_util
from shardwise.base.config import config
from shardwise.compiler.plan.chip import Chip
from shardwise.explain.simulate import Simulation
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.array_types import device_bytes
from shardwise.parallel.mpmd.planned_program import plan_program
from shardwise.parallel.mpmd.simulate import GATHER, REDUCE
from shardwise.parallel.mpmd.stage_programs import StagePrograms
from shardwise.parallel.mpmd.task import BACKWARD, FORWARD, INPUT, WEIGHT


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
        awaiting_bytes: the bytes that it holds for one microbatch between its input and its weight gradient.
        temporary_bytes: by the kind of a task, the most bytes that its program holds besides these.
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
    awaiting_bytes: int
    temporary_bytes: dict[str, int]
    sent_bytes: int


def predict_stage(stage: StagePrograms, splits: bool, chip: Chip) -> StagePrediction:
    """Plan and simulate the programs of a stage.

    Args:
        stage: the programs.
        splits: whether its backward passes are split into input and weight gradients.
        chip: the hardware.
    """
    _, x, targets, result, _ = stage.types
    params, totals = stage.gathered_types, stage.sum_types
    forward = _simulate(stage.forward, (params, x, targets), chip)
    pull_back = forward.results[2]
    cotangents = split_floats(result)[0]
    operands = (params, x, pull_back, cotangents)
    awaiting = 0
    if splits:
        with config.override("target_platform", chip.platform):
            halves = stage.halves(operands)
        leaves = [*tree_util.tree_leaves(operands), *halves.captured]
        first = _simulate(halves.first, (leaves,), chip)
        shared, kept = first.results[1], [leaves[index] for index in halves.kept]
        backward = {INPUT: first, WEIGHT: _simulate(halves.second, (totals, shared, kept), chip)}
        weights = len(tree_util.tree_leaves(params))
        awaiting = device_bytes((shared, [leaves[index] for index in halves.kept if index >= weights]))
    else:
        backward = {BACKWARD: _simulate(stage.backward, (*operands, totals), chip)}
    temporaries: dict[str, int] = {kind: program.temporary_bytes for kind, program in backward.items()}
    # Residuals are among the bytes of a microbatch. Targets and cotangents are held only while their program runs.
    temporaries[FORWARD] = forward.temporary_bytes - device_bytes(pull_back) + device_bytes(targets)
    temporaries[INPUT if splits else BACKWARD] += device_bytes(cotangents)
    gathered = 0
    once: dict[str, _Program] = {}
    for kind, conversion, types in (
        (GATHER, stage.gather, tree_util.tree_leaves(stage.types.params)),
        (REDUCE, stage.reduce, totals),
    ):
        if conversion.function is not None:
            once[kind] = _simulate(conversion.function, ([types[index] for index in conversion.changes],), chip)
    if GATHER in once:
        gathered = device_bytes(once[GATHER].results)
    programs: dict[str, _Program] = {FORWARD: forward}
    programs |= {kind: program for kind, program in (*backward.items(), *once.items())}
    return StagePrediction(
        {kind: program.run for kind, program in programs.items()},
        device_bytes(stage.types.params),
        gathered,
        device_bytes(totals),
        device_bytes((x, pull_back)),
        awaiting,
        temporaries,
        device_bytes(result),
    )


@final
class _Program(NamedTuple):
    """A planned program.

    Attributes:
        run: its simulation.
        results: the types of its results, with the shardings that the planner chose.
        temporary_bytes: the most bytes that it holds besides its arguments. It drops those that it does not read.
    """

    run: Simulation
    results: Any
    temporary_bytes: int


def _simulate(function: Callable[..., Any], arguments: tuple[Any, ...], chip: Chip) -> _Program:
    """Plan and simulate a program."""
    prepared, results = plan_program(function, arguments, chip)
    run = Simulation(prepared.request, prepared.stages, chip)
    leaves, kept = tree_util.tree_leaves(arguments), prepared.request.kept
    read = leaves if kept is None else [leaves[index] for index in kept if index < len(leaves)]
    return _Program(run, results, run.peak_bytes - device_bytes(read))
