"""accumulation: choose how a stage keeps its parameters and the sums of its gradients during a step.

Tasks of different microbatches are separate programs. So that parameters are not gathered and gradients not reduced by
each of them, the planner plans all tasks of a stage as one loop over its microbatches. It gathers parameters before
that loop and leaves sums of gradients unreduced until its end, as far as memory permits. The loop is also planned with
the parameters, the sums, or both pinned to the shardings of the parameters. The programs of the stage use the
shardings of the fastest loop.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.control import scan
from shardwise.api.jit import jit
from shardwise.api.meshes.placement import with_sharding_constraint
from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.control.region_boundary import Carry
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.search.gather_in_loops import loop_entries
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding, unreduced_sharding
from shardwise.compiler.shardings.refine import coarsen_layout
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec, spec_of
from shardwise.explain.simulate import Simulation
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.array_types import device_bytes
from shardwise.parallel.mpmd.planned_program import plan_program

NEGLIGIBLE = 0.01  # the share of exposed communication below which gathering and reducing once does not pay

# (params, x, targets, cotangents of the result) → result, cotangents of the parameters, cotangents of the input
StageTasks = Callable[[Any, Any, tuple[Any, ...], list[Any]], tuple[Any, list[Array], list[Array]]]


@final
class Accumulation(NamedTuple):
    """The shardings that a stage uses between the first and the last task of a step.

    Attributes:
        params: the sharding of each leaf of the parameters, as the tasks read them.
        sums: the sharding of the sum of each gradient; it may be unreduced.
    """

    params: tuple[Sharding, ...]
    sums: tuple[Sharding, ...]


def plan_accumulation(
    tasks: StageTasks,
    arguments: tuple[Any, Any, tuple[Any, ...], list[Any]],
    microbatches: int,
    mesh: Mesh | AbstractMesh,
    memory_limit: int | None,
    chip: Chip,
) -> Accumulation:
    """Choose the shardings of a stage's parameters and sums of gradients, by the predicted time of all its tasks.

    Args:
        tasks: runs the forward and the backward pass of one microbatch.
        arguments: the types of its arguments, with shardings.
        microbatches: the number of microbatches.
        mesh: the mesh of the stage.
        memory_limit: the bytes that a device may hold for parameters, sums, and one microbatch; None for no limit.
        chip: the hardware to plan for.
    """
    params, *others = arguments
    unchanged = Accumulation(*(tuple(leaf.sharding for leaf in leaves) for leaves in _leaves(params)))
    if microbatches == 1 or mesh.size == 1:
        return unchanged
    stacks = [_stacked(each, microbatches, mesh) for each in others]
    if memory_limit is not None:
        # Only the loop holds the inputs and results of all microbatches at once.
        memory_limit += 2 * (device_bytes(stacks[0]) + device_bytes(stacks[2]))

    def plan(pins_params: bool, pins_sums: bool) -> _LoopPlan:
        loop = _loop(tasks, unchanged, pins_params, pins_sums)
        return _plan_loop(loop, params, stacks, unchanged, mesh, memory_limit, chip)

    pinned = plan(pins_params=True, pins_sums=True)
    if pinned.exposed < NEGLIGIBLE * pinned.seconds:
        return unchanged
    free = plan(pins_params=False, pins_sums=False)
    plans = [pinned, free]
    if all(found != default for found, default in zip(free.accumulation, unchanged, strict=True)):
        plans += [plan(pins_params=True, pins_sums=False), plan(pins_params=False, pins_sums=True)]
    return min(plans, key=lambda plan: (plan.excess, plan.seconds)).accumulation


@final
class _LoopPlan(NamedTuple):
    """A plan of all tasks of a stage.

    Attributes:
        accumulation: the shardings of the loop.
        excess: the bytes by which it exceeds the memory limit.
        seconds: its predicted time.
        exposed: the part of it in which devices wait for communication.
    """

    accumulation: Accumulation
    excess: int
    seconds: float
    exposed: float


def _loop(tasks: StageTasks, shardings: Accumulation, pins_params: bool, pins_sums: bool) -> Callable[..., Any]:
    """Return a function that runs all tasks of a stage in a loop, and sums its gradients.

    Args:
        tasks: the tasks of one microbatch.
        shardings: the shardings of the parameters and of their gradients.
        pins_params: whether the loop must read the parameters in their own shardings.
        pins_sums: whether the sums must have the shardings of the parameters.
    """

    def all_tasks(params: Any, *stacks: Any) -> Any:
        def body(sums: Sequence[Array], each: tuple[Any, ...]) -> tuple[list[Array], Any]:
            leaves, structure = tree_util.tree_flatten(params)
            read = tree_util.tree_unflatten(structure, _pin(leaves, shardings.params)) if pins_params else params
            result, terms, x_cotangents = tasks(read, *each)
            totals = add(sums, terms)
            return _pin(totals, shardings.sums) if pins_sums else totals, (result, x_cotangents)

        return scan(body, zeros(params), stacks)

    return all_tasks


def _pin(arrays: Sequence[Array], shardings: Sequence[Sharding]) -> list[Array]:
    return [with_sharding_constraint(array, sharding) for array, sharding in zip(arrays, shardings, strict=True)]


def _plan_loop(
    loop: Callable[..., Any],
    params: Any,
    stacks: Sequence[Any],
    unchanged: Accumulation,
    mesh: Mesh | AbstractMesh,
    memory_limit: int | None,
    chip: Chip,
) -> _LoopPlan:
    """Plan a loop over the tasks of a stage, and return the shardings that the planner chose in it."""
    # Unused arguments are kept, so that the inputs of the program are the leaves of the arguments.
    jitted = jit(loop, out_shardings=(list(unchanged.sums), None), keep_unused=True)
    with config.override("memory_limit", -1 if memory_limit is None else max(1, memory_limit)):
        prepared = plan_program(jitted, (params, *stacks), chip).prepared
    run, stages = Simulation(prepared.request, prepared.stages, chip), prepared.stages
    program, entered = stages.problem.program, _entry_layouts(stages)
    producers = {value: equation for equation in stages.problem.unfolded.equations for value in equation.outputs}
    param_layouts = [entered.get(value) for value in program.inputs[: len(unchanged.params)]]
    sum_layouts = [_carry_layout(producers.get(value), stages) for value in program.outputs[: len(unchanged.sums)]]
    accumulation = Accumulation(
        *(
            tuple(_sharding(*each, mesh, stages) for each in zip(layouts, defaults, strict=True))
            for layouts, defaults in zip((param_layouts, sum_layouts), unchanged, strict=True)
        )
    )
    excess = 0 if memory_limit is None else max(0, run.peak_bytes - memory_limit)
    return _LoopPlan(accumulation, excess, run.seconds, run.plan.exposed_seconds)


def _leaves(params: object) -> tuple[list[Any], list[Any]]:
    """Return the leaves of the parameters, and those with gradients."""
    return tree_util.tree_leaves(params), split_floats(params)[0]


def zeros(params: object) -> list[Array]:
    """Return zeros like the floating-point leaves of the parameters."""
    return [jnp.zeros_like(leaf) for leaf in split_floats(params)[0]]


def add(sums: Sequence[Array], terms: Sequence[Array]) -> list[Array]:
    """Return sums of gradients with the gradients of a microbatch added."""
    return [total + term for total, term in zip(sums, terms, strict=True)]


def _stacked(tree: object, microbatches: int, mesh: Mesh | AbstractMesh) -> Any:
    """Return the types of the arrays of all microbatches, stacked along a new first dim."""

    def stacked(leaf: ShapeDtypeStruct) -> ShapeDtypeStruct:
        assert isinstance(leaf.sharding, NamedSharding)
        sharding = NamedSharding(mesh, PartitionSpec(None, *leaf.sharding.spec))
        return ShapeDtypeStruct((microbatches, *leaf.shape), leaf.dtype, sharding=sharding)

    return tree_util.tree_map(stacked, tree)


def _entry_layouts(stages: Stages) -> dict[Value, Layout]:
    """Return the layouts in which the outermost loops read the inputs of a program, if one layout serves all."""
    layouts: dict[Value, set[Layout]] = {}
    for equation in loop_entries(stages.problem):
        layouts.setdefault(equation.inputs[0], set()).add(stages.plan.choices[equation].operands[0])
    return {value: each.pop() for value, each in layouts.items() if len(each) == 1}


def _carry_layout(equation: Equation | None, stages: Stages) -> Layout | None:
    """Return the layout of a carry; None for other equations."""
    is_planned = equation in stages.plan.choices and isinstance(equation.op, Carry)
    return stages.plan.choices[equation].results[-1] if equation is not None and is_planned else None


def _sharding(layout: Layout | None, default: Sharding, mesh: Mesh | AbstractMesh, stages: Stages) -> Sharding:
    """Return the sharding of a layout; the default if it is not expressible in the axes of the stage's mesh."""
    coarse = None if layout is None else coarsen_layout(layout, mesh.abstract, stages.problem.mesh)
    if coarse is None or default.pin((1,) * len(coarse.dims)).layout == coarse:
        return default
    return unreduced_sharding(mesh, spec_of(coarse))
