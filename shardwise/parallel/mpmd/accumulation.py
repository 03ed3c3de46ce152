"""accumulation: how a stage keeps its parameters and the sums of its gradients during a step.

Tasks of different microbatches are separate programs. So that not each of them gathers parameters and reduces
gradients, the planner plans all tasks of a stage as one loop over its microbatches. It gathers parameters before that
loop and leaves sums of gradients unreduced until its end, as far as memory permits. The programs of the stage can then
use the shardings of that loop.
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
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.refine import coarsen_layout
from shardwise.compiler.shardings.spec import PartitionSpec, spec_of
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.array_types import device_bytes
from shardwise.parallel.mpmd.planned_program import plan_program

# (params, x, targets, cotangents of the result) → result, cotangents of the parameters, cotangents of the input
StageTasks = Callable[[Any, Any, tuple[Any, ...], list[Any]], tuple[Any, list[Array], list[Array]]]
Specs = tuple[PartitionSpec | None, ...]  # None for the sharding of the parameter


@final
class Accumulation(NamedTuple):
    """The shardings that a stage uses between the first and the last task of a step.

    Attributes:
        params: the spec of each leaf of the parameters, as the tasks read them.
        sums: the spec of the sum of each gradient; it may be unreduced.
    """

    params: Specs
    sums: Specs

    @staticmethod
    def unchanged(params: object) -> "Accumulation":
        """Return the accumulation in which everything has the shardings of the parameters."""
        return Accumulation((None,) * len(tree_util.tree_leaves(params)), (None,) * len(split_floats(params)[0]))


def plan_accumulation(
    tasks: StageTasks,
    arguments: tuple[Any, Any, tuple[Any, ...], list[Any]],
    microbatches: int,
    mesh: Mesh | AbstractMesh,
    memory_limit: int | None,
    chip: Chip,
    pins_params: bool,
) -> Accumulation:
    """Return the shardings of parameters and sums in a loop over the microbatches of a stage.

    Args:
        tasks: runs the forward and the backward pass of one microbatch.
        arguments: the types of its arguments, with shardings.
        microbatches: the number of microbatches.
        mesh: the mesh of the stage.
        memory_limit: the bytes that a device may hold for parameters, sums, and one microbatch; None for no limit.
        chip: the hardware to plan for.
        pins_params: whether the loop must read the parameters in their own shardings.
    """
    params, *others = arguments
    leaves, floats = tree_util.tree_leaves(params), split_floats(params)[0]
    stacks = [_stacked(each, microbatches, mesh) for each in others]
    if memory_limit is not None:
        # Only the loop holds the inputs and results of all microbatches at once.
        memory_limit = max(1, memory_limit + 2 * (device_bytes(stacks[0]) + device_bytes(stacks[2])))
    # Unused arguments are kept, so that the inputs of the program are the leaves of the arguments.
    loop = jit(
        _loop(tasks, [leaf.sharding for leaf in leaves] if pins_params else None),
        out_shardings=([leaf.sharding for leaf in floats], None),
        keep_unused=True,
    )
    with config.override("memory_limit", -1 if memory_limit is None else memory_limit):
        stages = plan_program(loop, (params, *stacks), chip).prepared.stages
    program, entered = stages.problem.program, _entry_layouts(stages)
    producers = {value: equation for equation in stages.problem.unfolded.equations for value in equation.outputs}
    return Accumulation(
        tuple(
            _spec(entered.get(value), leaf, mesh, stages)
            for value, leaf in zip(program.inputs[: len(leaves)], leaves, strict=True)
        ),
        tuple(
            _spec(_carry_layout(producers.get(value), stages), leaf, mesh, stages)
            for value, leaf in zip(program.outputs[: len(floats)], floats, strict=True)
        ),
    )


def _loop(tasks: StageTasks, pins: Sequence[Any] | None) -> Callable[..., Any]:
    """Return a function that runs all tasks of a stage in a loop, and sums its gradients.

    Args:
        tasks: the tasks of one microbatch.
        pins: the shardings in which the loop must read the leaves of the parameters; None if the planner chooses.
    """

    def all_tasks(params: Any, *stacks: Any) -> Any:
        def body(sums: Sequence[Array], each: tuple[Any, ...]) -> tuple[list[Array], Any]:
            leaves, structure = tree_util.tree_flatten(params)
            if pins is not None:
                leaves = list(map(with_sharding_constraint, leaves, pins))
            result, terms, x_cotangents = tasks(tree_util.tree_unflatten(structure, leaves), *each)
            return add(sums, terms), (result, x_cotangents)

        return scan(body, zeros(params), stacks)

    return all_tasks


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


def _spec(layout: Layout | None, leaf: Any, mesh: Mesh | AbstractMesh, stages: Stages) -> PartitionSpec | None:
    """Return the spec of a layout; None if it is that of the leaf, or not expressible in the axes of the mesh."""
    coarse = None if layout is None else coarsen_layout(layout, mesh.abstract, stages.problem.mesh)
    return None if coarse is None or leaf.sharding.pin(leaf.shape).layout == coarse else spec_of(coarse)
