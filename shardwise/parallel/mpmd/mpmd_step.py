"""mpmd_step: run an ordinary training step as a pipeline of separate programs."""

import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.arguments import function_name
from shardwise.api.jit import jit
from shardwise.api.meshes.placement import device_put
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.program import Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.transforms.checkpoint_policy import Policy
from shardwise.errors import StrategyError
from shardwise.parallel.mpmd.divisible_step import DivisibleStep, flatten
from shardwise.parallel.mpmd.integers import positive_integer
from shardwise.parallel.mpmd.mpmd_pipeline import (
    Copy,
    MpmdPipeline,
    StepResults,
    check_not_traced,
    checked_meshes,
    mpmd_pipeline,
    schedule_for,
)
from shardwise.parallel.mpmd.predict import PipelineSimulation
from shardwise.parallel.mpmd.split_stages import StagedModel
from shardwise.parallel.mpmd.stage_rows import StageRows
from shardwise.parallel.mpmd.stage_update import StageUpdate, Vectors
from shardwise.parallel.mpmd.task_schedule import TaskSchedule
from shardwise.parallel.mpmd.training_step import trace_training_step
from shardwise.parallel.mpmd.transfers import Transfers
from shardwise.parallel.mpmd.update_homes import EVERYWHERE, LAYERS, Home, assign_homes
from shardwise.parallel.paired_equations import paired_equations
from shardwise.parallel.row_independence import Comparison
from shardwise.parallel.row_mean import Combination
from shardwise.runtime.array import empty_array, join_shards


def mpmd_step(
    step: Callable[..., Any],
    *args: object,
    meshes: Sequence[Mesh | AbstractMesh],
    microbatches: int,
    schedule: str | TaskSchedule = "1f1b",
    stages: int | Sequence[int] | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    spec: PartitionSpec | Sequence[PartitionSpec] | None = None,
    remat: bool | Policy = False,
    optimizer_copies: int = 2,
) -> "MpmdStep":
    """Run an ordinary training step as a pipeline of separate programs, each on its own mesh (MPMD).

    The step calls `value_and_grad` or `grad` of a loss, once. The loss is divided as by `split_stages`. What the step
    does with the gradients runs on each stage for the stage's own parameters. Numbers that depend on several stages,
    such as a norm of all gradients, are exchanged.

    Args:
        step: a function of parameters, the optimizer's state, a batch and so on, perhaps jitted. It returns the new
            state in the structure of the old one.
        *args: its arguments, of which shapes and dtypes are read.
        meshes: the mesh of each rank of the schedule, as for `mpmd_pipeline`.
        microbatches: the number of microbatches into which the batch is divided.
        schedule: the name of a schedule, as for `task_schedule`, or a schedule.
        stages: for a loss that scans over the stacked weights of its layers, the number of stages, by default that of
            the schedule, or the number of layers of each. A loss with calls of `stage_boundary` needs no number.
        batch_argnums: the arguments whose arrays have the rows of the batch as dim 0; by default, those of which the
            step returns no new values.
        spec: the PartitionSpec of activations and microbatches, for all ranks or for each.
        remat: whether stages recompute their residuals, as for `mpmd_pipeline`.
        optimizer_copies: the number of arrays like the parameters that the optimizer keeps; 2 for Adam.

    Returns:
        An `MpmdStep`, which is called like the step.

    Raises:
        StrategyError: if the loss is not differentiated once with respect to arguments, if it is not the mean over the
            rows of the batch, if the step uses an auxiliary result that is no sum, mean, maximum or minimum over the
            rows and does not have them as dim 0, if the loss cannot be divided, if the step mixes arrays of several
            stages or layers after the gradients, or as `mpmd_pipeline` does.

    Example:
        >>> def step(params, x):
        ...     body = lambda x, w: (jnp.tanh(x @ w), None)
        ...     loss = lambda params: (jax.lax.scan(body, x, params)[0] ** 2).mean()
        ...     value, gradient = jax.value_and_grad(loss)(params)
        ...     return params - 0.1 * gradient, value
        >>> params, x = jnp.ones((4, 3, 3)), jnp.ones((16, 3))
        >>> meshes = [jax.make_mesh((4,), ("data",), devices=jax.devices()[k : k + 4]) for k in (0, 4)]
        >>> train = jax.parallel.mpmd_step(step, params, x, meshes=meshes, microbatches=4, spec=P("data"))
        >>> params, loss = train(params, x)
        >>> params, loss = train(params, x)
        >>> params
        StageRows(float32[2,3,3], float32[2,3,3])
        >>> train.gather(params).shape
        (4, 3, 3)
    """
    meshes = checked_meshes(meshes, "mpmd_step")
    microbatches = positive_integer(microbatches, "mpmd_step: microbatches")
    divisible = DivisibleStep.from_call(step, args, batch_argnums)
    if stages is None and not divisible.loss.has_boundaries:
        stages = schedule_for(meshes, schedule, microbatches, 1, "mpmd_step").stages
    combinations = divisible.loss.check_mean(microbatches)
    model = divisible.loss.divide(divisible.leaves, microbatches, stages)
    pipeline = mpmd_pipeline(
        model.stages,
        meshes,
        microbatches,
        schedule,
        spec=spec,
        remat=remat,
        optimizer_copies=optimizer_copies,
        has_aux=bool(combinations),
    )
    return MpmdStep(divisible, model, pipeline, combinations)


