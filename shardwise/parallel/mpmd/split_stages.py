"""split_stages: divide an ordinary model into the stages of a pipeline, at marked boundaries or between its layers.

`stage_boundary` marks values. A value's stage is the largest number of marks on a path to it from the batch. Values
that later stages need are passed through all stages between, even if they are not marked. A scan over layers is divided
into one scan per stage first, with marks between.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar, final

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.meshes.placement import device_put
from shardwise.base.config import config
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.identities import CheckpointName
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import live_equations
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.replay import replay
from shardwise.errors import StrategyError
from shardwise.parallel.mpmd.divide_layers import divide_layers, scan_over_layers
from shardwise.parallel.mpmd.integers import positive_integer
from shardwise.parallel.mpmd.stage_programs import StageFunction

_T = TypeVar("_T")
_BOUNDARY = CheckpointName("stage_boundary")


def stage_boundary(x: _T) -> _T:
    """Mark the end of a pipeline stage, for `split_stages`. Elsewhere it is the identity.

    Args:
        x: a pytree of arrays, such as the activations after a layer.

    Returns:
        A pytree equal to `x`. Values that are computed from it belong to the next stage.

    Raises:
        TypeError: if a leaf is neither an array nor a number.

    Example:
        >>> jax.parallel.stage_boundary(jnp.arange(3.0))
        Array([0., 1., 2.], dtype=float32)
    """
    return tree_util.tree_map(lambda leaf: _BOUNDARY(as_operand(leaf, "stage_boundary")), x)


@final
@dataclass(frozen=True, eq=False)
class StagedModel:
    """A model that was divided into stages; `split_stages` creates it.

    Attributes:
        stages: the functions of the stages, for `mpmd_pipeline`. The parameters of a stage are a list of leaves.
        owners: for each leaf of the model's parameters, the index of its stage; None if it has the weights of all
            layers, stacked along dim 0, so that each stage has some of its rows.
        structure: the structure of the model's parameters.
        layers: the number of layers of each stage, if a scan over layers was divided.
        users: for each leaf of the model's parameters, the stages that read it. The first of them is its owner, if it
            is not divided.
        has_aux: whether the last stage returns a pair (loss, aux).

    Example:
        >>> model = lambda w, x: (jax.parallel.stage_boundary(x * w[0]) * w[1]).mean()
        >>> jax.parallel.split_stages(model, [2.0, 3.0], jnp.ones(4), microbatches=2).owners
        (0, 1)
    """

    stages: tuple[StageFunction, ...]
    owners: tuple[int | None, ...]
    structure: Any
    layers: tuple[int, ...]
    users: tuple[tuple[int, ...], ...]
    has_aux: bool

    def split(self, params: object) -> list[list[Any]]:
        """Return the leaves of the model's parameters, or of a pytree like them, by stage."""
        parts: list[list[Any]] = [[] for _ in self.stages]
        for leaf, owner, users in zip(tree_util.tree_leaves(params), self.owners, self.users, strict=True):
            if owner is not None:
                for stage in users:
                    parts[stage].append(leaf)
                continue
            for part, (start, stop) in zip(parts, pairwise(accumulate(self.layers, initial=0)), strict=True):
                part.append(_rows(leaf, start, stop))
        return parts

    def join(self, parts: Sequence[Sequence[Any]]) -> Any:
        """Return a pytree like the model's parameters from the leaves of all stages, such as gradients.

        The rows of a leaf that was divided are copied to the devices of the first stage.
        """
        rest = [iter(part) for part in parts]
        leaves = [
            _concatenate([next(each) for each in rest]) if owner is None else next(rest[owner]) for owner in self.owners
        ]
        return tree_util.tree_unflatten(self.structure, leaves)


def _rows(leaf: Any, start: int, stop: int) -> Any:
    """Return some rows of an array, or of the type of one."""
    if isinstance(leaf, ShapeDtypeStruct):
        return ShapeDtypeStruct((stop - start, *leaf.shape[1:]), leaf.dtype, sharding=leaf.sharding)
    return leaf[start:stop]


