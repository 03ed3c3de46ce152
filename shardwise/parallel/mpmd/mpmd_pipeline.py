"""mpmd_pipeline: a pipeline whose stages are separate programs on disjoint submeshes."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax, tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.jit import jit
from shardwise.api.meshes.placement import device_put
from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip, chip_of
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, device_grid
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.checkpoint_policy import Policy
from shardwise.errors import StrategyError
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.accumulation import Accumulation
from shardwise.parallel.mpmd.array_types import microbatch_types, types_of, with_shardings
from shardwise.parallel.mpmd.check_schedule import check_schedule
from shardwise.parallel.mpmd.choose_accumulation import StageMemory, choose_accumulation
from shardwise.parallel.mpmd.make_schedule import task_schedule
from shardwise.parallel.mpmd.predict import PipelineSimulation, predict_pipeline
from shardwise.parallel.mpmd.predict_stage import StagePrediction, predict_stage
from shardwise.parallel.mpmd.simulate import TaskTimes, simulate_schedule
from shardwise.parallel.mpmd.stage_programs import StageFunction, StagePrograms, StageTypes
from shardwise.parallel.mpmd.step import Replica, Step
from shardwise.parallel.mpmd.task import Task
from shardwise.parallel.mpmd.task_schedule import TaskSchedule
from shardwise.parallel.mpmd.transfers import Transfers
from shardwise.processes.channels import Channels
from shardwise.runtime.array import empty_array, join_shards
from shardwise.runtime.connect_channels import check_agreement, connect_channels
from shardwise.tree_util import KeyPath

_CALL = "MpmdPipeline.value_and_grad"


@final
class Copy(NamedTuple):
    """A parameter that a stage gets from another one.

    Attributes:
        source: the stage that has it.
        source_leaf: its index among the leaves of that stage's parameters.
        target: the stage that gets it.
        target_leaf: its index among the leaves of that stage's parameters.
    """

    source: int
    source_leaf: int
    target: int
    target_leaf: int


def mpmd_pipeline(
    stages: Sequence[StageFunction],
    meshes: Sequence[Mesh | AbstractMesh],
    microbatches: int,
    schedule: str | TaskSchedule = "1f1b",
    *,
    spec: PartitionSpec | Sequence[PartitionSpec] | None = None,
    remat: bool | Policy = False,
    optimizer_copies: int = 2,
    has_aux: bool = False,
) -> "MpmdPipeline":
    """Run stages as a pipeline of separate programs, each on its own mesh (MPMD).

    Stages may differ: in their functions, parameters, numbers of layers, and types of activations. Only the first stage
    computes an embedding, and only the last one the loss. `docs/pipeline.md` compares this with `pipeline`.

    Args:
        stages: the functions of the stages, in order. A stage is called with its parameters and the result of the
            previous stage; the first one with a microbatch of the batch; the last one with the microbatch's targets as
            further arguments, and returns a scalar loss.
        meshes: the mesh of each rank of the schedule, with disjoint devices. Inside a stage, the planner shards over
            the axes of its mesh. With abstract meshes the pipeline can be simulated, but not run.
        microbatches: the number of microbatches. Microbatch `k` of `m` has the rows `k`, `k + m`, … of the batch.
        schedule: the name of a schedule, as for `task_schedule`, or a schedule.
        spec: the PartitionSpec of activations and microbatches, for all ranks or for each; by default, they are
            replicated on their mesh.
        remat: False to save all residuals of a stage for its backward pass, True to recompute them from its input, or
            a policy of `checkpoint` that selects the residuals to save.
        optimizer_copies: the number of arrays like the parameters that the optimizer keeps; 2 for Adam. Parameters are
            gathered once per step, and gradients reduced once, if that fits in memory beside them.
        has_aux: whether the last stage returns a pair (loss, aux), as for `value_and_grad`.

    Returns:
        An `MpmdPipeline`, whose method `value_and_grad` computes the loss and the gradients of a batch.

    Raises:
        StrategyError: if the numbers of stages and meshes do not fit the schedule, if meshes share a device or have
            Explicit axes, or if the schedule is not valid.

    Example:
        >>> meshes = [jax.make_mesh((4,), ("data",), devices=jax.devices()[k : k + 4]) for k in (0, 4)]
        >>> stages = [lambda w, x: jnp.tanh(x @ w), lambda w, x, y: ((x @ w - y) ** 2).mean()]
        >>> train = jax.parallel.mpmd_pipeline(stages, meshes, 2, "1f1b", spec=P("data"))
        >>> loss, gradients = train.value_and_grad([jnp.ones((3, 3))] * 2, jnp.ones((16, 3)), jnp.ones((16, 3)))
        >>> [gradient.shape for gradient in gradients]
        [(3, 3), (3, 3)]
    """
    if not isinstance(stages, Iterable) or not (stages := tuple(stages)) or not all(map(callable, stages)):
        raise StrategyError(f"mpmd_pipeline: stages must be a sequence of functions, not {stages!r}")
    meshes = checked_meshes(meshes, "mpmd_pipeline")
    chunks = max(1, len(stages) // len(meshes)) if schedule == "interleaved" else 1
    schedule = schedule_for(meshes, schedule, microbatches, chunks, "mpmd_pipeline")
    check_schedule(schedule)
    if (schedule.stages, len(schedule.ranks)) != (len(stages), len(meshes)):
        raise StrategyError(
            f"mpmd_pipeline: schedule {schedule.name!r} has {schedule.stages} stages on {len(schedule.ranks)} ranks, "
            f"but there are {len(stages)} stages and {len(meshes)} meshes"
        )
    if schedule.microbatches != microbatches:
        raise StrategyError(
            f"mpmd_pipeline: schedule {schedule.name!r} has {schedule.microbatches} microbatches, not {microbatches}"
        )
    if explicit := next((mesh for mesh in meshes if mesh.abstract.explicit_axes), None):
        raise StrategyError(f"mpmd_pipeline: {explicit} has Explicit axes: use meshes with Auto axes.")
    owner: dict[Any, int] = {}
    for rank, mesh in enumerate(meshes):
        for device in mesh.flat_devices if isinstance(mesh, Mesh) else ():
            if owner.setdefault(device, rank) != rank:
                raise StrategyError(
                    f"mpmd_pipeline: the meshes of ranks {owner[device]} and {rank} share the device {device}: stages "
                    "need disjoint devices. For several stages on one mesh, use schedule='interleaved'."
                )
    specs = [spec or PartitionSpec()] * len(meshes) if spec is None or isinstance(spec, PartitionSpec) else list(spec)
    if len(specs) != len(meshes):
        raise StrategyError(f"mpmd_pipeline: there are {len(specs)} specs for {len(meshes)} meshes")
    return MpmdPipeline(stages, meshes, schedule, specs, remat, optimizer_copies, has_aux)


def checked_meshes(meshes: object, label: str) -> tuple[Mesh | AbstractMesh, ...]:
    """Return the meshes of all ranks.

    Raises:
        StrategyError: if they are not a sequence of meshes.
    """
    found = tuple(meshes) if isinstance(meshes, Iterable) else ()
    if not found or not all(isinstance(mesh, (Mesh, AbstractMesh)) for mesh in found):
        raise StrategyError(f"{label}: meshes must be a sequence of meshes, not {meshes!r}")
    return found


def schedule_for(
    meshes: Sequence[Mesh | AbstractMesh], schedule: object, microbatches: int, chunks: int, label: str
) -> TaskSchedule:
    """Return the schedule, perhaps given by its name, for the ranks of meshes.

    Raises:
        StrategyError: if it is neither a schedule nor the name of one.
    """
    if isinstance(schedule, str):
        return task_schedule(schedule, len(meshes), microbatches, chunks)
    if not isinstance(schedule, TaskSchedule):
        raise StrategyError(f"{label}: schedule must be a TaskSchedule or the name of a schedule, not {schedule!r}")
    return schedule


def check_not_traced(leaves: Sequence[object], label: str) -> None:
    """Check that arguments are arrays, and not those of a function that is being traced.

    Raises:
        StrategyError: if one of them is traced.
    """
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise StrategyError(
            f"{label} launches many programs, so it cannot be a part of one: call it outside of `jit`, `grad` and "
            "other transformations. Inside of them, use `pipeline`."
        )


@final
class StepResults(NamedTuple):
    """What a pipeline computes of a batch.

    Attributes:
        loss: the mean loss of the microbatches, replicated on all devices.
        aux: the auxiliary results of the microbatches, stacked along a new dim 0; None if there are none.
        gradients: for each stage, a pytree of gradients like its parameters.
        transfers: the transfers of the step, for arrays that follow it.
    """

    loss: Array
    aux: Any
    gradients: list[Any]
    transfers: Transfers


@final
class MpmdPipeline:
    """A pipeline of separate programs; `mpmd_pipeline` creates it.

    Attributes:
        schedule: the tasks of each rank, in order.
        meshes: the mesh of each rank.
        specs: the PartitionSpec of activations on each mesh.

    Args:
        stages: the functions of the stages.
        meshes: the mesh of each rank.
        schedule: the schedule.
        specs: the PartitionSpec of activations on each mesh.
        remat: whether residuals are recomputed, or a policy.
        optimizer_copies: the number of arrays like the parameters that the optimizer keeps.
        has_aux: whether the last stage returns a pair (loss, aux).

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> jax.parallel.mpmd_pipeline([lambda w, x: (x * w).mean()], [mesh], 4)
        <MPMD pipeline of 1 stages on 1 meshes, 1f1b, 4 microbatches>
    """

    def __init__(
        self,
        stages: Sequence[StageFunction],
        meshes: Sequence[Mesh | AbstractMesh],
        schedule: TaskSchedule,
        specs: Sequence[PartitionSpec],
        remat: bool | Policy,
        optimizer_copies: int,
        has_aux: bool,
    ):
        self.schedule = schedule
        self._stages = stages
        self.meshes = meshes
        self._device_meshes = [mesh for mesh in meshes if isinstance(mesh, Mesh)]
        self.specs = specs
        self._remat = remat
        self._optimizer_copies = optimizer_copies
        self._has_aux = has_aux
        self._programs: dict[Any, StagePrograms] = {}
        self._accumulations: dict[Any, Accumulation] = {}
        self._predictions: dict[Any, StagePrediction] = {}
        self._known_types: dict[Any, _Types] = {}
        self._take_rows = jit(_take_rows, static_argnums=1)
        self._sum = jit(_sum)
        self._mean = jit(_mean, static_argnums=1)
        self._channels: Channels | None = None
        self._agreed: set[str] = set()  # descriptions that are equal in all processes
        self._steps = 0

    def __repr__(self) -> str:
        name, ranks, microbatches = self.schedule.name, len(self.meshes), self.schedule.microbatches
        return f"<MPMD pipeline of {len(self._stages)} stages on {ranks} meshes, {name}, {microbatches} microbatches>"

    def value_and_grad(self, params: Sequence[Any], batch: object, *targets: object) -> tuple[Any, list[Any]]:
        """Compute the mean loss of the microbatches, and its gradients.

        Args:
            params: the parameters of each stage, as pytrees. A leaf that is not on the mesh of its stage is replicated
                on it.
            batch: a pytree of arrays whose dim 0 has the rows of all microbatches.
            *targets: the further arguments of the last stage, divided into microbatches like the batch.

        Returns:
            The loss, replicated on all devices; and for each stage, a pytree of gradients like its parameters, with
            their shardings. The gradient of a leaf that is not floating-point is None. With `has_aux`, a pair
            (loss, aux) in place of the loss: the auxiliary results of the microbatches are stacked along a new dim 0,
            on the mesh of the last stage.

        Raises:
            StrategyError: if there are not as many parameters as stages, if a batch is not divisible into the
                microbatches, if the last stage does not return a scalar, or with `has_aux` a pair, if a mesh is
                abstract, or in a function that is being traced.
        """
        check_not_traced(tree_util.tree_leaves((params, batch, targets)), _CALL)
        results = self.run(params, batch, targets)
        return ((results.loss, results.aux) if self._has_aux else results.loss), results.gradients

    def run(
        self,
        params: Sequence[Any],
        batch: object,
        targets: Sequence[object],
        copies: Sequence[Copy] = (),
        follows: str = "",
    ) -> StepResults:
        """Compute the loss, auxiliary results and gradients of a batch.

        Args:
            params, batch, targets: the arguments of `value_and_grad`.
            copies: the parameters that a stage gets from another one.
            follows: a digest of the programs that follow the step, which processes compare; empty if none do.
        """
        self._check_params(params)
        microbatches = self.schedule.microbatches
        batch, *goals = (_checked_rows(tree, microbatches) for tree in (batch, *targets))
        types = self._types(params, batch, goals)
        if len(self._device_meshes) < len(self.meshes):
            raise StrategyError(
                f"{_CALL}: an abstract mesh has no devices: pass meshes of devices to `mpmd_pipeline`, or call "
                "`simulate`."
            )
        transfers = Transfers(self._connect(types, follows), self._steps)
        self._steps += 1
        params = self._copied(params, copies, transfers)
        shardings = {
            (stage, rank): self._shardings(params[stage], stage, rank)
            for stage, ranks in enumerate(self.schedule.ranks_of_stage)
            for rank in ranks
        }
        programs = {
            (stage, rank): self._stage_programs(
                stage,
                rank,
                self._stage_types(stage, params[stage], shardings[stage, rank], types, goals),
                chip_of(self._device_meshes[rank].flat_devices[0].device_kind),
            )
            for stage, rank in shardings
        }

        def rows(tree: object, stage: int, rank: int, index: int) -> Any:
            return self._microbatch(tree, programs[stage, rank], index)

        step = Step(
            self.schedule,
            programs,
            self._place(params, shardings, transfers),
            types.boundaries,
            lambda rank, index: rows(batch, 0, rank, index),
            lambda rank, index: tuple(rows(tree, len(self._stages) - 1, rank, index) for tree in goals),
            transfers,
        )
        for rank, task in self._launch_order:
            if self.is_local(rank):
                step.run(rank, task)
        return StepResults(self._loss(step), step.stacked_aux(), self._gradients(step, params, shardings), transfers)

    def simulate(self, hardware: str | Chip) -> Callable[..., PipelineSimulation]:
        """Return a function that predicts the time and memory of `value_and_grad`, without running it.

        Args:
            hardware: the chip to predict for, as for `jax.simulate`. The devices of the ranks follow one another, node
                by node.

        Returns:
            A function of the arguments of `value_and_grad`, arrays or ShapeDtypeStructs, that returns a
            `PipelineSimulation`. A parameter has the spec of its sharding if that is on a mesh with the same axes as
            that of its stage; otherwise it is replicated.

        Raises:
            HardwareError: if the hardware is unknown.
            StrategyError: when called, as for `value_and_grad`.

        Example:
            >>> meshes = [jax.sharding.AbstractMesh((4,), ("data",))] * 2
            >>> stages = [lambda w, x: x @ w, lambda w, x: (x @ w).mean()]
            >>> train = jax.parallel.mpmd_pipeline(stages, meshes, 8, "1f1b", spec=P("data"))
            >>> w, x = (jax.ShapeDtypeStruct((rows, 4096), jnp.bfloat16) for rows in (4096, 1 << 16))
            >>> 0.2 < train.simulate("h100")([w, w], x).bubble < 0.3
            True
        """
        target = chip(hardware)

        def call(params: Sequence[Any], batch: object, *targets: object) -> PipelineSimulation:
            self._check_params(params)
            batch, *goals = (_checked_rows(tree, self.schedule.microbatches) for tree in (batch, *targets))
            with config.override("target_platform", target.platform):
                types = self._types(params, batch, goals)
            homes = [self.schedule.rank_of[stage, 0] for stage in range(len(self._stages))]
            shardings = [
                self._shardings(tree, stage, rank) for stage, (tree, rank) in enumerate(zip(params, homes, strict=True))
            ]
            programs = [
                self._stage_programs(
                    stage, rank, self._stage_types(stage, params[stage], shardings[stage], types, goals), target
                )
                for stage, rank in enumerate(homes)
            ]
            predictions = [self._predict(each, target) for each in programs]
            return predict_pipeline(self.schedule, predictions, [each.mesh.size for each in programs], target)

        return call

    def _check_params(self, params: Sequence[Any]) -> None:
        if len(params) != len(self._stages):
            raise StrategyError(f"mpmd_pipeline: {len(params)} pytrees of parameters for {len(self._stages)} stages")

    def is_local(self, rank: int) -> bool:
        """Return whether this process has devices of a rank, so that it runs its tasks."""
        return NamedSharding(self.meshes[rank], PartitionSpec()).has_addressable_devices

    def _connect(self, types: "_Types", follows: str) -> Channels | None:
        """Connect the processes of all ranks, once, and compare what they run. Return None for one process."""
        devices = [device for mesh in self._device_meshes for device in mesh.flat_devices]
        processes = sorted({device.process_index for device in devices})
        if len(processes) == 1 or not any(map(self.is_local, range(len(self.meshes)))):
            return None
        lines = [
            f"schedule {self.schedule.name!r} with digest {self.schedule.digest}",
            f"devices {[[device.id for device in mesh.flat_devices] for mesh in self._device_meshes]}",
            f"specs {list(map(str, self.specs))}",
            f"types {types.boundaries} {types.aux}",
            *([f"update with digest {follows}"] if follows else []),
        ]
        description = "\n".join(lines)
        if description not in self._agreed:
            check_agreement(_CALL, processes, description)
            self._agreed.add(description)
        if self._channels is None:
            self._channels = connect_channels(_CALL, processes)
            weakref.finalize(self, self._channels.close)
        return self._channels

    @cached_property
    def _launch_order(self) -> list[tuple[int, Task]]:
        """Return the tasks of all ranks, each after its operands, in the order in which they would start."""
        simulation = simulate_schedule(self.schedule, TaskTimes())
        starts = [
            (start, rank, task)
            for rank, (tasks, spans) in enumerate(zip(self.schedule.ranks, simulation.spans, strict=True))
            for task, (start, _) in zip(tasks, spans, strict=True)
        ]
        return [(rank, task) for _, rank, task in sorted(starts, key=lambda each: each[:2])]

    def _shardings(self, params: object, stage: int, rank: int) -> list[Sharding]:
        """Return the shardings of the leaves of a stage's parameters on a rank."""
        home = self.schedule.rank_of[stage, 0]
        mesh = self.meshes[home]
        devices = set(mesh.flat_devices) if isinstance(mesh, Mesh) else None
        shardings: list[Sharding] = []
        for leaf in tree_util.tree_leaves(params):
            sharding = getattr(leaf, "sharding", None)
            if not isinstance(sharding, Sharding) or devices is None or set(sharding.devices) != devices:
                sharding = _sharding_on(mesh, sharding)
            shardings.append(sharding if rank == home else _sharding_on(self.meshes[rank], sharding))
        return shardings

    def _place(
        self, params: Sequence[Any], shardings: dict[Replica, list[Sharding]], transfers: Transfers
    ) -> dict[Replica, Any]:
        """Return the parameters of each stage on its local ranks. Ranks other than the first receive a copy."""
        placed: dict[Replica, Any] = {}
        for stage, ranks in enumerate(self.schedule.ranks_of_stage):
            leaves, structure = tree_util.tree_flatten(params[stage])
            home = self.schedule.rank_of[stage, 0]
            if self.is_local(home):
                here = [device_put(*pair) for pair in zip(leaves, shardings[stage, home], strict=True)]
                placed[stage, home] = tree_util.tree_unflatten(structure, here)
                for rank in ranks:
                    if rank != home:
                        transfers.send(f"P{stage}.{rank}", here, shardings[stage, rank])
        for (stage, rank), targets in shardings.items():
            home = self.schedule.rank_of[stage, 0]
            if rank != home and self.is_local(rank):
                leaves, structure = tree_util.tree_flatten(params[stage])
                copies = transfers.receive(
                    f"P{stage}.{rank}", list(map(type_of, leaves)), shardings[stage, home], targets
                )
                placed[stage, rank] = tree_util.tree_unflatten(structure, copies)
        return placed

    def _copied(self, params: Sequence[Any], copies: Sequence[Copy], transfers: Transfers) -> list[Any]:
        """Return the parameters with those that stages get from others."""
        trees = [tree_util.tree_flatten(tree) for tree in params]
        for number, copy in enumerate(copies):
            home, rank = (self.schedule.rank_of[stage, 0] for stage in (copy.source, copy.target))
            leaf = trees[copy.source][0][copy.source_leaf]
            if home != rank:
                sharding = _sharding_on(self.meshes[rank], leaf.sharding)
                if self.is_local(home):
                    transfers.send(f"C{number}", [leaf], [sharding])
                if self.is_local(rank):
                    (leaf,) = transfers.receive(f"C{number}", [type_of(leaf)], [leaf.sharding], [sharding])
                else:
                    leaf = empty_array(type_of(leaf), sharding)
            trees[copy.target][0][copy.target_leaf] = leaf
        return [tree_util.tree_unflatten(structure, leaves) for leaves, structure in trees]

    def _stage_types(
        self,
        stage: int,
        params: object,
        shardings: Sequence[Sharding],
        types: "_Types",
        goals: Sequence[object],
    ) -> StageTypes:
        """Return the types of a stage's parameters with these shardings, and of its other arguments and its result."""
        is_last = stage == len(self._stages) - 1
        targets = [microbatch_types(tree, self.schedule.microbatches) for tree in goals] if is_last else []
        x, result = types.boundaries[stage : stage + 2]
        return StageTypes(with_shardings(params, shardings), x, tuple(targets), result, types.aux if is_last else None)

    def _stage_programs(self, stage: int, rank: int, types: StageTypes, chip: Chip) -> StagePrograms:
        """Return the programs of a stage on a rank for arguments of these types."""
        leaves, structure = tree_util.tree_flatten(types)
        key = stage, rank, structure, tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves), chip
        if key not in self._programs:
            memory = StageMemory(
                self.schedule.microbatches_of[stage, rank],
                self.schedule.peak_activations[rank],
                sum(rank in ranks for ranks in self.schedule.ranks_of_stage),
                self._optimizer_copies,
                chip,
            )

            def build(accumulation: Accumulation) -> StagePrograms:
                return StagePrograms(
                    self._stages[stage],
                    f"stage{stage}",
                    self.meshes[rank],
                    self.specs[rank],
                    types,
                    accumulation,
                    self._remat,
                    has_input_gradient=stage > 0,
                    has_aux=self._has_aux and stage == len(self._stages) - 1,
                )

            unchanged = Accumulation.unchanged(types.params)
            equal = _stage_key(build(unchanged), chip), memory
            if equal not in self._accumulations:
                self._accumulations[equal] = choose_accumulation(
                    build, lambda programs: self._predict(programs, chip), unchanged, memory
                )
            self._programs[key] = build(self._accumulations[equal])
        return self._programs[key]

    def _predict(self, programs: StagePrograms, chip: Chip) -> StagePrediction:
        """Predict the programs of a stage. Equal stages are predicted once."""
        key = _stage_key(programs, chip), programs.accumulation, chip
        if key not in self._predictions:
            self._predictions[key] = predict_stage(programs, self.schedule.splits_backward, chip)
        return self._predictions[key]

    def _microbatch(self, tree: object, programs: StagePrograms, index: int) -> Any:
        """Return the rows of a microbatch in the sharding of activations."""
        count = self.schedule.microbatches

        def take(leaf: Any) -> Any:
            rows = leaf[index::count] if isinstance(leaf, np.ndarray) else self._take_rows(leaf, count, index)
            return device_put(rows, programs.sharding(rows.ndim))

        return tree_util.tree_map(take, tree)

    def _types(self, params: Sequence[Any], batch: object, targets: Sequence[object]) -> "_Types":
        """Return the types between the stages."""
        x, *goals = (microbatch_types(tree, self.schedule.microbatches) for tree in (batch, *targets))
        param_types = list(map(types_of, params))
        leaves, structure = tree_util.tree_flatten((param_types, x, goals))
        key = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._known_types:
            types, aux = [x], None
            for stage, (function, each) in enumerate(zip(self._stages, param_types, strict=True)):
                is_last = stage == len(self._stages) - 1
                types.append(eval_shape(function, each, types[-1], *(goals if is_last else ())))
            if self._has_aux:
                if not (isinstance(types[-1], tuple) and len(types[-1]) == 2):
                    raise StrategyError(
                        "mpmd_pipeline: with has_aux=True the last stage must return a pair (loss, aux), not "
                        f"{types[-1]}"
                    )
                types[-1], aux = types[-1]
            loss = tree_util.tree_leaves(types[-1])
            if len(loss) != 1 or loss[0].shape or not jnp.issubdtype(loss[0].dtype, jnp.floating):
                raise StrategyError(
                    f"mpmd_pipeline: the last stage must return a scalar loss, not {types[-1]}. Let it compute the "
                    "loss of a microbatch from its targets."
                )
            self._known_types[key] = _Types(types, aux)
        return self._known_types[key]

    def _gradients(self, step: Step, params: Sequence[Any], shardings: dict[Replica, list[Sharding]]) -> list[Any]:
        """Return the gradients of all stages on their first ranks. Other processes' gradients have no shards here."""
        float_shardings = {replica: _float_part(params[replica[0]], each) for replica, each in shardings.items()}
        copies = [(stage, rank) for stage, rank in shardings if rank != self.schedule.rank_of[stage, 0]]
        for stage, rank in copies:
            if self.is_local(rank):
                home = self.schedule.rank_of[stage, 0]
                step.transfers.send(f"G{stage}.{rank}", step.totals[stage, rank], float_shardings[stage, home])
        gradients = []
        for stage, tree in enumerate(params):
            home = self.schedule.rank_of[stage, 0]
            floats, others, join = split_floats(types_of(tree))
            types = [ArrayType(leaf.shape, leaf.dtype) for leaf in floats]
            targets = float_shardings[stage, home]
            if self.is_local(home):
                terms = [step.totals[stage, home]]
                for rank in (rank for other, rank in copies if other == stage):
                    sources = float_shardings[stage, rank]
                    terms.append(step.transfers.receive(f"G{stage}.{rank}", types, sources, targets))
                totals = terms[0] if len(terms) == 1 else self._sum(terms)
            else:
                totals = [empty_array(*each) for each in zip(types, targets, strict=True)]
            gradients.append(join(totals, [None] * len(others)))
        return gradients

    def _loss(self, step: Step) -> Array:
        """Return the mean loss of the microbatches, replicated on all devices."""
        last = len(self._stages) - 1
        home = self.schedule.rank_of[last, 0]
        replicated = [NamedSharding(mesh, PartitionSpec()) for mesh in self.meshes]
        (type,) = (ArrayType(leaf.shape, leaf.dtype) for leaf in tree_util.tree_leaves(step.boundary_types[-1]))
        others = [rank for rank in self.schedule.ranks_of_stage[last] if rank != home]
        for rank in others:
            if self.is_local(rank):
                partial = device_put(self._sum([[loss] for loss in step.losses[rank]]), [replicated[rank]])
                step.transfers.send(f"S{rank}", partial, [replicated[home]])
        here: dict[int, Any] = {}
        if self.is_local(home):
            terms = [[loss] for loss in step.losses[home]]
            terms += [
                step.transfers.receive(f"S{rank}", [type], [replicated[rank]], [replicated[home]]) for rank in others
            ]
            here[home] = device_put(self._mean(terms, self.schedule.microbatches), replicated[home])
            for rank, sharding in enumerate(replicated):
                if rank != home:
                    step.transfers.send(f"L{rank}", [here[home]], [sharding])
        for rank, sharding in enumerate(replicated):
            if rank != home and self.is_local(rank):
                (here[rank],) = step.transfers.receive(f"L{rank}", [type], [replicated[home]], [sharding])
        return self.replicate(list(here.values()), type)

    @cached_property
    def everywhere(self) -> NamedSharding:
        """The sharding of arrays that are replicated on all devices."""
        devices = [device for mesh in self._device_meshes for device in mesh.flat_devices]
        return NamedSharding(Mesh(device_grid(devices, (-1,)), ("device",)), PartitionSpec())

    def replicate(self, arrays: Sequence[Array], type: ArrayType) -> Array:
        """Return one array from equal ones, which are replicated on the meshes of all ranks of this process."""
        shards = {shard.device: shard.data for array in arrays for shard in array.addressable_shards}
        return join_shards([shards[device] for device in self.everywhere.local_devices], type, self.everywhere)


