"""autoshard_pipeline: choose the ranks, stages, microbatches, schedule, meshes and shardings of an MPMD pipeline.

For each number of ranks, the model is divided, and `autoshard` chooses the mesh of a rank and the shardings of the
first, a middle and the last stage. The first schedule is simulated with all numbers of ranks and microbatches. The
times of its programs estimate all other schedules and numbers of stages per rank, and the fastest of these are
simulated too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from shardwise import tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.arguments import function_name
from shardwise.api.jit import jit
from shardwise.api.meshes.placement import device_put
from shardwise.base.config import config
from shardwise.base.progress import Task
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip as chip_named
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, device_grid
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import AutoshardError, StrategyError
from shardwise.explain.text import align, human_bytes, human_seconds
from shardwise.layout_search.autoshard import autoshard
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.array_types import microbatch_types, types_of, with_shardings
from shardwise.parallel.mpmd.divisible_step import DivisibleStep
from shardwise.parallel.mpmd.make_schedule import task_schedule
from shardwise.parallel.mpmd.mpmd_pipeline import MpmdPipeline, mpmd_pipeline
from shardwise.parallel.mpmd.mpmd_step import MpmdStep
from shardwise.parallel.mpmd.predict import PipelineSimulation
from shardwise.parallel.mpmd.simulate import TaskTimes, simulate_schedule
from shardwise.parallel.mpmd.split_stages import StagedModel, divide_model
from shardwise.parallel.mpmd.stage_programs import StageFunction, stage_vjp
from shardwise.parallel.mpmd.task import BACKWARD, FORWARD, INPUT, WEIGHT

_SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zb-v")
_CHUNKS = (2, 4)  # stages per rank to try with "interleaved"
_MULTIPLES = (1, 2, 4, 8)  # microbatches per rank to try
_SIMULATED = 6  # the number of estimated pipelines to simulate
_ROWS = 12  # the number of alternatives to print


@final
class StageLayout(NamedTuple):
    """How a stage is sharded.

    Attributes:
        mesh: the mesh of its rank.
        spec: the PartitionSpec of its activations.
        param_specs: the PartitionSpec of each leaf of its parameters.
    """

    mesh: AbstractMesh
    spec: PartitionSpec
    param_specs: tuple[PartitionSpec, ...]


@final
@dataclass(frozen=True, eq=False)
class PipelineAlternative:
    """A pipeline that was compared.

    Attributes:
        ranks: the number of ranks.
        microbatches: the number of microbatches.
        schedule: the name of its schedule.
        model: the model, divided into stages.
        layouts: how each stage is sharded.
        run: its simulation.
        peak_bytes: the most bytes that a device holds, with the state of the optimizer.
        fits: whether the devices have as much memory.
        optimizer_copies: the number of arrays like the parameters that the optimizer keeps.
    """

    ranks: int
    microbatches: int
    schedule: str
    model: StagedModel
    layouts: tuple[StageLayout, ...]
    run: PipelineSimulation
    peak_bytes: int
    fits: bool
    optimizer_copies: int

    @property
    def chunks(self) -> int:
        """The number of stages per rank."""
        return len(self.layouts) // self.ranks

    def __str__(self) -> str:
        per_rank = f", {self.chunks} per rank," if self.chunks > 1 else ""
        mesh = self.layouts[0].mesh
        return f"{len(self.layouts)} stages{per_rank} of {mesh}, {self.microbatches} microbatches, {self.schedule}"


@final
class AutoPipeline:
    """The pipeline that `autoshard_pipeline` chose. It prints as a table of alternatives.

    Attributes:
        alternatives: the compared pipelines, best first.
        problems: for numbers of ranks without a pipeline, why there is none.
    """

    def __init__(
        self,
        name: str,
        alternatives: Sequence[PipelineAlternative],
        problems: dict[int, str],
        step: DivisibleStep | None = None,
    ):
        self.alternatives = tuple(alternatives)
        self.problems = problems
        self._name = name
        self._step = step

    @property
    def best(self) -> PipelineAlternative:
        """The chosen pipeline."""
        return self.alternatives[0]

    @property
    def seconds(self) -> float:
        """The predicted time of the loss and the gradients of a batch."""
        return self.best.run.seconds

    @property
    def model(self) -> StagedModel:
        """The model, divided into the stages of the chosen pipeline."""
        return self.best.model

    def pipeline(self, devices: Sequence[Any]) -> MpmdPipeline:
        """Return the chosen pipeline on devices, those of the first rank first."""
        return mpmd_pipeline(
            self.model.stages,
            self._meshes(devices),
            self.best.microbatches,
            self.best.schedule,
            spec=self.best.layouts[0].spec,
            optimizer_copies=self.best.optimizer_copies,
            has_aux=self.model.has_aux,
        )

    def step(self, devices: Sequence[Any]) -> MpmdStep:
        """Return the training step as the chosen pipeline on devices, those of the first rank first.

        State that is not placed yet gets the chosen shardings, an optimizer's those of its parameters.

        Raises:
            ValueError: if `autoshard_pipeline` was called with a loss.
        """
        if self._step is None:
            raise ValueError(f"autoshard_pipeline: `{self._name}` is a loss, not a training step: call `pipeline`")
        combinations = self._step.loss.check_mean(self.best.microbatches)
        specs = [layout.param_specs for layout in self.best.layouts]
        return MpmdStep(self._step, self.model, self.pipeline(devices), combinations, specs)

    def place(self, params: object, devices: Sequence[Any]) -> list[list[Any]]:
        """Return the parameters of each stage, or a tree like them, on the devices of its rank."""
        meshes, rank_of = self._meshes(devices), self.best.run.run.schedule.rank_of
        return [
            [
                device_put(leaf, NamedSharding(meshes[rank_of[stage, 0]], spec))
                for leaf, spec in zip(part, layout.param_specs, strict=True)
            ]
            for stage, (part, layout) in enumerate(zip(self.model.split(params), self.best.layouts, strict=True))
        ]

    def _meshes(self, devices: Sequence[Any]) -> list[Mesh]:
        """Return the meshes of all ranks."""
        shape = self.best.layouts[0].mesh
        needed = self.best.ranks * shape.size
        if len(devices) != needed:
            raise ValueError(f"autoshard_pipeline: the pipeline is for {needed} devices, not {len(devices)}")
        return [
            Mesh(device_grid(devices[start : start + shape.size], shape.axis_sizes), shape.axis_names)
            for start in range(0, needed, shape.size)
        ]

    def __str__(self) -> str:
        best = self.best
        lines = [
            f"{self._name} on {best.run.chip.name}: {best}",
            f"  {human_seconds(self.seconds)} per batch, bubble {best.run.bubble:.1%}, "
            f"{100 * best.run.utilization:.1f}% of peak flops, {human_bytes(best.peak_bytes)} per device",
            "",
        ]
        heads = "ranks", "stages", "mesh", "microbatches", "schedule", "time", "bubble", "memory", ""
        rows: list[tuple[str, ...]] = [heads]
        for each in self.alternatives[:_ROWS]:
            row = each.ranks, len(each.layouts), each.layouts[0].mesh, each.microbatches, each.schedule
            figures = human_seconds(each.run.seconds), f"{each.run.bubble:.0%}", human_bytes(each.peak_bytes)
            rows.append((*map(str, row), *figures, "" if each.fits else "does not fit"))
        lines += align(rows, (-5, -6, 4, -12, 8, -9, -6, -10, 0))
        lines += [f"  {ranks} ranks: {problem}" for ranks, problem in self.problems.items()]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def autoshard_pipeline(
    model: Callable[..., Any],
    *,
    hardware: str | Chip,
    count: int,
    stages: Sequence[int] | None = None,
    microbatches: Sequence[int] | None = None,
    schedules: Sequence[str] = _SCHEDULES,
    chunks: Sequence[int] = _CHUNKS,
    optimizer_copies: int = 2,
    batch_argnums: int | Sequence[int] | None = None,
) -> Callable[..., AutoPipeline]:
    """Return a function that chooses the pipeline with the least predicted time that fits in memory. Nothing runs.

    The first schedule is simulated with all numbers of ranks and microbatches, and the 6 best of all other pipelines,
    whose times are estimated.

    Args:
        model: a function `(params, batch, *targets)` that scans over the stacked weights of its layers and returns a
            scalar loss, the mean over the rows; or a training step that differentiates such a loss, as for
            `parallel.mpmd_step`.
        hardware: the chip to plan for, as for `simulate`.
        count: the number of chips.
        stages: the numbers of ranks to try; by default the powers of 2 that divide `count`, up to the layers. A rank
            has one stage, unless the schedule has several.
        microbatches: the numbers of microbatches to try; by default 1, 2, 4 and 8 per rank.
        schedules: the names of the schedules to try; the first of them must have one stage per rank.
        chunks: the numbers of stages per rank to try with the schedule "interleaved".
        optimizer_copies: the number of arrays like the parameters that the optimizer keeps; 2 for Adam.
        batch_argnums: for a training step, the arguments whose arrays have the rows of the batch as dim 0, as for
            `parallel.mpmd_step`.

    Returns:
        A function of the arguments of the model, arrays or ShapeDtypeStructs, that returns an AutoPipeline.

    Raises:
        HardwareError: if the hardware is unknown.
        ValueError: if a number is not positive.
        StrategyError: if a schedule is unknown, or the first has several stages per rank; when called, if the model
            has no scan over layers, if nothing divides its batch, or if `parallel.mpmd_step` does not accept the step.
        AutoshardError: when called, if no pipeline fits in memory.

    Example:
        >>> loss = lambda w, x: (jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0] ** 2).mean()
        >>> options = {"stages": (2,), "microbatches": (4,), "schedules": ("1f1b",)}
        >>> search = jax.autoshard_pipeline(loss, hardware="h100", count=2, **options)
        >>> found = search(*[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 512, 512), (4096, 512))])
        >>> len(found.best.layouts)
        2
    """
    chip = chip_named(hardware)
    numbers = [count, *(stages or ()), *(microbatches or ()), *chunks]
    if not all(isinstance(number, (int, np.integer)) and number > 0 for number in numbers) or optimizer_copies < 0:
        raise ValueError("autoshard_pipeline: `count`, `stages`, `microbatches` and `chunks` must be positive integers")
    if task_schedule(schedules[0], 2, 2).stages != 2 or len(task_schedule(schedules[0], 2, 2).ranks_of_stage[0]) > 1:
        raise StrategyError(
            f"autoshard_pipeline: the first schedule, {schedules[0]!r}, has several stages per rank: put another one, "
            "such as '1f1b', before it."
        )

    def call(*args: Any) -> AutoPipeline:
        name = function_name(model)
        step = None if _is_loss(model, args) else DivisibleStep.from_call(model, args, batch_argnums)
        loss, arguments = (model, args) if step is None else (step.loss.model, step.loss.arguments(step.leaves))
        params, batch, *targets = arguments
        has_aux = step is not None and bool(step.loss.auxiliary)
        search = _Search(loss, params, batch, tuple(targets), chip, count, optimizer_copies, has_aux)
        if step is not None and (divisors := search.divisors(microbatches)):
            step.loss.check_mean(divisors[0])  # before the search, which takes longer
        found: list[PipelineAlternative] = []
        problems: dict[int, str] = {}
        with Task(f"autoshard_pipeline of `{name}`") as task:
            for ranks in stages or search.rank_counts():
                task.stage = f"{ranks} ranks"
                try:
                    found += search.alternatives(ranks, microbatches, schedules[0])
                except AutoshardError as error:
                    problems[ranks] = str(error).splitlines()[0]
            estimates = [each for base in found for each in search.estimates(base, schedules[1:], chunks)]
            for number, estimate in enumerate(sorted(estimates, key=lambda each: each.seconds)[:_SIMULATED]):
                task.stage = f"estimate {number + 1} of {min(_SIMULATED, len(estimates))}"
                found.append(search.simulated(estimate))
        if not found and not problems:
            raise StrategyError(
                f"autoshard_pipeline: no number of stages divides {count} devices and no number of microbatches the "
                "batch: change the size of the batch, or pass `stages` and `microbatches`."
            )
        found.sort(key=lambda each: (not each.fits, each.run.seconds if each.fits else each.peak_bytes))
        if not found or not found[0].fits:
            reasons = [f"{ranks} ranks: {problem}" for ranks, problem in problems.items()]
            nearest = [f"{found[0]} needs {human_bytes(found[0].peak_bytes)} per device"] if found else []
            raise AutoshardError(
                f"autoshard_pipeline: no pipeline of `{name}` fits in the {human_bytes(chip.usable_memory)} of "
                f"{count} {chip.name}. {'; '.join(nearest + reasons)}. Recompute layers by `jax.checkpoint`, use more "
                "devices or more microbatches.",
                found[0] if found else None,
            )
        return AutoPipeline(name, found, problems, step)

    return call


@final
class _Estimate(NamedTuple):
    """A pipeline whose time is estimated from the programs of another one.

    Attributes:
        base: the simulated pipeline, with the same ranks and microbatches.
        schedule: the name of its schedule.
        stages: the number of its stages.
        seconds: the estimated time.
    """

    base: PipelineAlternative
    schedule: str
    stages: int
    seconds: float


@final
@dataclass(frozen=True, eq=False)
class _Search:
    """The search for a model and a number of chips."""

    model: Callable[..., Any]
    params: object
    batch: object
    targets: tuple[object, ...]
    chip: Chip
    count: int
    optimizer_copies: int
    has_aux: bool
    _layouts: dict[tuple[int, bool, bool], StageLayout] = field(default_factory=dict)  # by ranks, is first, is last

    @cached_property
    def _rows(self) -> int:
        return min(int(leaf.shape[0]) for leaf in tree_util.tree_leaves((self.batch, self.targets)))

    @cached_property
    def _layers(self) -> int:
        return sum(self._divided(1, 1).layers)

    def divisors(self, microbatches: Sequence[int] | None) -> list[int]:
        """Return the numbers of microbatches, by default from 2, that divide the batch, the smallest first."""
        return sorted(number for number in microbatches or range(2, self._rows + 1) if self._rows % number == 0)

    def _divided(self, stages: int, microbatches: int) -> StagedModel:
        return divide_model(self.model, self.params, self.batch, self.targets, microbatches, stages, self.has_aux)

    def rank_counts(self) -> Iterator[int]:
        """Yield the powers of 2 that divide the number of chips, up to the number of layers."""
        ranks = 1
        while ranks <= self._layers and self.count % ranks == 0:
            yield ranks
            ranks *= 2

    def alternatives(
        self, ranks: int, microbatches: Sequence[int] | None, schedule: str
    ) -> Iterator[PipelineAlternative]:
        """Yield the pipelines with a number of ranks. All have the shardings of the one with the most microbatches."""
        if self.count % ranks:
            return
        tried = microbatches or [ranks * multiple for multiple in _MULTIPLES]
        for number in sorted({number for number in self.divisors(tried) if number >= ranks}, reverse=True):
            yield self._simulated(ranks, ranks, number, schedule)

    def estimates(
        self, base: PipelineAlternative, schedules: Sequence[str], chunks: Sequence[int]
    ) -> Iterator[_Estimate]:
        """Yield the pipelines with the ranks and microbatches of another one, and their estimated times.

        A rank has the same layers. Their times are divided by the stages per rank, and a backward pass is divided into
        equal halves.
        """
        if base.ranks == 1:
            return
        programs = [{kind: run.seconds for kind, run in stage.programs.items()} for stage in base.run.stages]
        forward = max(each[FORWARD] for each in programs)
        backward = max(sum(each.get(kind, 0.0) for kind in (BACKWARD, INPUT, WEIGHT)) for each in programs)
        for name in schedules:
            for per_rank in chunks if name == "interleaved" else (1,):
                if name == "interleaved" and (per_rank == 1 or base.microbatches % base.ranks):
                    continue
                schedule = task_schedule(name, base.ranks, base.microbatches, per_rank)
                if schedule.stages > self._layers:
                    continue
                parts = schedule.stages / base.ranks
                times = TaskTimes(forward / parts, backward / 2 / parts, backward / 2 / parts)
                yield _Estimate(base, name, schedule.stages, simulate_schedule(schedule, times).total)

    def simulated(self, estimate: _Estimate) -> PipelineAlternative:
        """Simulate an estimated pipeline."""
        base = estimate.base
        return self._simulated(base.ranks, estimate.stages, base.microbatches, estimate.schedule)

    def _simulated(self, ranks: int, stages: int, microbatches: int, schedule: str) -> PipelineAlternative:
        """Simulate a pipeline."""
        model = self._divided(stages, microbatches)
        layouts = self._stage_layouts(ranks, model, microbatches)
        pipeline = mpmd_pipeline(
            model.stages,
            [layouts[0].mesh] * ranks,
            microbatches,
            schedule,
            spec=layouts[0].spec,
            optimizer_copies=self.optimizer_copies,
            has_aux=model.has_aux,
        )
        placed = [
            with_shardings(part, [NamedSharding(layout.mesh, spec) for spec in layout.param_specs])
            for part, layout in zip(model.split(types_of(self.params)), layouts, strict=True)
        ]
        run = pipeline.simulate(self.chip)(placed, self.batch, *self.targets)
        peak = max(run.peak_bytes_with(self.optimizer_copies))
        fits = peak <= self.chip.usable_memory
        return PipelineAlternative(
            ranks, microbatches, schedule, model, layouts, run, peak, fits, self.optimizer_copies
        )

    def _stage_layouts(self, ranks: int, model: StagedModel, microbatches: int) -> tuple[StageLayout, ...]:
        """Choose the mesh of all ranks, and the shardings of the first, a middle and the last stage.

        The mesh and the activations have the shardings that suit a middle stage, because a rank may have several
        stages. With fewer than three stages, they suit the first.
        """
        parts = model.split(types_of(self.params))
        x, *goals = (microbatch_types(types_of(tree), microbatches) for tree in (self.batch, *self.targets))
        arguments, results = [], []
        for stage, (function, params) in enumerate(zip(model.stages, parts, strict=True)):
            targets = tuple(goals) if stage == len(parts) - 1 else ()
            with config.override("target_platform", self.chip.platform):
                y = eval_shape(function, params, x, *targets)
            has_aux = stage == len(parts) - 1 and self.has_aux
            y = y[0] if has_aux else y
            arguments.append((params, x, targets, has_aux))
            results.append(y)
            x = y
        keys = [(ranks, stage == 0, stage == len(parts) - 1) for stage in range(len(parts))]
        for stage in dict.fromkeys((1 if len(parts) > 2 else 0, 0, len(parts) - 1)):
            if keys[stage] not in self._layouts:
                reference = next((layout for (of, *_), layout in self._layouts.items() if of == ranks), None)
                layout = self._layout(model.stages[stage], ranks, arguments[stage], results[stage], reference)
                self._layouts[keys[stage]] = layout
        return tuple(self._layouts[key] for key in keys)

    def _layout(
        self, function: StageFunction, ranks: int, arguments: tuple[Any, ...], y: Any, reference: StageLayout | None
    ) -> StageLayout:
        """Choose the shardings of a stage by the tasks of one microbatch, and its mesh, unless a reference has it."""
        params, x, targets, has_aux = arguments
        copies = [params] * (self.optimizer_copies + 1)  # those of the optimizer, and the sums of gradients
        step = jit(_tasks(function, has_aux), donate_argnums=(0, 1))
        where: dict[str, Any] = {"count": self.count // ranks} if reference is None else {"mesh": reference.mesh}
        search = autoshard(step, hardware=self.chip, **where)
        chosen = search(params, copies, x, targets, split_floats(y)[0])
        param_shardings, _, x_shardings, *_ = chosen.in_shardings
        param_specs = tuple(sharding.spec for _, sharding in _pairs(params, param_shardings))
        if reference is not None:
            return StageLayout(reference.mesh, reference.spec, param_specs)
        activations = [
            (leaf.size, sharding.spec)
            for leaf, sharding in (*_pairs(x, x_shardings), *_pairs(split_floats(y)[0], chosen.out_shardings[2]))
            if leaf.ndim and is_float(leaf.dtype)
        ]
        tokens = [(leaf.size, sharding.spec) for leaf, sharding in _pairs(x, x_shardings)]
        _, spec = max(activations or tokens, key=lambda each: each[0])
        assert isinstance(chosen.mesh, AbstractMesh)
        return StageLayout(chosen.mesh, spec, param_specs)


def _is_loss(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether a function returns a scalar, as a loss does, and not the results of a training step."""
    leaves = tree_util.tree_leaves(eval_shape(function, *args))
    return len(leaves) == 1 and not leaves[0].shape


def _tasks(function: StageFunction, has_aux: bool) -> Callable[..., Any]:
    """Return a function that runs the forward and the backward pass of a stage for one microbatch."""

    def tasks(params: Any, copies: Any, x: Any, targets: tuple[Any, ...], cotangents: list[Any]) -> Any:
        y, _, pull_back = stage_vjp(function, params, x, targets, has_aux)
        gradients, x_cotangents = pull_back(cotangents)
        # The sum has the sharding of the parameters, as the gradients of a pipeline have.
        floats, others, join = split_floats(params)
        updated = join([w + g for w, g in zip(floats, gradients, strict=True)], others)
        return updated, copies, split_floats(y)[0], x_cotangents

    return tasks


def _pairs(types: Any, shardings: Any) -> list[tuple[Any, Any]]:
    """Return the leaves of a tree of types with their shardings."""
    return list(zip(tree_util.tree_leaves(types), tree_util.tree_leaves(shardings), strict=True))