def _concatenate(parts: Sequence[Any]) -> Any:
    """Return the rows of all parts, on the devices of the first."""
    return jnp.concatenate([parts[0], *(device_put(part, parts[0].sharding) for part in parts[1:])])


def split_stages(
    model: Callable[..., Any],
    params: object,
    batch: object,
    *targets: object,
    microbatches: int,
    stages: int | Sequence[int] | None = None,
    has_aux: bool = False,
) -> StagedModel:
    """Divide a model into stages at its calls of `stage_boundary`, or between the layers that it scans.

    Args:
        model: a function `(params, batch, *targets)` that returns a scalar loss, the mean over the rows.
        params: its parameters, of which shapes and dtypes are read.
        batch: a batch, of which shapes and dtypes are read. Any stage may use it.
        *targets: further arguments, which only the last stage may use.
        microbatches: the number of microbatches into which batch and targets will be divided.
        stages: for a model that scans over the stacked weights of its layers and has no marks, the number of stages, or
            the number of layers of each stage. What is before the scan, such as an embedding, belongs to the first
            stage, and what is after it to the last.
        has_aux: whether the model returns a pair (loss, aux), and so the last stage, for `mpmd_pipeline`.

    Returns:
        The stages, and functions that divide parameters and combine gradients.

    Raises:
        StrategyError: if a parameter is used by several stages, if targets are used before the last stage, if a
            boundary is inside of a loop or of another function with its own derivative, or if `stages` does not divide
            the layers of a scan.

    Example:
        >>> model = lambda w, x: (jax.parallel.stage_boundary(x * w[0]) * w[1]).mean()
        >>> len(jax.parallel.split_stages(model, [2.0, 3.0], jnp.ones(4), microbatches=2).stages)
        2
    """
    model_of = divide_model(model, params, batch, targets, microbatches, stages, has_aux)
    for users, owner, (path, _) in zip(
        model_of.users, model_of.owners, tree_util.tree_leaves_with_path(params), strict=True
    ):
        if owner is not None and len(users) > 1:
            raise StrategyError(
                f"split_stages: the parameter {tree_util.keystr(path)} is used by the stages {list(users)}: a "
                "parameter belongs to one stage. Move a boundary, give each stage its own copy, or use `mpmd_step`."
            )
    return model_of


