"""mpmd_pipeline: a pipeline whose stages are separate programs on disjoint submeshes."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax, tree_util
from shardwise.api.ahead_of_time.inspect import eval_shape
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.jit import jit
from shardwise.api.meshes.placement import device_put
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.mesh import Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.transforms.checkpoint_policy import Policy
from shardwise.errors import StrategyError
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.check_schedule import check_schedule
from shardwise.parallel.mpmd.make_schedule import task_schedule
from shardwise.parallel.mpmd.simulate import TaskTimes, simulate_schedule
from shardwise.parallel.mpmd.stage_programs import StageFunction, StagePrograms
from shardwise.parallel.mpmd.step import Step
from shardwise.parallel.mpmd.task import Task
from shardwise.parallel.mpmd.task_schedule import TaskSchedule
from shardwise.parallel.mpmd.transfers import Transfers
from shardwise.tree_util import KeyPath


def mpmd_pipeline(
    stages: Sequence[StageFunction],
    meshes: Sequence[Mesh],
    microbatches: int,
    schedule: str | TaskSchedule = "1f1b",
    *,
    spec: PartitionSpec | Sequence[PartitionSpec] | None = None,
    remat: bool | Policy = False,
) -> "MpmdPipeline":
    """Run stages as a pipeline of separate programs, each on its own mesh (MPMD).

    Stages may differ: in their functions, parameters, numbers of layers, and types of activations. Only the first stage
    computes an embedding, and only the last one the loss. `docs/pipeline.md` compares this with `pipeline`.

    Args:
        stages: the functions of the stages, in order. A stage is called with its parameters and the result of the
            previous stage; the first one with a microbatch of the batch; the last one with the microbatch's targets as
            further arguments, and returns a scalar loss.
        meshes: the mesh of each rank of the schedule, with disjoint devices. Inside a stage, the planner shards over
            the axes of its mesh.
        microbatches: the number of microbatches. Microbatch `k` of `m` has the rows `k`, `k + m`, … of the batch.
        schedule: the name of a schedule, as for `task_schedule`, or a schedule.
        spec: the PartitionSpec of activations and microbatches, for all ranks or for each; by default, they are
            replicated on their mesh.
        remat: False to save all residuals of a stage for its backward pass, True to recompute them from its input, or
            a policy of `checkpoint` that selects the residuals to save.

    Returns:
        An `MpmdPipeline`, whose method `value_and_grad` computes the loss and the gradients of a batch.

    Raises:
        StrategyError: if the numbers of stages and meshes do not fit the schedule, if meshes share a device, or if the
            schedule is not valid.

    Example:
        >>> meshes = [jax.make_mesh((4,), ("data",), devices=jax.devices()[k : k + 4]) for k in (0, 4)]
        >>> stages = [lambda w, x: jnp.tanh(x @ w), lambda w, x, y: ((x @ w - y) ** 2).mean()]
        >>> train = jax.parallel.mpmd_pipeline(stages, meshes, 2, "1f1b", spec=P("data"))
        >>> loss, gradients = train.value_and_grad([jnp.ones((3, 3))] * 2, jnp.ones((16, 3)), jnp.ones((16, 3)))
        >>> [gradient.shape for gradient in gradients]
        [(3, 3), (3, 3)]
    """
    stages, meshes = tuple(stages), tuple(meshes)
    if not stages or not all(callable(stage) for stage in stages):
        raise StrategyError(f"mpmd_pipeline: stages must be a sequence of functions, not {stages!r}")
    if not meshes or not all(isinstance(mesh, Mesh) for mesh in meshes):
        raise StrategyError(f"mpmd_pipeline: meshes must be a sequence of meshes of devices, not {meshes!r}")
    if isinstance(schedule, str):
        chunks = max(1, len(stages) // len(meshes)) if schedule == "interleaved" else 1
        schedule = task_schedule(schedule, len(meshes), microbatches, chunks)
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
    owner: dict[Any, int] = {}
    for rank, mesh in enumerate(meshes):
        for device in mesh.flat_devices:
            if owner.setdefault(device, rank) != rank:
                raise StrategyError(
                    f"mpmd_pipeline: the meshes of ranks {owner[device]} and {rank} share the device {device}: stages "
                    "need disjoint devices. For several stages on one mesh, use schedule='interleaved'."
                )
    specs = [spec or PartitionSpec()] * len(meshes) if spec is None or isinstance(spec, PartitionSpec) else list(spec)
    if len(specs) != len(meshes):
        raise StrategyError(f"mpmd_pipeline: there are {len(specs)} specs for {len(meshes)} meshes")
    return MpmdPipeline(stages, meshes, schedule, specs, remat)


@final
class MpmdPipeline:
    """A pipeline of separate programs; `mpmd_pipeline` creates it.

    Attributes:
        schedule: the tasks of each rank, in order.

    Example:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> jax.parallel.mpmd_pipeline([lambda w, x: (x * w).mean()], [mesh], 4)
        <MPMD pipeline of 1 stages on 1 meshes, 1f1b, 4 microbatches>
    """

    def __init__(
        self,
        stages: Sequence[StageFunction],
        meshes: Sequence[Mesh],
        schedule: TaskSchedule,
        specs: Sequence[PartitionSpec],
        remat: bool | Policy,
    ):
        self.schedule = schedule
        self._stages = stages
        self._meshes = meshes
        self._specs = specs
        self._remat = remat
        self._programs: dict[Any, StagePrograms] = {}
        self._boundary_types: dict[Any, list[Any]] = {}
        self._take_rows = jit(_take_rows, static_argnums=1)
        self._sum = jit(_sum)

    def __repr__(self) -> str:
        name, ranks, microbatches = self.schedule.name, len(self._meshes), self.schedule.microbatches
        return f"<MPMD pipeline of {len(self._stages)} stages on {ranks} meshes, {name}, {microbatches} microbatches>"

    def value_and_grad(self, params: Sequence[Any], batch: object, *targets: object) -> tuple[Array, list[Any]]:
        """Compute the mean loss of the microbatches, and its gradients.

        Args:
            params: the parameters of each stage, as pytrees. A leaf that is not on the mesh of its stage is replicated
                on it.
            batch: a pytree of arrays whose dim 0 has the rows of all microbatches.
            *targets: the further arguments of the last stage, divided into microbatches like the batch.

        Returns:
            The loss, replicated on all devices; and for each stage, a pytree of gradients like its parameters, with
            their shardings. The gradient of a leaf that is not floating-point is None.

        Raises:
            StrategyError: if there are not as many parameters as stages, if a batch is not divisible into the
                microbatches, or if the last stage does not return a scalar.
        """
        if len(params) != len(self._stages):
            raise StrategyError(f"mpmd_pipeline: {len(params)} pytrees of parameters for {len(self._stages)} stages")
        microbatches = self.schedule.microbatches
        batch, *goals = (_checked_rows(tree, microbatches) for tree in (batch, *targets))
        replicas = [(stage, rank) for stage, ranks in enumerate(self.schedule.ranks_of_stage) for rank in ranks]
        placed = {(stage, rank): self._place(params[stage], rank) for stage, rank in replicas}
        programs = {replica: self._stage_programs(*replica, placed[replica]) for replica in replicas}

        def rows(tree: object, rank: int, index: int) -> Any:
            return self._microbatch(tree, programs[next(key for key in replicas if key[1] == rank)], index)

        step = Step(
            self.schedule,
            programs,
            placed,
            self._types(params, batch, goals),
            lambda rank, index: rows(batch, rank, index),
            lambda rank, index: tuple(rows(tree, rank, index) for tree in goals),
            Transfers(),
        )
        for rank, task in self._launch_order():
            step.run(rank, task)
        return self._finish(step, placed)

    def _launch_order(self) -> list[tuple[int, Task]]:
        """Return the tasks of all ranks, each after its operands, in the order in which they would start."""
        simulation = simulate_schedule(self.schedule, TaskTimes())
        starts = [
            (start, rank, task)
            for rank, (tasks, spans) in enumerate(zip(self.schedule.ranks, simulation.spans, strict=True))
            for task, (start, _) in zip(tasks, spans, strict=True)
        ]
        return [(rank, task) for _, rank, task in sorted(starts, key=lambda each: each[:2])]

    def _place(self, params: object, rank: int) -> Any:
        """Return the parameters on the mesh of a rank."""
        mesh = self._meshes[rank]

        def place(leaf: Any) -> Any:
            sharding = getattr(leaf, "sharding", None)
            if isinstance(sharding, Sharding) and set(sharding.devices) == set(mesh.flat_devices):
                return leaf
            return device_put(leaf, _sharding_on(mesh, sharding))

        return tree_util.tree_map(place, params)

    def _stage_programs(self, stage: int, rank: int, params: object) -> StagePrograms:
        """Return the programs of a stage on a rank for parameters with these shardings."""
        shardings = tuple(leaf.sharding for leaf in split_floats(params)[0])
        key = stage, rank, shardings
        if key not in self._programs:
            self._programs[key] = StagePrograms(
                self._stages[stage],
                f"stage{stage}",
                self._meshes[rank],
                self._specs[rank],
                shardings,
                self._remat,
                has_input_gradient=stage > 0,
            )
        return self._programs[key]

    def _microbatch(self, tree: object, programs: StagePrograms, index: int) -> Any:
        """Return the rows of a microbatch in the sharding of activations."""
        count = self.schedule.microbatches

        def take(leaf: Any) -> Any:
            rows = leaf[index::count] if isinstance(leaf, np.ndarray) else self._take_rows(leaf, count, index)
            return device_put(rows, programs.sharding(rows.ndim))

        return tree_util.tree_map(take, tree)

    def _types(self, params: Sequence[Any], batch: object, targets: Sequence[object]) -> list[Any]:
        """Return the types of the inputs of all stages, after a check of the loss."""
        count = self.schedule.microbatches
        x, *goals = (
            tree_util.tree_map(
                lambda leaf: ShapeDtypeStruct((leaf.shape[0] // count, *leaf.shape[1:]), leaf.dtype), tree
            )
            for tree in (batch, *targets)
        )
        param_types = tree_util.tree_map(lambda leaf: ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), params)
        leaves, structure = tree_util.tree_flatten((param_types, x, goals))
        key = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._boundary_types:
            types = [x]
            for stage, (function, each) in enumerate(zip(self._stages, param_types, strict=True)):
                is_last = stage == len(self._stages) - 1
                types.append(eval_shape(function, each, types[-1], *(goals if is_last else ())))
            loss = tree_util.tree_leaves(types[-1])
            if len(loss) != 1 or loss[0].shape or not jnp.issubdtype(loss[0].dtype, jnp.floating):
                raise StrategyError(
                    f"mpmd_pipeline: the last stage must return a scalar loss, not {types[-1]}. Let it compute the "
                    "loss of a microbatch from its targets."
                )
            self._boundary_types[key] = types
        return self._boundary_types[key]

    def _finish(self, step: Step, placed: dict[tuple[int, int], Any]) -> tuple[Array, list[Any]]:
        """Return the mean loss, and the gradients of all stages on their first ranks."""
        gradients = []
        for stage, ranks in enumerate(self.schedule.ranks_of_stage):
            home = self.schedule.rank_of[stage, 0]
            totals = [step.totals[stage, home]]
            for rank in ranks:
                if rank != home:
                    targets = [total.sharding for total in totals[0]]
                    totals.append(device_put(step.totals[stage, rank], targets))
            floats = totals[0] if len(totals) == 1 else self._sum(totals)
            _, others, join = split_floats(placed[stage, home])
            gradients.append(join(floats, [None] * len(others)))
        everywhere = NamedSharding(
            Mesh(np.array([d for mesh in self._meshes for d in mesh.flat_devices]), "device"), PartitionSpec()
        )
        losses = [device_put(loss, everywhere) for rank in sorted(step.losses) for loss in step.losses[rank]]
        return self._sum([[loss] for loss in losses])[0] / self.schedule.microbatches, gradients


def _sharding_on(mesh: Mesh, sharding: object) -> NamedSharding:
    """Return the sharding of an array on another mesh: the same spec if the meshes have the same axes."""
    is_alike = isinstance(sharding, NamedSharding) and sharding.mesh_shape == mesh.abstract
    return NamedSharding(mesh, sharding.spec if is_alike and isinstance(sharding, NamedSharding) else PartitionSpec())


def _checked_rows(tree: Any, microbatches: int) -> Any:
    """Check that the rows of a batch are divisible into microbatches, and return the batch as arrays."""

    def check(path: KeyPath, leaf: Any) -> Any:
        rows = leaf if isinstance(leaf, (np.ndarray, Array)) else np.asarray(leaf)
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


def _sum(terms: Sequence[Sequence[Array]]) -> list[Array]:
    """Return the sums of lists of arrays, in order."""
    return [sum(arrays[1:], arrays[0]) for arrays in zip(*terms, strict=True)]