@final
class _Types(NamedTuple):
    """The types of what stages return for one microbatch.

    Attributes:
        boundaries: the types of the inputs of all stages, and of the loss.
        aux: the types of the auxiliary results; None if there are none.
    """

    boundaries: list[Any]
    aux: Any


def _stage_key(stage: StagePrograms, chip: Chip) -> Any:
    """Return a key that is equal for stages with equal programs, on meshes of equal shape."""
    with config.override("target_platform", chip.platform):
        program = stage.forward.trace(*stage.types[:3]).program
    layouts = [leaf.sharding.pin(leaf.shape).layout for leaf in tree_util.tree_leaves(stage.types)]
    return str(replace(program, name="")), tuple(layouts), stage.mesh.abstract


def _sharding_on(mesh: Mesh | AbstractMesh, sharding: object) -> NamedSharding:
    """Return the sharding of an array on another mesh: the same spec if the meshes have the same axes."""
    is_alike = isinstance(sharding, NamedSharding) and sharding.mesh_shape == mesh.abstract
    return NamedSharding(mesh, sharding.spec if is_alike and isinstance(sharding, NamedSharding) else PartitionSpec())


def _checked_rows(tree: Any, microbatches: int) -> Any:
    """Check that the rows of a batch are divisible into microbatches, and return the batch as arrays."""

    def check(path: KeyPath, leaf: Any) -> Any:
        rows = leaf if isinstance(leaf, (np.ndarray, Array, ShapeDtypeStruct)) else np.asarray(leaf)
        if not rows.shape or rows.shape[0] % microbatches:
            raise StrategyError(
                f"mpmd_pipeline: a batch{tree_util.keystr(path)} of shape {rows.shape} is not divisible into "
                f"{microbatches} microbatches along dim 0: change the size of the batch, or `microbatches`."
            )
        return rows

    return tree_util.tree_map_with_path(check, tree)


def _take_rows(x: Array, count: int, index: int) -> Array:
    """Return the rows `index`, `index + count`, … of an array."""
    stacked = jnp.reshape(x, (x.shape[0] // count, count, *x.shape[1:]))
    return lax.dynamic_index_in_dim(stacked, index, 1, keepdims=False)


def _float_part(params: object, parallel: Sequence[Any]) -> list[Any]:
    """Return the elements of a list parallel to the leaves of the parameters that belong to floating-point leaves."""
    leaves = tree_util.tree_leaves(params)
    return [
        each for leaf, each in zip(leaves, parallel, strict=True) if jnp.issubdtype(type_of(leaf).dtype, jnp.inexact)
    ]


def _mean(terms: Sequence[Sequence[Array]], count: int) -> Array:
    """Return the sum of scalars divided by `count`."""
    return _sum(terms)[0] / count


def _sum(terms: Sequence[Sequence[Array]]) -> list[Array]:
    """Return the sums of lists of arrays, in order."""
    return [sum(arrays[1:], arrays[0]) for arrays in zip(*terms, strict=True)]