def divide_model(
    model: Callable[..., Any],
    params: object,
    batch: object,
    targets: tuple[object, ...],
    microbatches: int,
    stages: int | Sequence[int] | None,
    has_aux: bool = False,
) -> StagedModel:
    """Divide a model into stages, as `split_stages` does. Several stages may read a parameter."""
    microbatches = positive_integer(microbatches, "split_stages: microbatches")
    param_leaves, param_structure = tree_util.tree_flatten(params)
    batch_leaves, batch_structure = tree_util.tree_flatten(batch)
    target_leaves, target_structure = tree_util.tree_flatten(targets)
    counts = len(param_leaves), len(batch_leaves), len(target_leaves)
    result_structure: Any = None

    def flat_model(*leaves: Any) -> list[Any]:
        nonlocal result_structure
        rest = iter(leaves)
        arguments = [[next(rest) for _ in range(count)] for count in counts]
        results = model(
            tree_util.tree_unflatten(param_structure, arguments[0]),
            tree_util.tree_unflatten(batch_structure, arguments[1]),
            *tree_util.tree_unflatten(target_structure, arguments[2]),
        )
        if has_aux and not (isinstance(results, tuple) and len(results) == 2):
            raise StrategyError(f"split_stages: with has_aux=True the model returns a pair (loss, aux), not {results}")
        flat, result_structure = tree_util.tree_flatten(results)
        return list(flat)

    rows = [type_of(leaf) for leaf in (*batch_leaves, *target_leaves)]
    types = [type.with_shape((type.shape[0] // microbatches, *type.shape[1:])) for type in rows]
    divisions: dict[str, _Division] = {}  # by platform: a model may use other kernels on another platform

    def division() -> _Division:
        platform = config.target_platform
        if platform not in divisions:
            program, captured = build(flat_model, [*map(type_of, param_leaves), *types], "model")
            divisions[platform] = _divide(inline(program, _is_jit), captured, counts, stages)
        return divisions[platform]

    found = division()
    functions = [_stage_function(division, stage, result_structure) for stage in range(len(found.programs))]
    return StagedModel(tuple(functions), found.owners, param_structure, found.layers, found.users, has_aux)


def has_boundaries(program: Program) -> bool:
    """Return whether a model has calls of `stage_boundary`."""
    return any(equation.op == _BOUNDARY for equation in program.walk())


def inputs_before_last_stage(program: Program, params: int) -> frozenset[int]:
    """Return the inputs of a model that are needed before its last stage begins.

    Args:
        program: the program of the model.
        params: the number of its inputs that are parameters, the first ones.

    Raises:
        StrategyError: if it has neither calls of `stage_boundary` nor a scan over layers.
    """
    program = inline(program, _is_jit)
    ends = [equation for equation in program.equations if equation.op == _BOUNDARY]
    needed = {value for end in ends or [scan_over_layers(program, params)] for value in end.inputs}
    for equation in reversed(program.equations):
        if not needed.isdisjoint(equation.outputs):
            needed.update(equation.inputs)
    return frozenset(index for index, value in enumerate(program.inputs) if value in needed)


@final
class _Division(NamedTuple):
    """A model that was divided into stages.

    Attributes:
        programs: the program of each stage.
        captured: the arrays that the model closes over, the last operands of each program.
        owners, layers, users: those of the StagedModel.
    """

    programs: tuple[Program, ...]
    captured: Sequence[Any]
    owners: tuple[int | None, ...]
    layers: tuple[int, ...]
    users: tuple[tuple[int, ...], ...]


def _divide(
    program: Program, captured: Sequence[Any], counts: tuple[int, int, int], stages: int | Sequence[int] | None
) -> _Division:
    """Divide the program of a model. `counts` are the numbers of leaves of parameters, batch and targets."""
    is_divided: tuple[bool, ...] = (False,) * counts[0]
    layers: tuple[int, ...] = ()
    if stages is not None:
        if has_boundaries(program):
            raise StrategyError("split_stages: the model has calls of `stage_boundary`: leave `stages` out.")
        program, layers, is_divided = divide_layers(program, counts[0], stages, _BOUNDARY)
    parts = [len(layers) if divided else 1 for divided in is_divided]
    cut = _Cut(program, (sum(parts), *counts[1:]))
    users = cut.users()
    firsts = list(accumulate(parts[:-1], initial=0)) if parts else []
    return _Division(
        tuple(cut.stage_program(stage, users) for stage in range(cut.stages)),
        captured,
        tuple(None if divided else users[first][0] for divided, first in zip(is_divided, firsts, strict=True)),
        layers,
        tuple(
            tuple(range(cut.stages)) if divided else users[first]
            for divided, first in zip(is_divided, firsts, strict=True)
        ),
    )


def _is_jit(op: Op) -> bool:
    """Return whether an op is a call of a jitted function. Calls with their own derivative, and `checkpoint`, stay."""
    return isinstance(op, Call)


def _stage_function(division: Callable[[], _Division], stage: int, structure: Any) -> StageFunction:
    """Return the function of a stage. `structure` is that of the model's results."""

    def run(params: Sequence[Any], x: object, *targets: object) -> Any:
        programs, captured, *_ = division()
        leaves = [as_operand(leaf) for leaf in (*params, *tree_util.tree_leaves((x, targets)))]
        outputs = replay(programs[stage], [*leaves, *captured])
        return outputs if stage < len(programs) - 1 else tree_util.tree_unflatten(structure, outputs)

    return run


@final
class _Cut:
    """The stages of the values and equations of a program.

    Args:
        program: the program of a model, from parameters, a microbatch and its targets to the loss and its
            auxiliary results.
        counts: the numbers of leaves of parameters, microbatch and targets.
    """

    def __init__(self, program: Program, counts: tuple[int, int, int]):
        after_params, after_batch, after_targets = counts[0], counts[0] + counts[1], sum(counts)
        self.program = program
        self.params = program.inputs[:after_params]
        self.batch = program.inputs[after_params:after_batch]
        self.targets = program.inputs[after_batch:after_targets]
        self.captured = program.inputs[after_targets:]
        self.stage_of: dict[Value, int] = dict.fromkeys(self.batch, 0)
        of_targets = set(self.targets)  # values that depend on targets
        for equation in program.equations:
            self._check_nested(equation)
            if not of_targets.isdisjoint(equation.inputs):
                of_targets.update(equation.outputs)
            stages = [self.stage_of[value] for value in equation.inputs if value in self.stage_of]
            if stages:  # otherwise it depends on parameters, targets or constants only, and any stage may compute it
                stage = max(stages) + (equation.op == _BOUNDARY)
                self.stage_of.update(dict.fromkeys(equation.outputs, stage))
        self.stages = 1 + max(self.stage_of.values())
        early = [
            self.stage_of[value]
            for equation in program.equations
            if equation.op == _BOUNDARY
            for value in equation.inputs
            if value in of_targets and value in self.stage_of
        ]
        if early:
            raise StrategyError(
                f"split_stages: stage {min(early)} of {self.stages} uses a target. Only the last stage gets targets: "
                "make it a part of the batch."
            )
        loss = program.outputs[0]
        if self.stage_of.get(loss) != self.stages - 1:
            raise StrategyError(
                f"split_stages: the loss is computed in stage {self.stage_of.get(loss, 0)} of {self.stages}: the last "
                "stage_boundary must be on the path from the batch to the loss."
            )
        self.stage_of.update(dict.fromkeys(of_targets.intersection(self.stage_of), self.stages - 1))
        self._crossing = [self._values_before(stage) for stage in range(1, self.stages)]
        self._equations = [self._live_equations(stage) for stage in range(self.stages)]

    @staticmethod
    def _check_nested(equation: Equation) -> None:
        for program in equation.op.programs:
            if any(inner.op == _BOUNDARY for inner in program.walk()):
                raise StrategyError(
                    f"split_stages: stage_boundary is inside `{equation.op.name}` at {equation.source}: a stage cannot "
                    "end in a loop, a branch, or a function with its own derivative. Call it outside."
                )

    def _values_before(self, stage: int) -> list[Value]:
        """Return the values that stages before `stage` compute, and that it or later ones use or return."""
        used = {
            value
            for equation in self.program.equations
            if any(self.stage_of.get(output, -1) >= stage for output in equation.outputs)
            for value in equation.inputs
        }.union(self.program.outputs)
        return [value for value, computed in self.stage_of.items() if computed < stage and value in used]

    def _inputs(self, stage: int) -> Sequence[Value]:
        return self._crossing[stage - 1] if stage else self.batch

    def _outputs(self, stage: int) -> Sequence[Value]:
        return self.program.outputs if stage == self.stages - 1 else self._crossing[stage]

    def _live_equations(self, stage: int) -> list[Equation]:
        """Return the equations of a stage, with those that any stage may compute and that this one needs."""
        equations = [
            equation
            for equation in self.program.equations
            if all(self.stage_of.get(value, stage) == stage for value in equation.outputs)
        ]
        return live_equations(equations, self._outputs(stage))

    def users(self) -> tuple[tuple[int, ...], ...]:
        """Return the stages that read each parameter; the first one for a parameter that none reads."""
        used = [{value for equation in equations for value in equation.inputs} for equations in self._equations]
        used[-1].update(self.program.outputs)  # perhaps a parameter, as an auxiliary result
        users = [[stage for stage, values in enumerate(used) if value in values] for value in self.params]
        return tuple(tuple(stages) if stages else (0,) for stages in users)

    def stage_program(self, stage: int, users: Sequence[Sequence[int]]) -> Program:
        """Return the program of a stage: its parameters, the previous results, targets, captured arrays → results."""
        params = [value for value, stages in zip(self.params, users, strict=True) if stage in stages]
        targets = self.targets if stage == self.stages - 1 else ()
        inputs = (*params, *self._inputs(stage), *targets, *self.captured)
        return Program(inputs, tuple(self._equations[stage]), tuple(self._outputs(stage)), f"stage{stage}")
