"""autoshard_pipeline: choose the stages, microbatches, schedule, meshes and shardings of an MPMD pipeline.

For each number of stages, the model is divided, and `autoshard` chooses the mesh and the shardings of the first, the
second and the last stage. Each pipeline is then simulated with all schedules and numbers of microbatches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from shardwise.parallel.mpmd.mpmd_pipeline import MpmdPipeline, mpmd_pipeline
from shardwise.parallel.mpmd.predict import PipelineSimulation
from shardwise.parallel.mpmd.split_stages import StagedModel, split_stages
from shardwise.parallel.mpmd.stage_programs import StageFunction, stage_vjp

_SCHEDULES = ("1f1b", "zb-h1")
_MULTIPLES = (1, 2, 4, 8)  # microbatches per stage to try
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
        microbatches: the number of microbatches.
        schedule: the name of its schedule.
        model: the model, divided into stages.
        layouts: how each stage is sharded.
        run: its simulation.
        peak_bytes: the most bytes that a device holds, with the state of the optimizer.
        fits: whether the devices have as much memory.
    """

    microbatches: int
    schedule: str
    model: StagedModel
    layouts: tuple[StageLayout, ...]
    run: PipelineSimulation
    peak_bytes: int
    fits: bool

    def __str__(self) -> str:
        meshes = list(dict.fromkeys(str(layout.mesh) for layout in self.layouts))
        return f"{len(self.layouts)} stages of {' or '.join(meshes)}, {self.microbatches} microbatches, {self.schedule}"