@final
class MpmdStep:
    """A training step as a pipeline; `mpmd_step` creates it.

    It is called like the step. The state that it returns is divided among the stages: a stacked array is a `StageRows`,
    another parameter is on the mesh of its stage, and a number that all stages read is on all devices. The next call
    accepts that, as well as ordinary arrays.

    Attributes:
        model: the loss, divided into stages.
        pipeline: the pipeline that computes the loss and its gradients.

    Args:
        step: the step.
        model: the loss, divided into stages.
        pipeline: the pipeline that computes the loss and its gradients.
        combinations: how the auxiliary results of microbatches combine.
        specs: the PartitionSpecs of the parameters of each stage; by default, arguments keep their shardings.

    Example:
        >>> def step(w, x):
        ...     loss = lambda w: (jax.parallel.stage_boundary(x * w["first"]) * w["second"]).mean()
        ...     return jax.tree.map(lambda w, g: w - g, w, jax.grad(loss)(w))
        >>> meshes = [jax.make_mesh((4,), ("data",), devices=jax.devices()[k : k + 4]) for k in (0, 4)]
        >>> args = {"first": jnp.ones(3), "second": jnp.ones(3)}, jnp.ones((8, 3))
        >>> jax.parallel.mpmd_step(step, *args, meshes=meshes, microbatches=2)
        <step as MPMD pipeline of 2 stages on 2 meshes, 1f1b, 2 microbatches>
    """

    def __init__(
        self,
        step: DivisibleStep,
        model: StagedModel,
        pipeline: MpmdPipeline,
        combinations: Sequence[Combination],
        specs: Sequence[Sequence[PartitionSpec]] | None = None,
    ):
        self.model = model
        self.pipeline = pipeline
        self._step = step
        self._label = step.label
        self._traced = step.traced
        self._roles = step.roles
        self._loss = step.loss
        self._structure = step.structure
        self._add = jit(jnp.add)
        self._combinations = tuple(combinations)
        traced, roles = step.traced, step.roles
        program = traced.program
        self._owners = dict(zip(roles.params, model.owners, strict=True))
        self._params_of = [
            [index for index, users in zip(roles.params, model.users, strict=True) if stage in users]
            for stage in range(len(model.stages))
        ]
        known: list[Home | None] = []
        for index in range(traced.arguments):
            owner = self._owners.get(index, EVERYWHERE)
            is_placed = owner is None or index in roles.differentiated
            known.append((LAYERS if owner is None else owner) if is_placed else None)
        known += [EVERYWHERE, *[len(model.stages) - 1] * (len(traced.loss.types) - 1)]
        known += [known[index] for index in traced.differentiated]
        known += [None] * len(traced.captured)
        auxiliary = range(traced.arguments + 1, traced.arguments + len(traced.loss.types))
        self._homes = assign_homes(program, known, roles.next_outputs, self._label, auxiliary)
        self._check_divided_params()
        linked = {output: number for number, output in roles.next_outputs.items()}
        self._previous = [linked.get(output) for output in range(len(program.outputs))]
        self._output_homes = [
            self._homes.homes[value] if number is None else self._homes.inputs[number]
            for value, number in zip(program.outputs, self._previous, strict=True)
        ]
        self._specs: dict[tuple[int, int], PartitionSpec] = {}
        for stage, each in enumerate(specs or ()):
            for index, spec in zip(self._params_of[stage], each, strict=True):
                followers = [follower for follower, leaf in step.followers.items() if leaf == index]
                self._specs.update(dict.fromkeys(((leaf, stage) for leaf in (index, *followers)), spec))
        self._ranks = [pipeline.schedule.rank_of[stage, 0] for stage in range(len(model.stages))]
        self._updates = [
            StageUpdate(
                program,
                own,
                self._homes,
                self._output_homes,
                stage,
                function_name(self._step.function),
            )
            for stage, own in enumerate(self._own_programs())
        ]

    def __repr__(self) -> str:
        return f"<{function_name(self._step.function)} as {repr(self.pipeline)[1:]}"

    def __call__(self, *args: Any) -> Any:
        """Run the step.

        Raises:
            StrategyError: if arguments have another structure or types than those that `mpmd_step` was called with, or
                in a function that is being traced.
        """
        leaves = self._place(self._checked(args))
        params = [self._params(leaves, stage) for stage in range(len(self._ranks))]
        _, batch, *targets = self._loss.arguments(leaves)
        results = self.pipeline.run(params, batch, targets, self._copies, self._digest)
        return self._update(leaves, results)

    def place(self, *args: Any) -> tuple[Any, ...]:
        """Return the arguments, with the state divided among the stages as a call of the step returns it."""
        placed: tuple[Any, ...] = self._structure.unflatten(self._place(self._checked(args)))
        return placed

    def gather(self, tree: object) -> Any:
        """Return a tree with whole arrays in place of `StageRows`, on the devices of the first stage."""

        def whole(leaf: Any) -> Any:
            return leaf.gather() if isinstance(leaf, StageRows) else leaf

        leaves, structure = flatten(tree)
        return tree_util.tree_unflatten(structure, [whole(leaf) for leaf in leaves])

    def simulate(self, hardware: str | Chip) -> Callable[..., PipelineSimulation]:
        """Return a function of the step's arguments that predicts its time and memory, without the update.

        Args:
            hardware: the chip to predict for, as for `jax.simulate`.
        """
        run = self.pipeline.simulate(hardware)

        def call(*args: Any) -> PipelineSimulation:
            leaves = self._checked(args)
            params = []
            for stage, rank in enumerate(self._ranks):
                mesh = self.pipeline.meshes[rank]
                types = [self._stage_type(leaves[index], index, stage, mesh) for index in self._params_of[stage]]
                params.append(types)
            _, batch, *targets = self._loss.arguments(leaves)
            return run(params, batch, *targets)

        return call

    def _check_divided_params(self) -> None:
        """Check that the loss divides the stacked arrays which the update divides."""
        for index, owner in self._owners.items():
            if owner is not None and self._homes.inputs[index] == LAYERS:
                raise StrategyError(
                    f"mpmd_step: {self._roles.names[index]} of {self._label} is updated with the stacked weights of "
                    "the layers, which are divided among the stages, but the loss reads it outside of their scan: scan "
                    "over both in one loop."
                )

    def _own_programs(self) -> list[Any]:
        """Return the program of the step for the layers of each stage."""
        if LAYERS not in self._homes.inputs:
            return [self._traced.program] * len(self._ranks)
        by_count = {count: self._program_of(count) for count in dict.fromkeys(self.model.layers)}
        return [by_count[count] for count in self.model.layers]

    def _program_of(self, layers: int) -> Any:
        """Return the program of the step for a number of layers."""
        program, rows = self._traced.program, self._homes.rows
        assert rows is not None
        types = [
            type.with_shape((layers, *type.shape[1:])) if home == LAYERS else type
            for type, home in zip(program.in_types, self._homes.inputs, strict=True)
        ]
        arguments, loss = self._traced.arguments, self._traced.loss
        loss = loss._replace(types=tuple(types[arguments : arguments + len(loss.types)]))
        try:
            own = trace_training_step(self._step.function, self._structure, types[:arguments], loss).program
        except (TypeError, ValueError) as error:
            raise StrategyError(
                f"mpmd_step: {self._label} does not accept the parameters of {layers} of {rows.count} layers: {error}\n"
                "  After the gradients, a step runs on each stage for the layers of this stage."
            ) from error
        compared = Comparison(rows, layers)
        has_types = list(own.in_types) == types
        for one, other, is_alike in paired_equations(program, own):
            if not (has_types and is_alike) or (self._homes.is_by_layer(one) and not compared.match(one.op, other.op)):
                raise StrategyError(
                    f"mpmd_step: `{one.op.name}` at {one.source} in {self._label} depends on the number of layers: "
                    "after the gradients, a step runs on each stage for the layers of this stage."
                )
        if len(own.equations) != len(program.equations):
            raise StrategyError(
                f"mpmd_step: {self._label} computes other values for {layers} layers than for {rows.count}: after the "
                "gradients, a step runs on each stage for the layers of this stage."
            )
        return own

    def _checked(self, args: tuple[Any, ...]) -> list[Any]:
        """Return the leaves of the arguments, which have the types that the step was traced for."""
        leaves, structure = flatten(args)
        check_not_traced(tree_util.tree_leaves(leaves), f"mpmd_step: {self._label}")
        if structure != self._structure:
            raise StrategyError(
                f"mpmd_step: {self._label} was divided for arguments of the structure {self._structure}, not "
                f"{structure}"
            )
        for index, (leaf, name) in enumerate(zip(leaves, self._roles.names, strict=True)):
            expected = self._traced.program.in_types[index]
            if isinstance(leaf, StageRows):
                self._check_parts(leaf, expected, self._homes.inputs[index], name)
                continue
            type = type_of(leaf)
            if type.strong() != expected.strong():
                raise StrategyError(f"mpmd_step: {name} of {self._label} is a {type}, not a {expected}")
        return leaves

    def _check_parts(self, leaf: StageRows, expected: ArrayType, home: Home, name: str) -> None:
        """Check that rows are divided among the stages as those that the step returns."""
        layers = self.model.layers if home == LAYERS else ()
        types = [expected.with_shape((count, *expected.shape[1:])) for count in layers]
        if [type_of(part).strong() for part in leaf.parts] != [type.strong() for type in types]:
            divided = f"rows of the types {', '.join(map(str, types))}" if types else f"a {expected}"
            raise StrategyError(
                f"mpmd_step: {name} of {self._label} is {leaf}, not {divided}. To pass the state of another pipeline, "
                "or of other stages, gather it first with the `gather` of its step."
            )

    def _params(self, leaves: Sequence[Any], stage: int) -> list[Any]:
        """Return the parameters of a stage. One that it gets from another stage is still there."""
        return [
            leaves[index] if isinstance(self._homes.inputs[index], int) else self._on_stage(leaves[index], stage)
            for index in self._params_of[stage]
        ]

    @cached_property
    def _copies(self) -> list[Copy]:
        """The parameters that several stages read, which belong to the first of them."""
        return [
            Copy(owner, self._params_of[owner].index(index), stage, self._params_of[stage].index(index))
            for index, owner, users in zip(self._roles.params, self.model.owners, self.model.users, strict=True)
            if owner is not None and isinstance(self._homes.inputs[index], int)
            for stage in users[1:]
        ]

    def _rows_of(self, stage: int) -> slice:
        return slice(*list(pairwise(accumulate(self.model.layers, initial=0)))[stage])

    def _stage_type(self, leaf: Any, index: int, stage: int, mesh: Mesh | AbstractMesh) -> ShapeDtypeStruct:
        """Return the type of an argument on a stage, with its sharding there."""
        if isinstance(leaf, StageRows):
            leaf = leaf.parts[stage]
            return ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        type = type_of(leaf)  # perhaps of a number
        shape = type.shape
        if self._homes.inputs[index] == LAYERS:
            shape = (self.model.layers[stage], *shape[1:])
        return ShapeDtypeStruct(shape, type.dtype, sharding=self._sharding(leaf, index, stage, mesh))

    def _sharding(self, leaf: Any, index: int, stage: int, mesh: Mesh | AbstractMesh) -> NamedSharding:
        """Return the sharding of an argument on a stage."""
        if (index, stage) in self._specs:
            return NamedSharding(mesh, self._specs[index, stage])
        return _on_mesh(leaf, mesh)

    def _mesh(self, stage: int) -> Mesh:
        mesh = self.pipeline.meshes[self._ranks[stage]]
        if isinstance(mesh, AbstractMesh):
            raise StrategyError(
                f"mpmd_step: {self._label} runs on an abstract mesh, which has no devices: pass meshes of devices to "
                "`mpmd_step`, or call `simulate`."
            )
        return mesh

    def _place(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the leaves where the stages read them."""
        return [leaf if index in self._roles.batch else self._placed(leaf, index) for index, leaf in enumerate(leaves)]

    def _placed(self, leaf: Any, index: int) -> Any:
        """Return an input of the update where the stages read it."""
        home = self._homes.inputs[index]
        if isinstance(leaf, StageRows):
            return StageRows([self._placed_part(part, index, stage) for stage, part in enumerate(leaf.parts)])
        if home == LAYERS:
            return StageRows(
                [
                    device_put(leaf[self._rows_of(stage)], self._sharding(leaf, index, stage, self._mesh(stage)))
                    for stage in range(len(self._ranks))
                ]
            )
        if isinstance(home, int):
            sharding = self._sharding(leaf, index, home, self._mesh(home))
        else:
            sharding = self.pipeline.everywhere
        return leaf if getattr(leaf, "sharding", None) == sharding else device_put(leaf, sharding)

    def _placed_part(self, part: Any, index: int, stage: int) -> Any:
        """Return the rows of a stage on its mesh, where those that the step has returned are already."""
        mesh, sharding = self._mesh(stage), getattr(part, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
            return part
        return device_put(part, self._sharding(part, index, stage, mesh))

    def _on_stage(self, leaf: Any, stage: int) -> Any:
        """Return an argument, or what a stage has of it, on the mesh of the stage."""
        if isinstance(leaf, StageRows):
            return leaf.parts[stage]
        if leaf.sharding != self.pipeline.everywhere:
            return leaf
        replicated = NamedSharding(self._mesh(stage), PartitionSpec())
        shards = {shard.device: shard.data for shard in leaf.addressable_shards}
        return join_shards([shards[device] for device in replicated.local_devices], leaf.type, replicated)

    def _update(self, leaves: Sequence[Any], computed: StepResults) -> Any:
        """Run the step after its gradients, and return its results."""
        transfers = computed.transfers
        by_leaf = self._gradients_by_leaf(computed.gradients, transfers)
        values = [*leaves, *self._loss_results(computed), *by_leaf, *self._captured]
        for index in self._roles.batch:
            if self._traced.program.inputs[index] in self._traced.program.used:
                values[index] = self._placed(values[index], index)
        inputs = [
            [self._on_stage(values[index], stage) for index in update.inputs] if self._is_local(stage) else []
            for stage, update in enumerate(self._updates)
        ]
        received: list[list[list[Vectors]]] = [[] for _ in self._ranks]
        for level in range(self._homes.levels):
            received = self._exchange(level, inputs, received, transfers)
        parts: dict[int, dict[int, Any]] = {index: {} for index in range(len(self._output_homes))}
        for stage, update in enumerate(self._updates):
            shardings = [self._output_sharding(index, stage, leaves) for index in update.outputs]
            if self._is_local(stage):
                donated = [self._may_be_donated(index) for index in update.inputs]
                found = update.results(inputs[stage], received[stage], shardings, donated)
            else:
                types = self._output_types(stage)
                found = [empty_array(type, sharding) for type, sharding in zip(types, shardings, strict=True)]
            for index, array in zip(update.outputs, found, strict=True):
                parts[index][stage] = array
        outputs = [self._joined(index, parts[index]) for index in parts]
        return self._traced.structure.unflatten(outputs)

    def _loss_results(self, computed: StepResults) -> list[Any]:
        """Return the loss and its auxiliary results of the batch; None for results that the step does not use."""
        types = self._traced.loss.types
        results: list[Any] = [computed.loss, *[None] * (len(types) - 1)]
        if not self._loss.auxiliary:
            return results
        shardings = self._aux_shardings
        if self._is_local(len(self._ranks) - 1):
            arrays = self._combine(computed.aux)
        else:
            arrays = [empty_array(types[index], sharding) for index, sharding in shardings.items()]
        for index, array in zip(shardings, arrays, strict=True):
            is_divided = self._homes.inputs[self._traced.arguments + index] == LAYERS
            results[index] = self._divided(array, f"X{index}", computed.transfers) if is_divided else array
        return results

    def _divided(self, array: Any, tag: str, transfers: Transfers) -> StageRows:
        """Return the rows of an array of the last stage, divided among the stages."""
        targets = [NamedSharding(self._mesh(stage), PartitionSpec()) for stage in range(len(self._ranks))]
        parts = []
        for stage, target in enumerate(targets):
            type = type_of(array).with_shape((self.model.layers[stage], *array.shape[1:]))
            if self._is_local(len(self._ranks) - 1):
                rows = device_put(array[self._rows_of(stage)], targets[-1])
                transfers.send(f"{tag}.{stage}", [rows], [target])
            if self._is_local(stage):
                parts += transfers.receive(f"{tag}.{stage}", [type], [targets[-1]], [target])
            else:
                parts.append(empty_array(type, target))
        return StageRows(parts)

    @cached_property
    def _aux_shardings(self) -> dict[int, NamedSharding]:
        """The shardings of the auxiliary results on the last stage: rows have the spec of activations."""
        last = len(self._ranks) - 1
        mesh, spec = self._mesh(last), self.pipeline.specs[self._ranks[last]]
        specs = [
            spec[: self._traced.loss.types[index].ndim] if combination is Combination.ROWS else ()
            for index, combination in zip(self._loss.auxiliary, self._combinations, strict=True)
        ]
        shardings = [NamedSharding(mesh, PartitionSpec(*each)) for each in specs]
        return dict(zip(self._loss.auxiliary, shardings, strict=True))

    @cached_property
    def _sharding_by_aux(self) -> dict[Value, NamedSharding]:
        """The shardings of the inputs of the update that are auxiliary results on the last stage."""
        return {self._traced.loss_inputs[index]: sharding for index, sharding in self._aux_shardings.items()}

    @cached_property
    def _combine(self) -> Callable[..., Any]:
        """Computes the auxiliary results of a batch from the stacks of those of its microbatches."""
        function = partial(_combine, combinations=self._combinations)
        return jit(function, out_shardings=list(self._aux_shardings.values()))

    def _is_local(self, stage: int) -> bool:
        return self.pipeline.is_local(self._ranks[stage])

    def _gradients_by_leaf(self, gradients: Sequence[Sequence[Any]], transfers: Transfers) -> list[Any]:
        """Return the gradients of the leaves that are differentiated, from those of the parameters of each stage.

        The gradient of a parameter that several stages read is the sum of theirs.
        """
        found: dict[int, dict[int, Any]] = {}
        for stage, parts in enumerate(gradients):
            for index, part in zip(self._params_of[stage], parts, strict=True):
                found.setdefault(index, {})[stage] = part
        return [
            StageRows(list(found[index].values()))
            if (owner := self._owners[index]) is None
            else self._total(found[index], owner, f"T{index}", transfers)
            for index in self._traced.differentiated
        ]

    def _total(self, terms: dict[int, Any], home: int, tag: str, transfers: Transfers) -> Any:
        """Return the sum of one array per stage, on the mesh of a stage."""
        total = terms.pop(home)
        target = total.sharding
        for stage, term in terms.items():
            if self._is_local(stage):
                transfers.send(f"{tag}.{stage}", [term], [target])
        for stage, term in terms.items():
            if self._is_local(home):
                (moved,) = transfers.receive(f"{tag}.{stage}", [type_of(term)], [term.sharding], [target])
                total = self._add(total, moved)
        return total

    @cached_property
    def _digest(self) -> str:
        """A digest of the step without its loss, and of the arrays that it closes over."""
        digest = sha256(re.sub(" at 0x[0-9a-f]+", "", str(self._traced.program)).encode())
        for array in self._traced.captured:
            if not is_key(array.dtype) and getattr(array, "is_fully_addressable", True):
                digest.update(np.asarray(array).tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def _captured(self) -> list[Any]:
        """The arrays that the step closes over, where the stages read them."""
        first = len(self._homes.inputs) - len(self._traced.captured)
        return [self._placed(leaf, index) for index, leaf in enumerate(self._traced.captured, first)]

    def _exchange(
        self,
        level: int,
        inputs: Sequence[Sequence[Any]],
        received: Sequence[Sequence[list[Vectors]]],
        transfers: Transfers,
    ) -> list[list[list[Vectors]]]:
        """Run the programs of a level, and return, for each stage, the vectors of all stages at all levels so far."""
        stages = range(len(self._ranks))
        replicated = [NamedSharding(self._mesh(stage), PartitionSpec()) for stage in stages]
        types = [update.vector_types(level) for update in self._updates]

        def tag(source: int, target: int) -> str:
            return f"E{level}.{source}.{target}"

        own: dict[int, Vectors] = {}
        for stage, update in enumerate(self._updates):
            if self._is_local(stage) and types[stage]:
                own[stage] = update.exchange(level, inputs[stage], received[stage], replicated[stage])
                for other in stages:
                    if other != stage:
                        transfers.send(tag(stage, other), own[stage], [replicated[other]] * len(own[stage]))
        result = [list(each) for each in received]
        for stage in stages:
            if self._is_local(stage):
                vectors: list[Vectors] = []
                for other in stages:
                    sources, targets = ([each] * len(types[other]) for each in (replicated[other], replicated[stage]))
                    is_own = other == stage or not types[other]
                    vectors.append(
                        own.get(other, [])
                        if is_own
                        else transfers.receive(tag(other, stage), types[other], sources, targets)
                    )
                result[stage].append(vectors)
        return result

    def _output_sharding(self, index: int, stage: int, leaves: Sequence[Any]) -> Sharding:
        """Return the sharding of a result on a stage.

        It is that of the argument which it replaces, or of the auxiliary result which it is; others are replicated.
        """
        previous, mesh = self._previous[index], self._mesh(stage)
        if previous is None and isinstance(self._output_homes[index], int):
            replicated = NamedSharding(mesh, PartitionSpec())
            return self._sharding_by_aux.get(self._traced.program.outputs[index], replicated)
        if previous is None or self._output_homes[index] == EVERYWHERE:
            return NamedSharding(mesh, PartitionSpec())
        leaf = leaves[previous]
        sharding: Sharding = (leaf.parts[stage] if isinstance(leaf, StageRows) else leaf).sharding
        return sharding

    def _output_types(self, stage: int) -> list[ArrayType]:
        """Return the types of the results of a stage."""
        types = []
        for index in self._updates[stage].outputs:
            type = self._traced.program.out_types[index]
            is_divided = self._output_homes[index] == LAYERS
            types.append(type.with_shape((self.model.layers[stage], *type.shape[1:])) if is_divided else type)
        return types

    def _may_be_donated(self, index: int) -> bool:
        """Return whether a result may use the memory of an input: an argument that the user donates, or a gradient."""
        if self._homes.inputs[index] == EVERYWHERE:
            return False
        number = index - self._traced.arguments - len(self._traced.loss.types)
        if not 0 <= number < len(self._traced.differentiated):
            return index in self._step.donated
        leaf = self._traced.differentiated[number]
        return leaf in self._roles.next_outputs and leaf not in self._step.donated

    def _joined(self, index: int, parts: dict[int, Any]) -> Any:
        """Return a result of the step from what the stages have computed of it."""
        home = self._output_homes[index]
        if home == LAYERS:
            return StageRows([parts[stage] for stage in sorted(parts)])
        if home == EVERYWHERE:
            type = self._traced.program.out_types[index]
            return self.pipeline.replicate([part for stage, part in parts.items() if self._is_local(stage)], type)
        (array,) = parts.values()
        return array


def _on_mesh(leaf: Any, mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Return the sharding of an array on the mesh of a stage: its spec, as far as the mesh has the axes."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return NamedSharding(mesh, PartitionSpec())

    def kept(entry: Any) -> Any:
        axes = tuple(axis for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis in mesh.axis_names)
        return axes or None

    return NamedSharding(mesh, PartitionSpec(*map(kept, sharding.spec)))


def _combine(stacks: Sequence[Any], combinations: Sequence[Combination]) -> list[Any]:
    """Return the auxiliary results of a batch from those of its microbatches, which are stacked along dim 0."""

    def combine(stack: Any, combination: Combination) -> Any:
        if combination is Combination.MEAN:
            return stack.mean(0)
        if combination is Combination.SUM:
            return stack.sum(0).astype(stack.dtype)
        if combination is Combination.SAME:
            return stack[0]
        if combination in (Combination.MAX, Combination.MIN):
            return stack.max(0) if combination is Combination.MAX else stack.min(0)
        # Microbatch k of m has the rows k, k + m, … of the batch.
        return jnp.swapaxes(stack, 0, 1).reshape((-1, *stack.shape[2:]))

    return [combine(*pair) for pair in zip(stacks, combinations, strict=True)]