@final
class AutoPipeline:
    """The pipeline that `autoshard_pipeline` chose. It prints as a table of alternatives.

    Attributes:
        alternatives: the compared pipelines, best first.
        problems: for numbers of stages without a pipeline, why there is none.
    """

    def __init__(self, name: str, alternatives: Sequence[PipelineAlternative], problems: dict[int, str]):
        self.alternatives = tuple(alternatives)
        self.problems = problems
        self._name = name

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
        layouts = self.best.layouts
        return mpmd_pipeline(
            self.model.stages,
            self._meshes(devices),
            self.best.microbatches,
            self.best.schedule,
            spec=[layout.spec for layout in layouts],
        )

    def place(self, params: object, devices: Sequence[Any]) -> list[list[Any]]:
        """Return the parameters of each stage, or a tree like them, on the devices of its rank."""
        parts = zip(self.model.split(params), self.best.layouts, self._meshes(devices), strict=True)
        return [
            [device_put(leaf, NamedSharding(mesh, spec)) for leaf, spec in zip(part, layout.param_specs, strict=True)]
            for part, layout, mesh in parts
        ]

    def _meshes(self, devices: Sequence[Any]) -> list[Mesh]:
        """Return the meshes of all ranks."""
        shapes = [layout.mesh for layout in self.best.layouts]
        needed = sum(shape.size for shape in shapes)
        if len(devices) != needed:
            raise ValueError(f"autoshard_pipeline: the pipeline is for {needed} devices, not {len(devices)}")
        rest = iter(devices)
        return [
            Mesh(device_grid([next(rest) for _ in range(shape.size)], shape.axis_sizes), shape.axis_names)
            for shape in shapes
        ]

    def __str__(self) -> str:
        best = self.best
        lines = [
            f"{self._name} on {best.run.chip.name}: {best}",
            f"  {human_seconds(self.seconds)} per batch, bubble {best.run.bubble:.1%}, "
            f"{100 * best.run.utilization:.1f}% of peak flops, {human_bytes(best.peak_bytes)} per device",
            "",
        ]
        rows: list[tuple[str, ...]] = [("stages", "mesh", "microbatches", "schedule", "time", "bubble", "memory", "")]
        for each in self.alternatives[:_ROWS]:
            row = len(each.layouts), each.layouts[len(each.layouts) // 2].mesh, each.microbatches, each.schedule
            figures = human_seconds(each.run.seconds), f"{each.run.bubble:.0%}", human_bytes(each.peak_bytes)
            rows.append((*map(str, row), *figures, "" if each.fits else "does not fit"))
        lines += align(rows, (-6, 4, -12, 8, -9, -6, -10, 0))
        lines += [f"  {stages} stages: {problem}" for stages, problem in self.problems.items()]
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
    optimizer_copies: int = 2,
) -> Callable[..., AutoPipeline]:
    """Return a function that chooses the pipeline with the least predicted time that fits in memory. Nothing runs.

    Args:
        model: a function `(params, batch, *targets)` that scans over the stacked weights of its layers and returns a
            scalar loss, the mean over the rows.
        hardware: the chip to plan for, as for `simulate`.
        count: the number of chips.
        stages: the numbers of stages to try; by default the powers of 2 that divide `count`, up to the layers.
        microbatches: the numbers of microbatches to try; by default 1, 2, 4 and 8 per stage.
        schedules: the names of the schedules to try, of those with one stage per rank.
        optimizer_copies: the number of arrays like the parameters that the optimizer keeps; 2 for Adam.

    Returns:
        A function of the arguments of the model, arrays or ShapeDtypeStructs, that returns an AutoPipeline.

    Raises:
        HardwareError: if the hardware is unknown.
        ValueError: if a number is not positive.
        StrategyError: when called, if the model has no scan over layers, or if nothing divides its batch.
        AutoshardError: when called, if no pipeline fits in memory.

    Example:
        >>> small = jax.models.Decoder(4, 512, 4, 4, 128, 2048, 8192)
        >>> search = jax.autoshard_pipeline(small.loss, hardware="h100", count=4, stages=(2,), schedules=("1f1b",))
        >>> found = search(small.weights(), jax.ShapeDtypeStruct((8, 513), jnp.int32))
        >>> len(found.best.layouts)
        2
    """
    chip = chip_named(hardware)
    numbers = [count, *(stages or ()), *(microbatches or ())]
    if not all(isinstance(number, (int, np.integer)) and number > 0 for number in numbers) or optimizer_copies < 0:
        raise ValueError("autoshard_pipeline: `count`, `stages` and `microbatches` must be positive integers")

    def call(params: object, batch: object, *targets: object) -> AutoPipeline:
        name = function_name(model)
        search = _Search(model, params, batch, targets, chip, count, optimizer_copies)
        found: list[PipelineAlternative] = []
        problems: dict[int, str] = {}
        with Task(f"autoshard_pipeline of `{name}`") as task:
            for number in stages or search.stage_counts():
                task.stage = f"{number} stages"
                try:
                    found += search.alternatives(number, microbatches, schedules)
                except AutoshardError as error:
                    problems[number] = str(error).splitlines()[0]
        if not found and not problems:
            raise StrategyError(
                f"autoshard_pipeline: no number of stages divides {count} devices and no number of microbatches the "
                "batch: change the size of the batch, or pass `stages` and `microbatches`."
            )
        found.sort(key=lambda each: (not each.fits, each.run.seconds if each.fits else each.peak_bytes))
        if not found or not found[0].fits:
            reasons = [f"{number} stages: {problem}" for number, problem in problems.items()]
            nearest = [f"{found[0]} needs {human_bytes(found[0].peak_bytes)} per device"] if found else []
            raise AutoshardError(
                f"autoshard_pipeline: no pipeline of `{name}` fits in the {human_bytes(chip.usable_memory)} of "
                f"{count} {chip.name}. {'; '.join(nearest + reasons)}. Recompute layers by `jax.checkpoint`, use more "
                "devices or more microbatches.",
                found[0] if found else None,
            )
        return AutoPipeline(name, found, problems)

    return call


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

    @cached_property
    def _rows(self) -> int:
        return min(int(leaf.shape[0]) for leaf in tree_util.tree_leaves((self.batch, self.targets)))

    def _divided(self, stages: int, microbatches: int) -> StagedModel:
        return split_stages(
            self.model, self.params, self.batch, *self.targets, microbatches=microbatches, stages=stages
        )

    def stage_counts(self) -> Iterator[int]:
        """Yield the powers of 2 that divide the number of chips, up to the number of layers."""
        layers, stages = sum(self._divided(1, 1).layers), 1
        while stages <= layers and self.count % stages == 0:
            yield stages
            stages *= 2

    def alternatives(
        self, stages: int, microbatches: Sequence[int] | None, schedules: Sequence[str]
    ) -> Iterator[PipelineAlternative]:
        """Yield the pipelines with a number of stages. All have the shardings of the one with the most microbatches."""
        if self.count % stages:
            return
        tried = microbatches or [stages * multiple for multiple in _MULTIPLES]
        counts = sorted({number for number in tried if number >= stages and self._rows % number == 0}, reverse=True)
        layouts: tuple[StageLayout, ...] | None = None
        for number in counts:
            model = self._divided(stages, number)
            if layouts is None:
                layouts = self._layouts(model, number)
            for schedule in schedules if stages > 1 else schedules[:1]:
                yield self._alternative(model, layouts, number, schedule)

    def _alternative(
        self, model: StagedModel, layouts: tuple[StageLayout, ...], microbatches: int, schedule: str
    ) -> PipelineAlternative:
        """Simulate a pipeline."""
        pipeline = mpmd_pipeline(
            model.stages,
            [layout.mesh for layout in layouts],
            microbatches,
            schedule,
            spec=[layout.spec for layout in layouts],
        )
        placed = [
            with_shardings(part, [NamedSharding(layout.mesh, spec) for spec in layout.param_specs])
            for part, layout in zip(model.split(types_of(self.params)), layouts, strict=True)
        ]
        run = pipeline.simulate(self.chip)(placed, self.batch, *self.targets)
        peak = max(run.peak_bytes_with(self.optimizer_copies))
        return PipelineAlternative(microbatches, schedule, model, layouts, run, peak, peak <= self.chip.usable_memory)

    def _layouts(self, model: StagedModel, microbatches: int) -> tuple[StageLayout, ...]:
        """Choose the meshes and shardings of the first, the second and the last stage; others are like the second."""
        parts = model.split(types_of(self.params))
        x, *goals = (microbatch_types(types_of(tree), microbatches) for tree in (self.batch, *self.targets))
        found: list[StageLayout] = []
        for stage, (function, params) in enumerate(zip(model.stages, parts, strict=True)):
            is_last = stage == len(parts) - 1
            targets = tuple(goals) if is_last else ()
            with config.override("target_platform", self.chip.platform):
                y = eval_shape(function, params, x, *targets)
            if stage > 1 and not is_last:
                found.append(found[1])
            else:
                found.append(self._layout(function, self.count // len(parts), (params, x, targets), y))
            x = y
        return tuple(found)

    def _layout(self, function: StageFunction, devices: int, arguments: tuple[Any, ...], y: Any) -> StageLayout:
        """Choose the mesh and the shardings of a stage by the tasks of one microbatch."""
        params, x, targets = arguments
        copies = [params] * (self.optimizer_copies + 1)  # those of the optimizer, and the sums of gradients
        step = jit(_tasks(function), donate_argnums=(0, 1))
        search = autoshard(step, hardware=self.chip, count=devices)
        chosen = search(params, copies, x, targets, split_floats(y)[0])
        param_shardings, _, x_shardings, *_ = chosen.in_shardings
        activations = [
            (leaf.size, sharding.spec)
            for leaf, sharding in (*_pairs(x, x_shardings), *_pairs(split_floats(y)[0], chosen.out_shardings[2]))
            if leaf.ndim and is_float(leaf.dtype)
        ]
        tokens = [(leaf.size, sharding.spec) for leaf, sharding in _pairs(x, x_shardings)]
        _, spec = max(activations or tokens, key=lambda each: each[0])
        assert isinstance(chosen.mesh, AbstractMesh)
        return StageLayout(chosen.mesh, spec, tuple(sharding.spec for _, sharding in _pairs(params, param_shardings)))


def _tasks(function: StageFunction) -> Callable[..., Any]:
    """Return a function that runs the forward and the backward pass of a stage for one microbatch."""

    def tasks(params: Any, copies: Any, x: Any, targets: tuple[Any, ...], cotangents: list[Any]) -> Any:
        y, pull_back = stage_vjp(function, params, x, targets)
        gradients, x_cotangents = pull_back(cotangents)
        # The sum has the sharding of the parameters, as the gradients of a pipeline have.
        floats, others, join = split_floats(params)
        updated = join([w + g for w, g in zip(floats, gradients, strict=True)], others)
        return updated, copies, split_floats(y)[0], x_cotangents

    return tasks


def _pairs(types: Any, shardings: Any) -> list[tuple[Any, Any]]:
    """Return the leaves of a tree of types with their shardings."""
    return list(zip(tree_util.tree_leaves(types), tree_util.tree_leaves(shardings), strict=True))
